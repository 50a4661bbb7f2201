"""Loops: each is assembled from parts by its `build` function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.learner import load_module
from rl_training.experiment.sinks import Video
from rl_training.experiment.state import Stored
from rl_training.runtime.controls import Progress
from rl_training.runtime.engine import Engine
from rl_training.runtime.held_out import HeldOutData
from rl_training.runtime.profile import Part
from rl_training.runtime.signals import RunLink

Report = Mapping[str, float | NDArray[np.float32] | Video]
"""Scalars to log; arrays (histograms) and videos go to the loggers that support them."""


class Component(Protocol):
    """A part of a run with its own state."""

    def training_state(self) -> dict[str, Any]: ...
    def load_training_state(self, state: dict[str, Any]) -> None: ...


class ModuleState:
    """A module's buffers as a part of the checkpoint."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def training_state(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_training_state(self, state: dict[str, Any]) -> None:
        load_module(self.module, Stored(state))


class OptionalComponent:
    """A component that starts fresh if a checkpoint lacks it, as older ones do."""


class Extra:
    """A further part of a loop that may be saved, report metrics or be profiled."""

    def components(self) -> dict[str, Component]:
        return {}

    def report(self, tick: int) -> Report:
        """Metrics at `tick`, since the last report."""
        return {}

    def parts(self) -> list[Part]:
        return []


class Loop(Protocol):
    """The interface between trainer and loop."""

    progress: Progress
    engine: Engine
    link: RunLink
    unit: str
    """The unit of its clock, in words."""
    data_notes: tuple[str, ...]
    """Assumptions about its data, one sentence each."""

    held_out: HeldOutData | None
    """Held-out episodes of the data, if there are any."""
    horizon: int
    """The budget of the schedules: a larger one on resume does not change them."""

    @property
    def tick(self) -> int:
        """The clock at the last complete step: updates or environment steps."""

    @property
    def position(self) -> int:
        """The clock including an unfinished step; otherwise the same as `tick`."""

    @property
    def total(self) -> int:
        """The budget on that clock."""

    def advance(self, ticks: int) -> Metrics:
        """Advance the clock by `ticks`, or by slightly more if one step takes more; by less once
        the link's pause is due, when a step may be left unfinished.

        Returns the latest metrics, which are empty before the first update. After an
        `EnvironmentFailure` or a `StepInterrupted`, as after a return, the loop, the algorithm
        and torch's random state can be saved, and a resume continues exactly from there.
        """

    def episodes(self) -> str:
        """Summary of the latest training episodes for a progress bar; empty without any."""

    def report(self) -> Report:
        """Further metrics since the last report."""

    def components(self) -> dict[str, Component]:
        """Everything that must be saved besides the algorithm."""

    def parts(self) -> list[Part]:
        """The parts that a profile measures."""

    def close(self) -> None:
        """Release environments and processes."""


class SeedsClock(Protocol):
    """Moves the loops of several seeds together."""

    engine: Engine
    """Its learner holds all agents."""
    link: RunLink

    @property
    def loops(self) -> Sequence[Loop]:
        """One per seed."""

    def advance(self, ticks: int) -> list[Metrics]:
        """Advance every loop as `Loop.advance` does; returns the latest metrics of each."""

    def parts(self) -> list[Part]:
        """The parts that a profile measures."""
