"""A run in the terminal: its curve, rates, time left and state."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rl_training.experiment.errors import printable
from rl_training.reports.charts import duration, short
from rl_training.reports.figures import unit_of
from rl_training.reports.runs import Curve, Run, described
from rl_training.reports.words import in_words

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column of its dots."""
CURVE_ROWS, SECOND_CURVE_ROWS = 8, 5
"""Few enough for both in a terminal of 24 lines."""


def plotted(curves: Sequence[Curve], width: int, rows: int, plain: bool = False) -> list[str]:
    """Curves as lines of braille characters with the range of values at their left; with `plain`
    in ASCII."""
    points = [(t, v) for curve in curves for t, v in zip(curve.ticks, curve.values, strict=True)]
    if not points:
        return ["no points yet"]
    low, high = min(v for _, v in points), max(v for _, v in points)
    first, last = min(t for t, _ in points), max(t for t, _ in points)
    labels = [short(high), *[""] * (rows - 2), short(low)]
    margin = max(map(len, labels)) + 1
    columns = max(width - margin, 8)
    cells = [[0] * columns for _ in range(rows)]

    def place(tick: int, value: float) -> tuple[int, float]:
        # halves, so that the difference of any two numbers is finite
        share = (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5
        across = round((tick - first) / max(last - first, 1) * (2 * columns - 1))
        return across, (1.0 - share) * (4 * rows - 1)

    for curve in curves:
        placed = [place(t, v) for t, v in zip(curve.ticks, curve.values, strict=True)]
        for (x, y), (next_x, next_y) in zip(placed, placed[1:] or placed, strict=False):
            for step in range(max(next_x - x, 0) + 1):
                dot = round(y + (next_y - y) * step / max(next_x - x, 1))
                cells[dot // 4][(x + step) // 2] |= DOTS[dot % 4][(x + step) % 2]
    return [
        f"{label:>{margin - 1}} "
        + "".join(("*" if c else " ") if plain else chr(0x2800 + c) for c in row).rstrip(" \u2800")
        for label, row in zip(labels, cells, strict=True)
    ]


def rendered(run: Run, width: int, plain: bool = False) -> Group:
    """The state of a run, for a terminal of this width."""
    about, unit = described(run), unit_of(run)
    lines = [f"{about['algo']} on {about['task']}: {run.status}  {run.folder}"]
    lines.append(progress_line(run))
    metric = run.chosen_metric
    shown = [metric] if metric else []
    episodes = "rollout/return_mean"
    if any(seed.curve(episodes).ticks for seed in run.seeds):
        shown.append(episodes)
    for name in shown:
        lines += ["", f"{in_words(name)} over {unit}"]
        curves = [seed.curve(name) for seed in run.seeds]
        lines += plotted(
            curves, min(width, 100), CURVE_ROWS if name == metric else SECOND_CURVE_ROWS, plain
        )
    if not shown:
        lines += ["", "no evaluation yet"]
    first, *others = (Text(printable(line)) for line in lines)
    for text in others[1:]:  # those of the curves fit, and must not be broken
        text.no_wrap, text.overflow = True, "ellipsis"
    return Group(first, *others, *([_seed_table(run, metric)] if metric else []))


def progress_line(run: Run) -> str:
    """Progress, rate, time so far and time left."""
    about, unit = described(run), unit_of(run)
    parts = [f"{run.tick:,}" + (f" of {run.budget:,}" if run.budget else "") + f" {unit}"]
    if about["progress"] is not None:
        parts[0] += f" ({about['progress']:.0%})"
    per = "time/updates_per_second" if unit == "updates" else "time/env_steps_per_second"
    rates = [values[-1] for seed in run.seeds if (values := seed.curve(per).values)]
    if rates:
        parts.append(f"{rates[0]:,.0f} per second")
    if about["wall_seconds"] is not None:
        running = run.status == "running"
        parts.append(f"{duration(about['wall_seconds'])}{' so far' if running else ''}")
    if about["seconds_left"] is not None:
        parts.append(f"{duration(about['seconds_left'])} left")
    if about["score"] is not None:
        parts.append(f"{in_words(about['metric'])} {about['score']:,.4g}")
    return ", ".join(parts)


def _seed_table(run: Run, metric: str) -> Table:
    table = Table("seed", "last", "best", "at", box=None, padding=(0, 2, 0, 0))
    for seed in run.seeds:
        values, best = seed.curve(metric).values, seed.best(metric)
        table.add_row(
            str(seed.seed),
            short(values[-1]) if values else "",
            short(best[1]) if best else "",
            f"{best[0]:,}" if best else "",
        )
    return table
