"""What bootstrap replicates of fitted Q evaluation cost, beside one critic alone, as `ope` fits
them: its updates of hidden layers, and the last layer that is solved."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from benchmarks.process import Request, answer_job
from benchmarks.speed.synthetic import SHAPE, synthetic_arrays
from rl_training import BC, TransitionDataset, load_transition_dataset
from rl_training.ope.fitted import untrained_critics
from rl_training.ope.last_layer import solved_critic
from rl_training.ope.options import Options

WARM_UP = 100
ROUNDS = 5
"""The fastest of so many counts."""
SOLVED = 4
"""Solves that are timed; the fastest counts for every critic."""


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    options = Options(device=spec["device"])
    agent = BC("HalfCheetah-v5", dataset=synthetic_arrays(SHAPE), device=spec["device"])
    dataset = load_transition_dataset(synthetic_arrays(SHAPE), spaces=agent.algorithm.spaces)
    found = {str(n): _parts(agent, dataset, options, n, spec) for n in spec["replicates"]}
    whole = {n: options.updates * one["update"] + one["solve"] for n, one in found.items()}
    first, last = (whole[str(x)] for x in (spec["replicates"][0], spec["replicates"][-1]))
    print(f"{first:.1f} s alone, {last:.1f} s together: {last / first:.1f} times")
    return {"parts": found, "seconds": whole, "ratio": last / first, "updates": options.updates}


def _parts(
    agent: BC, dataset: TransitionDataset, options: Options, critics: int, spec: dict[str, Any]
) -> dict[str, float]:
    """Seconds of one update of so many critics, and of solving all their last layers."""
    rng, episodes = np.random.default_rng(0), dataset.num_episodes
    counts = np.ones((1, episodes), np.int64)
    if critics > 1:
        counts = rng.multinomial(episodes, np.full(episodes, 1.0 / episodes), size=critics)
    made = untrained_critics(agent.config, agent.algorithm, dataset, counts, options)
    made.engine.run(min(WARM_UP, spec["updates"]))
    update = solve = np.inf
    for _ in range(ROUNDS):
        began = _now(spec["device"])
        made.engine.run(spec["updates"])
        update = min(update, _now(spec["device"]) - began)
    for i in range(SOLVED):
        j = i % critics
        began = _now(spec["device"])
        solved_critic(made.agents[j], dataset, counts[j], options, j if critics > 1 else None)
        solve = min(solve, _now(spec["device"]) - began)
    return {"update": update / spec["updates"], "solve": critics * solve}


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy"))
