"""Figures of RESULTS.md, drawn where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = tuple[Sequence[float], Sequence[float]]
"""Clock (updates or environment steps) and returns of one run."""

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Distinct for colour-blind readers too; the last one is grey, for the baseline."""


def draw_curves(
    path: Path,
    curves: Mapping[str, Sequence[Curve]],
    title: str,
    ylabel: str,
    xlabel: str = "updates",
) -> bool:
    """One line per name: the mean over runs, and a band from the lowest to the highest.

    False, and no file, without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7.5, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for color, (name, runs) in zip(COLORS, curves.items(), strict=False):
        length = min(len(x) for x, _ in runs)
        clock = list(runs[0][0][:length])
        columns = list(zip(*(y[:length] for _, y in runs), strict=True))
        means = [sum(column) / len(column) for column in columns]
        axes.plot(clock, means, color=color, label=name, linewidth=1.6, marker="o", markersize=3)
        lows, highs = [min(column) for column in columns], [max(column) for column in columns]
        axes.fill_between(clock, lows, highs, color=color, alpha=0.12, linewidth=0)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.25)
    axes.legend(ncols=2, fontsize="small", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date or version inside, so that equal numbers give an equal file.
    figure.savefig(path, metadata={"Software": None})
    return True
