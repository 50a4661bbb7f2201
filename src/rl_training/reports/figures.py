"""The charts of runs and comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_training.reports.charts import Line, Mark, bar_chart, drawable, line_chart, widened
from rl_training.reports.comparison import Arm, Comparison, performance_profile
from rl_training.reports.page import Markup, figure
from rl_training.reports.runs import Run, SeedRun

MOST_LINES = 8
"""Curves in one chart; more could not be told apart."""
MOST_CHARTS = 40
"""Charts of training metrics in one report."""
BINS = 20


def unit_of(run: Run) -> str:
    return "updates" if run.config.get("total_updates") else "environment steps"


def arm_lines(found: Comparison, arms: Sequence[Arm]) -> list[Line]:
    """The interquartile means of experiments over their evaluations, with intervals."""
    lines = []
    for arm in arms:
        band = found.band(arm)
        name = f"{arm.name}, {len(arm.seeds)} seed{'s' if len(arm.seeds) > 1 else ''}"
        line = Line(name, band.ticks, band.middle)
        if len(arm.seeds) > 1:
            line = Line(name, band.ticks, band.middle, band.low, band.high)
        lines.append(line)
    return lines


def learning_curves(found: Comparison, marks: Sequence[Mark] = ()) -> list[Markup]:
    """Charts of the learning curves, a few experiments in each."""
    unit = unit_of(found.arms[0].runs[0])
    several = any(len(arm.seeds) > 1 for arm in found.arms)
    shown = "interquartile mean over seeds with its 95% interval" if several else "one seed each"
    charts = []
    for start in range(0, len(found.arms), MOST_LINES):
        lines = arm_lines(found, found.arms[start : start + MOST_LINES])
        lines = [_fewer_points(line) for line in lines]
        title = f"{found.metric} on {found.task}"
        svg = line_chart(title, unit, found.metric, lines, marks, legend=False)
        charts.append(figure(svg, f"{found.metric} over {unit}: {shown}.", lines, marks))
    return charts


def _fewer_points(line: Line) -> Line:
    """A curve with its band, thinned so that a page of many stays small."""
    step = max(len(line.x) // 300, 1)
    kept = [*range(0, len(line.x), step)]
    if kept and kept[-1] != len(line.x) - 1:
        kept.append(len(line.x) - 1)
    x, y, low, high = ([part[i] for i in kept] if part else [] for part in
                       (line.x, line.y, line.low, line.high))  # fmt: skip
    return Line(line.name, x, y, low, high)


def seed_curves(run: Run, metrics: Sequence[str]) -> list[Markup]:
    """A chart of each metric with a curve for every seed, of the first few seeds."""
    charts, unit = [], unit_of(run)
    for metric in metrics[:MOST_CHARTS]:
        lines = [
            drawable(f"seed {seed.seed}", curve.ticks, curve.values)
            for seed in run.seeds[:MOST_LINES]
            if (curve := seed.curve(metric)).ticks
        ]
        if lines:
            svg = line_chart(metric, unit, metric, lines, legend=False)
            charts.append(figure(svg, f"{metric} over {unit}", lines))
    return charts


def training_metrics(seeds: Sequence[SeedRun]) -> list[str]:
    """Names of the numbers that training logs, those of the episodes first."""
    newest = [seed.training[-1] for seed in seeds if seed.training]
    names = dict.fromkeys(key for event in newest for key in event if "/" in key)
    order = ("rollout/", "train/", "lr/", "time/")
    kept = [name for name in names if name.startswith(order) and name != "time/elapsed_seconds"]
    return sorted(kept, key=lambda name: next(i for i, o in enumerate(order) if name.startswith(o)))


def return_distribution(returns: Sequence[float], caption: str) -> Markup:
    """A histogram of the returns of single episodes."""
    bins, around = min(BINS, max(len(returns), 2)), widened(min(returns), max(returns))
    counts, edges = np.histogram(np.asarray(returns), bins=bins, range=around)
    svg = bar_chart(caption, "return", "episodes", edges.tolist(), counts.tolist())
    return figure(svg, caption)


def profile_chart(found: Comparison) -> Markup:
    """The share of seeds above every score, for each experiment."""
    scores = [score for arm in found.arms for score in arm.summary.scores]
    low, high = min(scores), max(scores)
    pad = 0.02 * (high - low) or 1.0
    limits = np.linspace(low - pad, high + pad, 200).tolist()
    lines = [
        Line(arm.name, limits, performance_profile(arm.summary.scores, limits).tolist())
        for arm in found.arms[:MOST_LINES]
    ]
    svg = line_chart("performance profile", found.metric, "share of seeds", lines, legend=False)
    caption = f"Share of seeds whose last policy scores more than a value of {found.metric}."
    return figure(svg, caption, lines)
