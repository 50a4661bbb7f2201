"""Ranges in which a knob is searched, as annotations beside its type."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from pydantic.fields import FieldInfo

from rl_training.experiment.errors import ConfigError


@dataclass(frozen=True)
class Between:
    """Numbers between two ends, evenly or on a logarithmic scale."""

    low: float
    high: float
    by_default: bool = True
    """Searched without being named. Knobs that change the time of a run are not."""
    logarithmic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        usable = math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high
        if not usable or (self.logarithmic and self.low <= 0.0):
            raise ValueError(
                f"{self}: expected two finite numbers, the smaller one first, and above 0 for log"
            )

    def with_value(self, value: Any) -> Self | None:
        """Extended to hold a value; None if that is impossible."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or (self.logarithmic and value <= 0):
            return None
        return replace(self, low=min(self.low, value), high=max(self.high, value))

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()}({self.low:g}, {self.high:g})"


class Linear(Between):
    """Evenly between two numbers."""


class Log(Between):
    """Evenly between the logarithms of two numbers."""

    logarithmic = True


@dataclass(frozen=True)
class Choices:
    """One of several values."""

    values: tuple[Any, ...]
    by_default: bool = True

    def __post_init__(self) -> None:
        texts = [json.dumps(value) for value in self.values]
        if len(texts) < 2 or len(set(texts)) < len(texts):
            raise ValueError(f"{self}: expected at least two values, each once")

    def with_value(self, value: Any) -> Choices:
        texts = [json.dumps(one) for one in self.values]
        return self if json.dumps(value) in texts else replace(self, values=(*self.values, value))

    def __str__(self) -> str:
        return json.dumps(self.values)


Range = Linear | Log | Choices


def search_range(field: FieldInfo) -> Range | None:
    """The range that stands with a knob."""
    return next((m for m in field.metadata if isinstance(m, (Linear, Log, Choices))), None)


def parse_range(text: str, given: str) -> Range:
    """`log(1e-5, 1e-2)`, `linear(0.9, 1)` or a list such as `[64, 128]`."""
    import yaml

    form = re.fullmatch(r"\s*(log|linear)\s*\(([^,()]+),([^,()]+)\)\s*", text)
    try:
        if form:
            kind = Log if form[1] == "log" else Linear
            return kind(float(form[2]), float(form[3]))
        values = yaml.safe_load(text)
        if isinstance(values, list):
            return Choices(tuple(values))
    except (ValueError, TypeError, RecursionError, yaml.YAMLError):
        pass
    raise ConfigError(
        f"{given}: '{text}' is no range; expected log(LOW, HIGH), linear(LOW, HIGH) with LOW below "
        "HIGH, or a list of at least two values such as [64, 128]"
    )
