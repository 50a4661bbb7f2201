"""The charts of runs and comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_training.reports.charts import (
    Line,
    Mark,
    bar_chart,
    drawable,
    interval_chart,
    line_chart,
    widened,
)
from rl_training.reports.comparison import Arm, Comparison, performance_profile
from rl_training.reports.page import Markup, figure
from rl_training.reports.runs import Run, SeedRun
from rl_training.reports.words import in_words, sentence

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
    shown = "interquartile mean over seeds with its 95% interval" if several else "one seed"
    if len(found.arms) > 1 and not several:
        shown += " each"
    charts = []
    for start in range(0, len(found.arms), MOST_LINES):
        lines = arm_lines(found, found.arms[start : start + MOST_LINES])
        lines = [_fewer_points(line) for line in lines]
        words = in_words(found.metric)
        svg = line_chart(f"{words} on {found.task}", unit, words, lines, marks, legend=False)
        charts.append(figure(svg, sentence(f"{words} over {unit}: {shown}."), lines, marks))
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
            words = in_words(metric)
            svg = line_chart(words, unit, words, lines, legend=False)
            charts.append(figure(svg, sentence(f"{words} over {unit}"), lines))
    return charts


def training_metrics(seeds: Sequence[SeedRun]) -> list[str]:
    """Names of the numbers that training logs, those of the episodes first."""
    newest = [seed.training[-1] for seed in seeds if seed.training]
    names = dict.fromkeys(key for event in newest for key in event if "/" in key)
    order = ("rollout/", "train/", "lr/", "time/")
    kept = [name for name in names if name.startswith(order) and name != "time/elapsed_seconds"]
    return sorted(kept, key=lambda name: next(i for i, o in enumerate(order) if name.startswith(o)))


def model_metrics(seeds: Sequence[SeedRun]) -> list[str]:
    """Names of what is logged about a learned model and about what it imagined."""
    named = [key for seed in seeds for event in seed.training for key in event]
    groups = ("model/", "imagined/", "train/imagined_")
    return [name for name in dict.fromkeys(named) if name.startswith(groups)]


def expected_rewards(run: Run) -> list[Markup]:
    """A chart of the rewards that a model imagined, beside those of training episodes."""
    seed = run.seeds[0]
    expected = next(
        (
            name
            for name in ("imagined/reward_mean", "train/imagined_reward")
            if seed.curve(name).ticks
        ),
        None,
    )
    returns, lengths = (seed.curve(f"rollout/{name}_mean") for name in ("return", "length"))
    if expected is None or returns.ticks != lengths.ticks or not returns.ticks:
        return []
    imagined = seed.curve(expected)
    came = [
        total / max(steps, 1.0) for total, steps in zip(returns.values, lengths.values, strict=True)
    ]
    lines = [
        drawable("what the model imagined", imagined.ticks, imagined.values),
        drawable("what came in the environment", returns.ticks, came),
    ]
    title, unit = "reward per step", unit_of(run)
    svg = line_chart(title, unit, title, lines, legend=False)
    caption = f"Reward per step, imagined and in training episodes, over {unit}"
    return [figure(svg, caption, lines)]


def interval_figure(found: Comparison) -> Markup:
    """The interquartile means of experiments with their intervals, one below the other."""
    rows = [
        (arm.name, arm.summary.iqm.value, arm.summary.iqm.low, arm.summary.iqm.high)
        for arm in found.arms[:MOST_LINES]
    ]
    words = in_words(found.metric)
    svg = interval_chart("interquartile means", words, rows)
    return figure(svg, f"Interquartile means over seeds ({words}) with 95% intervals.")


def return_distribution(returns: Sequence[float], caption: str) -> Markup:
    """A histogram of the returns of single episodes."""
    bins, around = min(BINS, max(len(returns), 2)), widened(min(returns), max(returns))
    counts, edges = np.histogram(np.asarray(returns), bins=bins, range=around)
    svg = bar_chart(caption, "return", "episodes", edges.tolist(), counts.tolist())
    return figure(svg, caption)


def return_range(run: Run) -> list[Markup]:
    """A chart of the mean return of a run's only seed, between its lowest and highest one."""
    if len(run.seeds) > 1:
        return []
    curves = [run.seeds[0].curve(f"eval/return_{name}") for name in ("mean", "min", "max")]
    mean, low, high = curves
    if not mean.ticks or any(curve.ticks != mean.ticks for curve in curves):
        return []
    line = Line("mean return", mean.ticks, mean.values, low.values, high.values)
    unit = unit_of(run)
    svg = line_chart("returns of evaluations", unit, "return", [_fewer_points(line)], legend=False)
    return [figure(svg, f"Mean return of every evaluation, from lowest to highest, over {unit}")]


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
    words = in_words(found.metric)
    svg = line_chart("performance profile", words, "share of seeds", lines, legend=False)
    caption = f"Performance profile: share of seeds whose last policy has a higher {words}."
    return figure(svg, caption, lines)
