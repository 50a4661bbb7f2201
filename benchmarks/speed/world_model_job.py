"""Milliseconds per update of Dreamer in one mode of the engine, on synthetic pictures."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.process import Request, answer_job
from rl_training.algorithms.dreamer import DreamerAlgorithm, DreamerParams
from rl_training.envs.spaces import Spaces
from rl_training.replay.sequences import Context, SequenceReplay, StreamStep, latent_parts
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.engine import Engine

MOMENTS, EPISODE, ACTIONS = 2_000, 100, 18


def filled_replay(algorithm: DreamerAlgorithm, rng: np.random.Generator) -> SequenceReplay:
    size, spaces = algorithm.rssm.size, algorithm.spaces
    device = algorithm.update_count.device
    replay = SequenceReplay(MOMENTS, 1, spaces, device, latent_parts(size.deter, size.latents))
    for i in range(MOMENTS):
        flags = (np.array([i % EPISODE == at]) for at in (0, EPISODE - 1, EPISODE - 1))
        moment = StreamStep(
            rng.integers(0, 256, (1, *spaces.obs_shape), dtype=np.uint8),
            rng.integers(0, ACTIONS, 1),
            rng.normal(size=1),
            *flags,
        )
        replay.add(moment, np.array([0]))
    return replay


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    named = ("size", "batch_size", "batch_length", "rollout_length", "precision")
    knobs = {k: spec[k] for k in named if k in spec}
    side = spec["image"]
    spaces = Spaces.from_gymnasium(
        gym.spaces.Box(0, 255, (side, side, 3), np.uint8), gym.spaces.Discrete(ACTIONS)
    )
    torch.backends.cuda.matmul.allow_tf32 = spec.get("tf32", False)
    torch.backends.cudnn.deterministic = True  # as in a run
    torch.manual_seed(request.seed)
    with device:
        algorithm = DreamerAlgorithm(spaces, DreamerParams(**knobs))
    replay, p = filled_replay(algorithm, np.random.default_rng(0)), algorithm.params

    def draw(_: Any) -> Any:
        chance = algorithm.uniform(2, p.batch_size)
        return replay.sample(p.batch_size, p.batch_length, chance, newest=1)

    def learned(batch: Any) -> None:
        replay.refresh(batch.places, Context(algorithm.last_deter, algorithm.last_stoch))

    engine = Engine(SingleLearner(algorithm, draw, learned, replay.refreshed), spec["mode"], 10**9)
    began = time.perf_counter()
    _run(engine, 2)
    first_seconds = time.perf_counter() - began
    if engine.mode != spec["mode"]:
        raise RuntimeError(f"{spec['size']}: {engine.notes}")
    _run(engine, 3)
    began = time.perf_counter()
    for _ in range(spec["updates"]):
        engine.run(1)
    _wait()
    milliseconds = 1e3 * (time.perf_counter() - began) / spec["updates"]
    print(f"{milliseconds:.1f} ms per update, {first_seconds:.0f} s to begin")
    gib = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {
        "milliseconds": milliseconds,
        "first_seconds": round(first_seconds, 1),
        "parameters": sum(x.numel() for x in algorithm.parameters() if x.requires_grad),
        "gib": gib,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }


def _run(engine: Engine, updates: int) -> None:
    engine.run(updates)
    _wait()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium"))
