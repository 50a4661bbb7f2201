"""Train one of d3rlpy's algorithms on given data and evaluate it from given start states.

Run by the peers' Python.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.peers.d3rlpy_build import make_algorithm, make_dataset, update
from benchmarks.peers.episodes import Array, Evaluations, Policy, episode_returns
from benchmarks.process import Request, answer_job


def mode_policy(algorithm: Any) -> Policy:
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
    algorithm = make_algorithm(
        spec["algo"],
        spec["knobs"],
        dataset,
        request.seed,
        bounds,
        spec.get("standardize", False),
        spec.get("device", False),
    )

    total, interval = spec["updates"], spec["eval_interval"] or spec["updates"]
    evaluations = Evaluations(algorithm.predict, spec["env_id"], inputs["curve_seeds"])
    began, done = time.perf_counter(), 0
    while done < total:
        count = min(interval, total - done)
        update(algorithm, dataset, count)
        done += count
        evaluations.note(done)
    seconds = time.perf_counter() - began

    result = evaluations.result(inputs["reset_seeds"], done, seconds)
    if spec["algo"] == "crr":
        mode = episode_returns(mode_policy(algorithm), spec["env_id"], inputs["reset_seeds"])
        result["mode_return_mean"] = float(np.mean(mode))
    print(f"return {result['return_mean']:,.1f}, {seconds:.0f} s of training")
    return result


if __name__ == "__main__":
    answer_job(work, ("d3rlpy", "torch", "numpy", "gymnasium"))
