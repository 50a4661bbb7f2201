"""Parts of loops that train several seeds at once in worlds on the device.

Every seed is a run of its own, with its worlds, counters and part of the checkpoint; only the steps
and the updates are shared. A diverged seed goes on beside the others, unheard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_training.algorithms.functional import Metrics
from rl_training.experiment.state import Stored
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Report
from rl_training.runtime.loops.device import DeviceExperience
from rl_training.runtime.profile import Part


class WorldsClock(Protocol):
    """What the loop of one seed needs of the clock that moves all."""

    engine: Engine
    experience: DeviceExperience
    total: int

    @property
    def begun(self) -> int:
        """Environment steps of each seed that belong to an unfinished step of the clock."""

    def advance(self, ticks: int) -> list[Metrics]: ...
    def parts(self) -> list[Part]: ...
    def components_of(self, run: int) -> dict[str, Component]: ...


class SeedLoop:
    """The loop of one seed; all are moved by one clock."""

    unit = "env steps"
    held_out = None
    data_notes: tuple[str, ...] = ()

    def __init__(self, clock: WorldsClock, run: int) -> None:
        self.clock, self.run, self.engine = clock, run, clock.engine
        self.link, self.total, self.horizon = clock.engine.link, clock.total, clock.total
        self._own = clock.experience.runs[run]
        self.progress = self._own.progress

    @property
    def tick(self) -> int:
        return self.position - self.clock.begun

    @property
    def position(self) -> int:
        return self.progress.env_steps

    def advance(self, ticks: int) -> Metrics:
        """Advance all seeds."""
        return self.clock.advance(ticks)[self.run]

    def episodes(self) -> str:
        return str(self._own.episodes)

    def report(self) -> Report:
        return self._own.episodes.report()

    def components(self) -> dict[str, Component]:
        return {**self._own.components(), **self.clock.components_of(self.run)}

    def parts(self) -> list[Part]:
        return self.clock.parts()

    def close(self) -> None:
        self.clock.experience.close()


class StackState:
    """All agents of a learner, to undo an interrupted update."""

    def __init__(self, stack: VmapLearner) -> None:
        self._stack = stack

    def training_state(self) -> dict[str, Any]:
        return {"tensors": self._stack.tensors()}

    def load_training_state(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for own, value in zip(self._stack.tensors(), state["tensors"], strict=True):
                own.copy_(value)


class BuffersOfRun:
    """One run's part of a module's buffers, which have a last axis of runs; saved as the buffers
    of a run of its own."""

    def __init__(self, module: torch.nn.Module, run: int) -> None:
        self._module, self._run = module, run

    def _own(self) -> dict[str, Tensor]:
        return {name: value[..., self._run] for name, value in self._module.state_dict().items()}

    def training_state(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self._own().items()}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored, own = Stored(state), self._own()
        found = {name: stored.tensor_like(name, value) for name, value in own.items()}
        for name, value in own.items():
            value.copy_(found[name])


def by_seed(metrics: Metrics, runs: int) -> list[Metrics]:
    """The metrics of each run, from those with a first axis of runs."""
    return [{name: value[i] for name, value in metrics.items()} for i in range(runs)]


def flat(x: Tensor) -> Tensor:
    """(runs * worlds, ...) of (runs, worlds, ...)."""
    return x.flatten(0, 1)


def only_finite(action: Tensor) -> Tensor:
    """Actions of which those of a diverged policy are 0, so that its worlds break nothing."""
    if not action.is_floating_point():
        return action
    return torch.where(torch.isfinite(action), action, 0.0)


def common_horizon(loops: Sequence[SeedLoop]) -> int:
    """The budget of the schedules: of seeds that diverged before a resume it is not known."""
    return min(loop.horizon for loop in loops)
