"""Stable-Baselines3's side of a speed comparison: one `learn`, taken on step by step.

Run by the peers' Python.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.peers.sb3_build import make_model
from benchmarks.process import serve, versions


class Pausing(BaseCallback):
    """Stops `learn` between two rollouts, its updates done, until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.until = 0
        self.go, self.waiting = threading.Semaphore(0), threading.Semaphore(0)

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.until:
            self.waiting.release()
            self.go.acquire()

    def _on_step(self) -> bool:
        return True


class Worker:
    """Answers `build` and `run`."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model: Any = None
        self.pausing = Pausing()

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "build":
            self.model = make_model(request["config"], seed=0)
            total = request["config"]["total_timesteps"]
            self.learning = threading.Thread(target=self._learn, args=(total,), daemon=True)
            self.learning.start()
            self.pausing.waiting.acquire()
            names = ("stable-baselines3", "sb3-contrib", "torch", "numpy", "gymnasium")
            return {"versions": versions(names)}
        if not self.learning.is_alive():
            raise RuntimeError("`learn` has ended, by an error or with its budget spent")
        before = self.model.num_timesteps
        self.pausing.until = before + request["ticks"]
        began = time.perf_counter(), time.process_time()
        self.pausing.go.release()
        self.pausing.waiting.acquire()
        seconds = time.perf_counter() - began[0], time.process_time() - began[1]
        ticks = self.model.num_timesteps - before
        if not ticks:
            raise RuntimeError("`learn` has ended by an error")
        return {"ticks": ticks, "seconds": seconds[0], "cpu_seconds": seconds[1]}

    def _learn(self, total: int) -> None:
        try:
            self.model.learn(total, callback=self.pausing, log_interval=None)
        finally:
            self.pausing.waiting.release()


if __name__ == "__main__":
    serve(Worker().handle)
