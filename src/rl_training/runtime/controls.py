"""Schedules and intervals: pure functions of configuration and progress.

Only early stopping has state, which is part of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rl_training.experiment.config import EarlyStoppingConfig, Schedule
from rl_training.experiment.state import Stored

LR_GRID = 1000
"""Learning-rate schedules change in this many steps over their horizon, so that the rate of an
update never depends on how updates are grouped between two ticks."""


@dataclass
class Progress:
    """The only counters of a run."""

    updates: int = 0
    env_steps: int = 0
    episodes: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    def load(self, values: Mapping[str, int] | Stored) -> None:
        """Restore the values of `to_dict`."""
        stored = Stored(values, "progress")
        for name in self.to_dict():
            setattr(self, name, stored.whole(name))

    training_state, load_training_state = to_dict, load


def crossed(before: int, now: int, every: int) -> bool:
    """True when a multiple of `every` lies in (before, now]; 0 means never."""
    return every > 0 and now // every > before // every


def last_crossing(total: int, stride: int, every: int) -> int:
    """The last tick at which a clock with steps of `stride` up to `total` crosses a multiple of
    `every`; 0 for none."""
    end = -(-total // stride) * stride
    multiple = end // every * every
    return -(-multiple // stride) * stride


def until_next(now: int, every: int) -> int | None:
    """Ticks from `now` to the next multiple of `every`; None for never."""
    return every - now % every if every > 0 else None


def owed_updates(ratio: float, warmup: int, env_steps: int, updates_done: int) -> int:
    """Updates due so far minus updates done: exact for fractional ratios and after a resume."""
    return max(0, int(ratio * max(0, env_steps - warmup)) - updates_done)


def schedule_factor(schedule: Schedule, tick: int, total: int) -> float:
    """The schedule's factor at `tick`, constant within each step of its grid."""
    step = lr_grid_step(schedule, total)
    return schedule.at((tick // step) * step, total)


def lr_grid_step(schedule: Schedule, total: int) -> int:
    """Ticks between two changes of a scheduled learning rate; 0 when it never changes."""
    if schedule.is_constant:
        return 0
    return max(1, (schedule.over or total) // LR_GRID)


class EarlyStopping:
    """Counts evaluations without improvement."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self.best: float | None = None
        self.last: float | None = None
        """Score of the last evaluation, larger is better."""
        self.evaluations_without_improvement = 0

    def observe(self, metrics: dict[str, float]) -> str | None:
        """Record one evaluation; returns the reason to stop, or None."""
        c = self.config
        sign = 1.0 if c.mode == "max" else -1.0
        value = sign * metrics[c.metric]
        if not math.isfinite(value):
            value = -math.inf
        if self.best is None or value > self.best + c.min_delta:
            self.best = value
            self.evaluations_without_improvement = 0
        else:
            self.evaluations_without_improvement += 1
        self.last = value
        return self.reason()

    def reason(self) -> str | None:
        """The reason to stop after the evaluations so far, or None; also for a resumed run."""
        c = self.config
        sign = 1.0 if c.mode == "max" else -1.0
        if self.best is None or self.last is None:
            return None
        if c.target is not None and self.last >= sign * c.target:
            return f"early stopping: {c.metric} reached the target {c.target:g}"
        if c.patience is not None and self.evaluations_without_improvement >= c.patience:
            return (
                f"early stopping: {c.metric} has not improved for {c.patience} "
                f"evaluation{'s' if c.patience > 1 else ''} (best {sign * self.best:.4g})"
            )
        return None

    def training_state(self) -> dict[str, Any]:
        without = self.evaluations_without_improvement
        return {"best": self.best, "last": self.last, "without": without}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "early_stopping")
        self.best = None if stored["best"] is None else stored.number("best")
        # older checkpoints store only the best
        last = stored.get("last", self.best)
        self.last = None if last is None else stored.number("last" if "last" in stored else "best")
        self.evaluations_without_improvement = stored.whole("without")
