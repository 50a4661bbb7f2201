"""The header of checkpoints, when one is due, and what a resume may not change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.config import Schedule, Section, TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.tracking import versions


def checkpoint_header(config: TrainConfig, algorithm: Algorithm) -> dict[str, Any]:
    """The header of a checkpoint: what it was made by and for."""
    return {
        "algo": config.algo,
        "config": config.to_dict(),
        "config_hash": config.hash(),
        "spaces": algorithm.spaces.to_dict(),
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


BUDGETS = ("total_updates", "total_epochs", "total_timesteps")


def refuse_moved_schedules(old: Mapping[str, Any], config: TrainConfig) -> None:
    """Refuse another budget on resume if the horizon of a schedule is the budget."""
    key = next((key for key in BUDGETS if old[key] != getattr(config, key)), None)
    if key is None:
        return
    sections = {"lr_schedule": config.lr_schedule, **schedules_of(config.params, "algo_kwargs")}
    for name, schedule in sections.items():
        if not (schedule.is_constant or schedule.over):
            raise ConfigError(
                f"{key}: changing the budget on resume would change {name}, whose horizon is the "
                f"budget; keep {key}={old[key]}, or start a run with {name}.over set"
            )


def schedules_of(section: Section, prefix: str) -> dict[str, Schedule]:
    """Every schedule in a section and its subsections, by key."""
    found: dict[str, Schedule] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Schedule):
            found[f"{prefix}.{name}"] = value
        elif isinstance(value, Section):
            found |= schedules_of(value, f"{prefix}.{name}")
    return found


class Autosave:
    """When a checkpoint is due by the clock on the wall: every so many minutes, and so rarely
    that saving takes no more than a twentieth of the time."""

    MOST_OF_THE_TIME = 0.05

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock = 60.0 * minutes, clock
        self._next = clock() + self.seconds

    def due(self) -> bool:
        return self.seconds > 0.0 and self._clock() >= self._next

    def saved(self, took: float) -> None:
        """Restart the clock after a checkpoint was written."""
        self._next = self._clock() + max(self.seconds, took / self.MOST_OF_THE_TIME)
