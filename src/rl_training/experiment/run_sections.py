"""Sections of a run beside its data: schedules, early stopping, loggers; the metrics they name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rl_training.experiment.errors import did_you_mean
from rl_training.experiment.section import (
    Count,
    Finite,
    Fraction,
    NonNegative,
    Section,
)
from rl_training.experiment.trust import WRAPPERS


class Schedule(Section):
    """A factor between 0 and 1 as a function of the fraction of the budget spent."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up."""
    warmup: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Fraction of the horizon over which the factor rises from 0 to 1."""
    end: Fraction = 0.0
    """Factor at the end of a linear or cosine schedule."""
    over: Count | None = None
    """Horizon in updates (offline) or environment steps (online); the run's budget by default."""
    optimizers: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    """Optimisers that follow the schedule; all by default."""

    @property
    def is_constant(self) -> bool:
        return self.kind == "constant" and self.warmup == 0.0

    def at(self, tick: int, horizon: int) -> float:
        """The factor at `tick`, over the schedule's own horizon or this one."""
        return self(tick / (self.over or horizon))

    def __call__(self, fraction: float) -> float:
        fraction = min(max(fraction, 0.0), 1.0)
        if fraction < self.warmup:
            return fraction / self.warmup
        position = (fraction - self.warmup) / (1.0 - self.warmup)
        if self.kind == "constant":
            return 1.0
        if self.kind == "linear":
            shape = 1.0 - position
        else:
            shape = 0.5 * (1.0 + math.cos(math.pi * position))
        return self.end + (1.0 - self.end) * shape


Better = Literal["max", "min"]

RETURN_METRICS: dict[str, Better] = {
    "eval/return_mean": "max",
    "eval/return_std": "min",
    "eval/return_min": "max",
    "eval/return_max": "max",
    "eval/length_mean": "max",
    "eval/success_rate": "max",
    "eval/normalized_mean": "max",
}
"""Metrics of an evaluation in the environment, and whether larger or smaller is better; the
success rate only if the environment reports it, and the normalised mean return only if scores are
published for the task."""
OFFLINE_METRICS: dict[str, Better] = {
    "offline/td_error": "min",
    "offline/log_likelihood": "max",
    "offline/action_agreement": "max",
    "offline/action_gap": "max",
    "offline/value_start": "max",
    "offline/data_distance": "min",
    "offline/fitted_value": "max",
}
"""Metrics of an evaluation on held-out episodes, likewise; the fitted value only where a run
depends on it."""
EVAL_METRICS: dict[str, Better] = {**RETURN_METRICS, **OFFLINE_METRICS}


def known_metric(name: str) -> str:
    """Return the name of a metric; refuse a name that no evaluation reports."""
    if name not in EVAL_METRICS:
        raise ValueError(
            f"unknown metric '{name}'{did_you_mean(name, EVAL_METRICS)}; "
            f"known are {', '.join(EVAL_METRICS)}"
        )
    return name


def folder_name(name: str) -> str:
    """Return the name of one folder; refuse what is none, such as a path."""
    if not name.strip() or name in (".", "..") or not name.isprintable() or set(name) & set("/\\:"):
        raise ValueError(f"expected the name of a folder, without slashes, got {name!r}")
    if len(name.encode()) > 200:
        raise ValueError("expected the name of a folder, at most 200 bytes long")
    return name


class EarlyStoppingConfig(Section):
    """Stop when an evaluated metric no longer improves, or is good enough."""

    metric: str = "eval/return_mean"
    """The evaluation metric."""
    mode: Better = "max"
    """Whether larger or smaller is better; by default as fits the metric."""
    patience: Count | None = None
    """Evaluations without improvement after which the run stops."""
    min_delta: NonNegative = 0.0
    """Smallest change that counts as an improvement."""
    target: Finite | None = None
    """Stop as soon as the metric is at least (at most, in mode min) this good."""

    @model_validator(mode="before")
    @classmethod
    def _mode_of_the_metric(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(metric := values.get("metric"), str):
            return {"mode": EVAL_METRICS.get(metric, "max"), **values}
        return values

    @model_validator(mode="after")
    def _can_stop(self) -> Self:
        known_metric(self.metric)
        if self.patience is None and self.target is None:
            raise ValueError("give 'patience', 'target' or both")
        return self


LOGGERS = ("tensorboard", "csv", "wandb", "mlflow")


def names_a_class(kind: str) -> bool:
    """Whether a text is like package.module:Class."""
    module, colon, name = kind.partition(":")
    parts = (*module.split("."), *name.split("."))
    return bool(colon) and all(part.isidentifier() for part in parts)


class WrapperConfig(Section):
    """A wrapper around every environment of a run."""

    kind: str
    """The class, or a function of an environment that returns one, as package.module:Class."""
    options: dict[str, Any] = {}
    """Keyword arguments of the wrapper."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, values: Any) -> Any:
        if hasattr(values, "__qualname__"):  # in Python the class itself may stand for its name
            values = f"{values.__module__}:{values.__qualname__}"
        return {"kind": values} if isinstance(values, str) else values

    @model_validator(mode="after")
    def _is_a_name(self) -> Self:
        if not names_a_class(self.kind):
            raise ValueError(
                f"'{self.kind}' names no wrapper; write it as package.module:Class, such as "
                "gymnasium.wrappers:ClipReward"
            )
        try:
            json.dumps(self.options)
        except (TypeError, ValueError):
            raise ValueError(
                f"the options of '{self.kind}' cannot be written to a file; give plain values, or "
                "write a wrapper of your own that needs none"
            ) from None
        return self


class _Wrapping(Section):
    wrappers: Annotated[tuple[WrapperConfig, ...], Field(strict=False)] = ()


def parsed_wrappers(values: Any) -> tuple[WrapperConfig, ...]:
    """The wrappers that a list of names, classes and sections gives."""
    return _Wrapping.parse({WRAPPERS: values}).wrappers


def with_wrappers(
    env_kwargs: Mapping[str, Any], wrappers: Sequence[WrapperConfig]
) -> dict[str, Any]:
    """Arguments of an environment with the wrappers around it."""
    if not wrappers:
        return dict(env_kwargs)
    return {**env_kwargs, WRAPPERS: [wrapper.model_dump(mode="json") for wrapper in wrappers]}


class LoggerConfig(Section):
    """A further place where metrics are written."""

    kind: str
    """tensorboard, csv, wandb, mlflow, or your own class as package.module:Class."""
    options: dict[str, Any] = {}
    """Options of the logger, such as the project of wandb."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, values: Any) -> Any:
        return {"kind": values} if isinstance(values, str) else values

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if not names_a_class(self.kind) and self.kind not in LOGGERS:
            raise ValueError(
                f"unknown logger '{self.kind}'{did_you_mean(self.kind, LOGGERS)}; known are "
                f"{', '.join(LOGGERS)}, and your own class as package.module:Class"
            )
        return self
