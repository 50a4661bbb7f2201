"""Trains five seeds of one algorithm at once and tells what they came to."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.process import Request, answer_job
from rl_training import TrainConfig, learn_seeds


def work(request: Request) -> dict[str, Any]:
    values = request.spec["config"]
    values["dataset"]["path"] = request.inputs["path"]
    config = TrainConfig(**values, output_dir=str(request.scratch))
    began = time.monotonic()
    result = learn_seeds(config, request.spec["seeds"], progress=True)
    assert result.last is not None
    assert result.best is not None
    print(f"return {result.last}")
    return {
        "last": result.last.to_dict(),
        "best": result.best.to_dict(),
        "failures": {str(seed): text for seed, text in result.failures.items()},
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium", "mujoco"))
