"""Our side of a speed comparison: builds a loop, then runs updates on request."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from benchmarks.process import serve, versions
from benchmarks.speed.our_agent import make_agent, make_loop
from rl_training.runtime.build import run_scope
from rl_training.runtime.loops import Loop


class Worker:
    """Answers `build` and `run`."""

    def __init__(self) -> None:
        self.scope = ExitStack()
        self.loop: Loop | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "build":
            agent = make_agent(request["algo"], request["shape"], request["knobs"])
            self.scope.enter_context(run_scope(agent.config))  # as `learn` does
            self.loop = make_loop(agent, request["shape"])
            engine = getattr(self.loop, "engine", None)
            return {
                "knobs": agent.config.algo_kwargs,
                "engine": getattr(engine, "mode", "eager"),
                "versions": versions(("rl-training", "torch", "numpy", "gymnasium")),
            }
        assert self.loop is not None
        began = time.perf_counter(), time.process_time()
        self.loop.advance(request["updates"])
        return {
            "seconds": time.perf_counter() - began[0],
            "cpu_seconds": time.process_time() - began[1],
        }


if __name__ == "__main__":
    serve(Worker().handle)
