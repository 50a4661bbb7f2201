"""d3rlpy's side of a speed comparison: builds an algorithm, then runs updates on request.

Run by the peers' Python.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.peers.d3rlpy_build import make_algorithm, make_dataset, update
from benchmarks.process import serve, versions
from benchmarks.speed.synthetic import synthetic_arrays


class Worker:
    """Answers `build` and `run`."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.algorithm: Any = None
        self.dataset: Any = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "build":
            self.dataset = make_dataset(synthetic_arrays(request["shape"]))
            device = request.get("device", False)
            self.algorithm = make_algorithm(
                request["algo"], request["knobs"], self.dataset, 0, device=device
            )
            return {"versions": versions(("d3rlpy", "torch", "numpy", "gymnasium"))}
        began = time.perf_counter(), time.process_time()
        update(self.algorithm, self.dataset, request["ticks"])
        return {
            "ticks": request["ticks"],
            "seconds": time.perf_counter() - began[0],
            "cpu_seconds": time.process_time() - began[1],
        }


if __name__ == "__main__":
    serve(Worker().handle)
