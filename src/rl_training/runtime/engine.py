"""How updates are executed between two ticks of the trainer: eager or compiled."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.data.batch import Batch
from rl_training.experiment.errors import ConfigError


class Engine:
    """Draws a batch and updates, k times per call.

    `mode` is what runs, `reason` why it was chosen.
    """

    def __init__(self, algorithm: Algorithm, draw: Callable[[], Batch], mode: str) -> None:
        self.algorithm = algorithm
        self.draw = draw
        self.mode, self.reason = _choose(mode)
        self._step = algorithm.step
        if self.mode == "compile":
            self._step = torch.compile(algorithm.step, dynamic=False)

    def run(self, updates: int) -> Metrics:
        """`updates` updates; the metrics of the last one."""
        metrics: Metrics = {}
        for _ in range(updates):
            metrics = self._step(self.draw())
        return metrics


def _choose(mode: str) -> tuple[str, str]:
    if mode == "compile":
        if not (shutil.which("g++") or shutil.which("clang++")):
            raise ConfigError(
                "engine: 'compile' needs a C++ compiler (g++ or clang++) on this machine; "
                "install one or use engine=eager"
            )
        return mode, "asked for"
    return "eager", "asked for" if mode == "eager" else "fastest without a long start"
