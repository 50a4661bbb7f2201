"""Loops: each is a step and little else, put together from parts by its `build` function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.functional import Metrics
from rl_training.experiment.sinks import Video
from rl_training.runtime.controls import Progress
from rl_training.runtime.engine import Engine
from rl_training.runtime.held_out import HeldOutData
from rl_training.runtime.profile import Part
from rl_training.runtime.signals import RunLink

Report = Mapping[str, float | NDArray[np.float32] | Video]
"""Numbers to log; arrays (histograms) and videos are for the loggers that show them."""


class Component(Protocol):
    """Whatever remembers something owns its state.

    One with a true attribute `optional` is as new where a checkpoint has nothing of it.
    """

    def training_state(self) -> dict[str, Any]: ...
    def load_training_state(self, state: dict[str, Any]) -> None: ...


class Extra:
    """Something beside a loop's own parts that is saved, reports or takes time; each only what it
    has."""

    def components(self) -> dict[str, Component]:
        return {}

    def report(self, tick: int) -> Report:
        """What it has to log at `tick`, since the last report."""
        return {}

    def parts(self) -> list[Part]:
        return []


class Loop(Protocol):
    """What the trainer needs of a loop."""

    progress: Progress
    engine: Engine
    link: RunLink
    unit: str
    """What its clock counts, in words."""
    data_notes: tuple[str, ...]
    """What had to be assumed about the data it learns from, one sentence each."""

    held_out: HeldOutData | None
    """Episodes of the data that no update learns from, where some are set aside."""
    horizon: int
    """The budget that schedules were made for: a larger one on resume does not change them."""

    @property
    def tick(self) -> int:
        """The clock, as of the last complete step: updates or environment steps."""

    @property
    def position(self) -> int:
        """The clock with what is done of a step that has begun; else the same as `tick`."""

    @property
    def total(self) -> int:
        """The budget on that clock."""

    def advance(self, ticks: int) -> Metrics:
        """Move the clock on by `ticks`, or by the few more that one step may take; by less, or
        not at all, once the link's pause is due: then a step may be left half done.

        The newest metrics, which are empty while nothing has been learned. After an
        `EnvironmentFailure` or a `StepInterrupted`, as after a return, the loop, the algorithm
        and torch's random streams can be saved, and a resume goes on exactly from there.
        """

    def episodes(self) -> str:
        """How the newest training episodes went, for a progress bar; empty without any."""

    def report(self) -> Report:
        """What else there is to log, since the last report."""

    def components(self) -> dict[str, Component]:
        """Everything beside the algorithm that has to be saved."""

    def parts(self) -> list[Part]:
        """What takes time in it, for a profile."""

    def close(self) -> None:
        """Let go of what the loop holds: environments, processes."""
