"""Figures of RESULTS.md, drawn where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[Sequence[float], Sequence[float]]
"""Clock (updates or environment steps) and returns of one run."""

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Distinct for colour-blind readers too; the last one is grey, for the baseline."""


STYLES = ("--", ":", "-.")

Marks = Mapping[str, float]
"""Returns to compare with, by their names in words."""


class Other(NamedTuple):
    """A curve that others report."""

    name: str
    """In words."""
    curve: Curve


class Interval(NamedTuple):
    """A mean and the ends of its confidence interval."""

    value: float
    low: float
    high: float


def draw_intervals(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[Interval]]],
    kinds: Sequence[str],
    title: str,
    marks: Mapping[str, Marks],
) -> bool:
    """A panel per task with a row per name and a dot with its interval per kind.

    `marks` are lines for comparison, by task. False, and no file, without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rows = max(len(panel) for panel in panels.values())
    figure = Figure(figsize=(4.8 * len(panels), 0.4 * rows + 3.0), dpi=120, layout="constrained")
    for position, (task, panel) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), position)
        for style, (name, value) in zip(STYLES, marks.get(task, {}).items(), strict=False):
            axes.axvline(value, color=COLORS[-1], linestyle=style, label=f"{name}: {value:,.0f}")
        for number, kind in enumerate(kinds):
            found = [entry[number] for entry in panel.values()]
            values = [interval.value for interval in found]
            ends = [
                [interval.value - interval.low for interval in found],
                [interval.high - interval.value for interval in found],
            ]
            heights = [row + 0.2 * (number - (len(kinds) - 1) / 2) for row in range(len(found))]
            axes.errorbar(
                values, heights, xerr=ends, fmt="o", color=COLORS[number], markersize=4, label=kind
            )
        axes.set_yticks(range(len(panel)), list(panel))
        axes.invert_yaxis()
        axes.set(title=task, xlabel="return, mean and 95% interval")
        axes.grid(alpha=0.25)
        _legend_below(axes, 1)
    figure.suptitle(title, fontsize="medium")
    _save(figure, path)
    return True


def _legend_below(axes: Axes, columns: int) -> None:
    """Where it covers no point."""
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=columns,
        fontsize="small",
        frameon=False,
    )


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date or version inside, so that equal numbers give an equal file.
    figure.savefig(path, metadata={"Software": None})


def draw_curves(
    path: Path,
    curves: Mapping[str, Sequence[Curve]],
    title: str,
    ylabel: str,
    xlabel: str,
    marks: Marks,
    beside: Mapping[str, Sequence[Other]] | None = None,
) -> bool:
    """One line per name: the mean over runs, and a band from the lowest to the highest.

    `marks` are horizontal lines, such as the mean return of the data. `beside` are curves that
    others report, by the name of the line whose colour they get.
    False, and no file, without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7.5, 5.4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for color, (name, runs) in zip(COLORS, curves.items(), strict=False):
        length = min(len(x) for x, _ in runs)
        clock = list(runs[0][0][:length])
        columns = list(zip(*(y[:length] for _, y in runs), strict=True))
        means = [sum(column) / len(column) for column in columns]
        axes.plot(clock, means, color=color, label=name, linewidth=1.6, marker="o", markersize=3)
        lows, highs = [min(column) for column in columns], [max(column) for column in columns]
        axes.fill_between(clock, lows, highs, color=color, alpha=0.12, linewidth=0)
        for style, other in zip(STYLES, (beside or {}).get(name, ()), strict=False):
            axes.plot(*other.curve, color=color, linestyle=style, linewidth=1.2, label=other.name)
    for style, (name, value) in zip(STYLES, marks.items(), strict=False):
        axes.axhline(value, color=COLORS[-1], linestyle=style, linewidth=1.2,
                     label=f"{name}: {value:,.0f}")  # fmt: skip
    axes.set_title(title, fontsize="medium")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.25)
    _legend_below(axes, 2)
    _save(figure, path)
    return True
