"""Train one of d3rlpy's algorithms on given data and evaluate it from given start states.

Run by the peers' Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.peers.d3rlpy_build import make_algorithm, make_dataset, update
from benchmarks.process import Request, answer_job

Array = np.ndarray[Any, Any]


def episode_returns(
    act: Callable[[Array], Array], env_id: str, reset_seeds: Sequence[int]
) -> list[float]:
    """Return of one whole episode per seed, all side by side."""
    envs = [gym.make(env_id) for _ in reset_seeds]
    returns = [0.0] * len(envs)
    observations = {
        i: env.reset(seed=seed)[0]
        for i, (env, seed) in enumerate(zip(envs, reset_seeds, strict=True))
    }
    while observations:
        running = list(observations)
        actions = act(np.stack([observations[i] for i in running]).astype(np.float32))
        for i, action in zip(running, actions, strict=True):
            observation, reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if terminated or truncated:
                del observations[i]
            else:
                observations[i] = observation
    for env in envs:
        env.close()
    return returns


def mode_policy(algorithm: Any) -> Callable[[Array], Array]:
    """The policy's mode, which for CRR is not what `predict` returns."""

    def act(observations: Array) -> Array:
        with torch.no_grad():
            mode = algorithm.impl.policy(torch.from_numpy(observations)).squashed_mu
            actions: Array = algorithm.config.action_scaler.reverse_transform(mode).numpy()
        return actions

    return act


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    spec, inputs = request.spec, request.inputs
    with np.load(inputs["data"]) as stored:
        dataset = make_dataset(dict(stored))
    env = gym.make(spec["env_id"])
    space = env.action_space
    assert isinstance(space, gym.spaces.Box)
    bounds = (space.low.tolist(), space.high.tolist())
    env.close()
    algorithm = make_algorithm(spec["algo"], spec["knobs"], dataset, request.seed, bounds)

    total, interval = spec["updates"], spec["eval_interval"] or spec["updates"]
    curve: dict[str, list[float]] = {"updates": [], "return": []}
    began, done = time.perf_counter(), 0
    while done < total:
        count = min(interval, total - done)
        update(algorithm, dataset, count)
        done += count
        score = np.mean(episode_returns(algorithm.predict, spec["env_id"], inputs["curve_seeds"]))
        curve["updates"].append(done)
        curve["return"].append(round(float(score), 1))
    seconds = time.perf_counter() - began

    final = episode_returns(algorithm.predict, spec["env_id"], inputs["reset_seeds"])
    result = {
        "return_mean": float(np.mean(final)),
        "return_std": float(np.std(final)),
        "episodes": len(final),
        "best_eval": max(curve["return"]),
        "updates": done,
        "train_seconds": round(seconds, 1),
        "curve": curve,
    }
    if spec["algo"] == "crr":
        mode = episode_returns(mode_policy(algorithm), spec["env_id"], inputs["reset_seeds"])
        result["mode_return_mean"] = float(np.mean(mode))
    print(f"return {result['return_mean']:,.1f}, {seconds:.0f} s of training")
    return result


if __name__ == "__main__":
    answer_job(work, ("d3rlpy", "torch", "numpy", "gymnasium"))
