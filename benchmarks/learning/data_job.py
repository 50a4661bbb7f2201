"""What the data themselves are: mean episode return and mean state of named data sets."""

from __future__ import annotations

from typing import Any

from benchmarks.process import Request, answer_job
from rl_training import load_transition_dataset


def work(request: Request) -> dict[str, Any]:
    means = {}
    for name in request.spec["datasets"]:
        dataset = load_transition_dataset(name)
        returns = dataset.episode_returns()
        means[name] = {
            "return_mean": float(returns.mean()),
            "episodes": len(returns),
            "mean_state": [round(float(x), 4) for x in dataset.observations.mean(0)],
        }
    print(", ".join(f"{name} {value['return_mean']:,.1f}" for name, value in means.items()))
    return means


if __name__ == "__main__":
    answer_job(work, ("rl-training", "numpy", "gymnasium"))
