"""What bootstrap replicates of fitted Q evaluation cost, beside one critic alone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from benchmarks.process import Request, answer_job
from benchmarks.speed.synthetic import SHAPE, synthetic_arrays
from rl_training import BC, load_transition_dataset
from rl_training.ope.options import Options
from rl_training.runtime.fitted_critics import ResampledCritics

WARM_UP = 200
KNOBS = {"critic_lr": Options.critic_lr, "tau": Options.tau}
ROUNDS = 5
"""The fastest of so many counts."""


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    knobs = {**KNOBS, "hidden_sizes": spec["hidden_sizes"]}
    agent = BC("HalfCheetah-v5", dataset=synthetic_arrays(SHAPE), device=spec["device"])
    dataset = load_transition_dataset(synthetic_arrays(SHAPE), spaces=agent.algorithm.spaces)
    rng, episodes = np.random.default_rng(0), dataset.num_episodes
    seconds = {}
    for replicates in spec["replicates"]:
        even = np.full(episodes, 1.0 / episodes)
        counts = rng.multinomial(episodes, even, size=replicates)
        engine = ResampledCritics(
            agent.config, agent.algorithm, dataset, counts, knobs, updates=spec["total"]
        ).engine
        engine.run(WARM_UP)
        best = np.inf
        for _ in range(ROUNDS):
            _wait(spec["device"])
            began = time.perf_counter()
            engine.run(spec["updates"])
            _wait(spec["device"])
            best = min(best, (time.perf_counter() - began) / spec["updates"])
        seconds[str(replicates)] = best
    first, last = (seconds[str(x)] for x in (spec["replicates"][0], spec["replicates"][-1]))
    print(f"{1e3 * first:.2f} ms alone, {1e3 * last:.2f} ms together: {last / first:.1f} times")
    return {"seconds": seconds, "ratio": last / first}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy"))
