"""Pieces of RESULTS.md that every suite uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

NO_VALUE = "–"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with columns of numbers to the right."""
    rows = list(rows)
    columns = zip(*rows, strict=True)
    marks = ["---:" if _are_numbers(cells) else "---" for cells in columns]
    lines = [header, marks or ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _are_numbers(cells: Sequence[str]) -> bool:
    return all(cell[:1] in "-–0123456789" for cell in cells)


def number(value: float | None, digits: int = 0) -> str:
    return NO_VALUE if value is None else f"{value:,.{digits}f}"


def mean(values: Sequence[float], digits: int = 0) -> str:
    return number(fmean(values), digits) if values else NO_VALUE


def listed(values: Sequence[float], digits: int = 0) -> str:
    return ", ".join(number(value, digits) for value in values) or NO_VALUE


def seed_columns(values: Sequence[float], digits: int = 0) -> list[str]:
    """Mean, every seed, lowest and highest."""
    lowest, highest = (min(values), max(values)) if values else (None, None)
    ends = (number(end, digits) for end in (lowest, highest))
    return [mean(values, digits), listed(values, digits), *ends]


SEED_HEADER = ("mean", "seeds", "min", "max")
