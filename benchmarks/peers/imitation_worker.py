"""The `imitation` package's side of a speed comparison: rounds of one training run.

Run by the peers' Python.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.peers.imitation_build import make_trainer
from benchmarks.process import serve, versions


class Worker:
    """Answers `build` and `run`."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.trainer: Any = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "build":
            demonstrations = request["inputs"]["demonstrations"]
            self.trainer = make_trainer(
                request["config"], request["knobs"], demonstrations, "documented", seed=0
            )
            names = ("imitation", "stable-baselines3", "torch", "numpy", "gymnasium")
            return {"versions": versions(names)}
        before = self.trainer.gen_algo.num_timesteps
        began = time.perf_counter(), time.process_time()
        self.trainer.train(request["ticks"])
        return {
            "ticks": self.trainer.gen_algo.num_timesteps - before,
            "seconds": time.perf_counter() - began[0],
            "cpu_seconds": time.process_time() - began[1],
        }


if __name__ == "__main__":
    serve(Worker().handle)
