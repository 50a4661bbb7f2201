"""Confidence intervals, and statistics over several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A number and its confidence interval; a format is that of each of the three numbers, one
    digit after the point by default."""

    value: float
    low: float
    high: float

    def __format__(self, numbers: str) -> str:
        numbers = numbers or (",.1f" if abs(self.value) >= 10.0 else ".3g")
        return f"{self.value:{numbers}} [{self.low:{numbers}}, {self.high:{numbers}}]"

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True)
class Summary:
    """Scores of several seeds: mean and interquartile mean with 95% intervals.

    The interquartile mean excludes the lowest and the highest quarter of the seeds (rounded
    down, as in Agarwal et al. 2021), so that single outliers do not affect it.
    """

    scores: tuple[float, ...]
    mean: Interval
    iqm: Interval

    @classmethod
    def of(cls, scores: Sequence[float]) -> Summary:
        values = np.asarray(scores, dtype=np.float64)
        # reproducible intervals
        rng = np.random.default_rng(0)
        drawn = values[rng.integers(len(values), size=(RESAMPLES, len(values)))]
        return cls(
            tuple(values.tolist()),
            bootstrap_interval(float(values.mean()), drawn.mean(1)),
            bootstrap_interval(float(interquartile_mean(values)), interquartile_mean(drawn)),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        count = len(self.scores)
        seeds = f"{count} seed{'s' if count > 1 else ''}"
        return f"mean {self.mean}, interquartile mean {self.iqm} over {seeds} (95% intervals)"


def interquartile_mean(values: np.ndarray[Any, Any]) -> Any:
    """Mean over the last axis without its lowest and highest quarter."""
    cut = values.shape[-1] // 4
    ordered = np.sort(values, axis=-1)
    return ordered[..., cut : values.shape[-1] - cut].mean(-1)


def bootstrap_interval(value: float, resampled: np.ndarray[Any, Any]) -> Interval:
    """`value` with the percentile interval of its bootstrap."""
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(resampled, [tail, 100.0 - tail])
    return Interval(value, float(low), float(high))
