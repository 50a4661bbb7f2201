"""Pieces of RESULTS.md that every suite uses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

NO_VALUE = "–"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with columns of numbers to the right."""
    rows = list(rows)
    columns = zip(*rows, strict=True)
    marks = ["---:" if _are_numbers(cells) else "---" for cells in columns]
    lines = [header, marks or ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _are_numbers(cells: Sequence[str]) -> bool:
    return all(cell[:1] in "-–±0123456789" for cell in cells)


def number(value: float | None, digits: int = 0) -> str:
    return NO_VALUE if value is None else f"{value:,.{digits}f}"


def mean(values: Sequence[float], digits: int = 0) -> str:
    return number(fmean(values), digits) if values else NO_VALUE


def listed(values: Sequence[float], digits: int = 0) -> str:
    return ", ".join(number(value, digits) for value in values) or NO_VALUE


def seed_columns(values: Sequence[float], digits: int = 0) -> list[str]:
    """Mean, every seed, and half of the interval of the mean."""
    half = half_interval(values)
    interval = NO_VALUE if half is None else f"± {number(half, digits)}"
    return [mean(values, digits), listed(values, digits), interval]


def half_interval(values: Sequence[float]) -> float | None:
    """Half the width of Student's 95 % interval of the mean; None where one seed says nothing."""
    freedom = len(values) - 1
    if freedom < 1:
        return None
    return STUDENT[min(freedom, len(STUDENT)) - 1] * stdev(values) / math.sqrt(len(values))


STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's distribution with 1, 2, ... degrees of freedom; the last one is
taken for more, which makes intervals a little too wide."""
SEED_HEADER = ("mean", "seeds", "± 95 %")
INTERVAL = (
    "*± 95 %* is half the width of Student's 95 % interval of the mean over seeds: wide for two or "
    "three seeds, and none for one."
)
