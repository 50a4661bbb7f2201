"""How updates are executed between two ticks of the trainer: eager or compiled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.experiment.errors import ConfigError

COMPILE_FROM_UPDATES = 50_000
"""On the CPU a compiled update was seen to save up to a third of the time (BC, IQL, AWAC; CRR
and CQL gain little) and costs about 40 seconds at the start: from here on it pays."""


class Engine:
    """Draws a batch and updates, k times per call; `learned` is told of each batch after it.

    `mode` is what runs and `reason` why; a run keeps its mode when it is resumed.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        draw: Callable[[], Any],
        mode: str,
        total_updates: int,
        learned: Callable[[Any], None] | None = None,
    ) -> None:
        self.draw, self.learned = draw, learned
        self.mode, self.reason = choose_mode(mode, algorithm.update_count.device, total_updates)
        self._step = algorithm.step
        if self.mode == "compile":
            dynamo = torch._dynamo.config
            if hasattr(dynamo, "trace_autograd_ops"):
                dynamo.trace_autograd_ops = True  # `minimize` in the same graph as the rest
            self._step = torch.compile(algorithm.step, dynamic=False)

    def run(self, updates: int) -> Metrics:
        """`updates` updates; the metrics of the last one."""
        metrics: Metrics = {}
        for _ in range(updates):
            batch = self.draw()
            metrics = self._step(batch)
            if self.learned is not None:
                self.learned(batch)
        return metrics


def choose_mode(wanted: str, device: torch.device, total_updates: int) -> tuple[str, str]:
    """The mode to run and the reason for it."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if wanted == "compile" and not compiler:
        raise ConfigError(
            "engine: 'compile' needs a C++ compiler (g++ or clang++) on this machine; "
            "install one or use engine=eager"
        )
    if wanted != "auto":
        return wanted, "asked for"
    if device.type != "cpu":
        return "eager", "the only mode measured on this device"
    if total_updates < COMPILE_FROM_UPDATES:
        return "eager", f"compiling pays from {COMPILE_FROM_UPDATES:,} updates on"
    if not compiler:
        return "eager", "no C++ compiler (g++ or clang++) was found to compile with"
    return "compile", f"{total_updates:,} updates are worth the compilation"
