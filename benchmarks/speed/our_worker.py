"""Our side of a speed comparison: builds a loop, then moves its clock on request.

It also measures older sources of the package, so it imports only names that they have as well.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.process import serve, versions
from benchmarks.speed.our_agent import make_agent, make_dataset
from rl_training import ManagedAlgorithm, TrainConfig
from rl_training.experiment.config import load_config
from rl_training.runtime import build


class Clock(Protocol):
    """What is measured: a training loop, or predictions."""

    @property
    def tick(self) -> int: ...

    def advance(self, ticks: int) -> object: ...


class Predictions:
    """Predicts the action for one observation; every tick is a call."""

    def __init__(self, agent: ManagedAlgorithm, obs_dim: int) -> None:
        self.agent, self.tick = agent, 0
        self.observation = np.random.default_rng(0).standard_normal(obs_dim).astype(np.float32)

    def advance(self, ticks: int) -> None:
        for _ in range(ticks):
            self.agent.predict(self.observation)
        self.tick += ticks


class Worker:
    """Answers `build` and `run`.

    What is built is a configuration (`config`), a packaged one with changes (`packaged`), or an
    algorithm on the synthetic data, of which `predict` measures the predictions.
    """

    def __init__(self) -> None:
        self.scope = ExitStack()
        self.clock: Clock | None = None
        self.on_gpu = False

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "build":
            return self._build(request)
        assert self.clock is not None
        before, began = self.clock.tick, (time.perf_counter(), time.process_time())
        self.clock.advance(request["ticks"])
        if self.on_gpu:
            torch.cuda.synchronize()
        return {
            "ticks": self.clock.tick - before,
            "seconds": time.perf_counter() - began[0],
            "cpu_seconds": time.process_time() - began[1],
        }

    def _build(self, request: dict[str, Any]) -> dict[str, Any]:
        changes = request.get("changes", {})
        if "config" in request:
            agent = ManagedAlgorithm(TrainConfig(**request["config"]))
        elif "packaged" in request:
            agent = ManagedAlgorithm(load_config(request["packaged"]).replace(**changes))
        else:
            agent = make_agent(request["algo"], request["shape"], request["knobs"], **changes)
        self.on_gpu = agent.algorithm.update_count.device.type == "cuda"
        # as `learn` does
        self.scope.enter_context(build.run_scope(agent.config, agent.algorithm.spaces))
        if request.get("predict"):
            self.clock, engine = Predictions(agent, request["shape"]["obs_dim"]), None
        else:
            data = make_dataset(agent, request["shape"]) if "shape" in request else None
            loop = build.build_loop(agent.config, agent.algorithm, data)
            self.clock, engine = loop, getattr(loop, "engine", None)
        return {
            "knobs": agent.config.algo_kwargs,
            "engine": getattr(engine, "mode", "eager"),
            "versions": versions(("rl-training", "torch", "numpy", "gymnasium")),
        }


if __name__ == "__main__":
    # As `rl-training train` does; the first version did so in `run_scope`.
    getattr(build, "keep_freed_memory", lambda: None)()
    serve(Worker().handle)
