"""What the data themselves are worth: mean episode return of named data sets."""

from __future__ import annotations

from typing import Any

from benchmarks.process import Request, answer_job
from rl_training import load_transition_dataset


def work(request: Request) -> dict[str, Any]:
    means = {}
    for name in request.spec["datasets"]:
        returns = load_transition_dataset(name).episode_returns()
        means[name] = {"return_mean": float(returns.mean()), "episodes": len(returns)}
    print(", ".join(f"{name} {value['return_mean']:,.1f}" for name, value in means.items()))
    return means


if __name__ == "__main__":
    answer_job(work, ("rl-training", "numpy", "gymnasium"))
