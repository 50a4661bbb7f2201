"""Our side of a speed comparison: builds a loop, then moves its clock on request."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from benchmarks.process import serve, versions
from benchmarks.speed.our_agent import make_agent, make_dataset
from rl_training import ManagedAlgorithm, TrainConfig
from rl_training.runtime.build import build_loop, keep_freed_memory, run_scope
from rl_training.runtime.loops import Loop


class Worker:
    """Answers `build`, of a configuration or on the synthetic data, and `run`."""

    def __init__(self) -> None:
        self.scope = ExitStack()
        self.loop: Loop | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "build":
            return self._build(request)
        assert self.loop is not None
        before, began = self.loop.tick, (time.perf_counter(), time.process_time())
        self.loop.advance(request["ticks"])
        return {
            "ticks": self.loop.tick - before,
            "seconds": time.perf_counter() - began[0],
            "cpu_seconds": time.process_time() - began[1],
        }

    def _build(self, request: dict[str, Any]) -> dict[str, Any]:
        if "config" in request:
            agent = ManagedAlgorithm(TrainConfig(**request["config"]))
        else:
            agent = make_agent(request["algo"], request["shape"], request["knobs"])
        self.scope.enter_context(run_scope(agent.config, agent.algorithm.spaces))  # as `learn` does
        dataset = None if "config" in request else make_dataset(agent, request["shape"])
        self.loop = build_loop(agent.config, agent.algorithm, dataset)
        engine = getattr(self.loop, "engine", None)
        return {
            "knobs": agent.config.algo_kwargs,
            "engine": getattr(engine, "mode", "eager"),
            "versions": versions(("rl-training", "torch", "numpy", "gymnasium")),
        }


if __name__ == "__main__":
    keep_freed_memory()  # as `rl-training train` does
    serve(Worker().handle)
