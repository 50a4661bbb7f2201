"""Compares experiments over their seeds.

The statistics are those of Agarwal, Schwarzer, Castro, Courville and Bellemare 2021,
arXiv:2108.13264: interquartile means, bootstrap intervals over seeds, the probability that one
algorithm improves on another, and performance profiles.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.experiment.errors import ConfigError
from rl_training.reports.runs import NOT_COMPARED, Curve, Run, SeedRun, lower_is_better
from rl_training.runtime.statistics import (
    RESAMPLES,
    Interval,
    Summary,
    bootstrap_interval,
    interquartile_mean,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Arm:
    """One experiment: all seeds of all runs with the same configuration."""

    name: str
    runs: tuple[Run, ...]
    seeds: tuple[SeedRun, ...]
    """Those that have a score."""
    summary: Summary
    best: Summary
    """Of each seed's best evaluation, which is higher than what a chosen policy is worth."""

    @property
    def wall_seconds(self) -> float:
        """Of all its runs together."""
        return sum(run.wall_seconds or 0.0 for run in self.runs)

    @property
    def statuses(self) -> str:
        counts = Counter(run.status for run in self.runs)
        return ", ".join(
            status if count == len(self.runs) else f"{count} {status}"
            for status, count in counts.items()
        )


@dataclass(frozen=True)
class Band:
    """A curve over seeds: the interquartile mean, with its interval, at every tick."""

    ticks: tuple[int, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Experiments on one task, by one metric."""

    task: str
    metric: str
    arms: tuple[Arm, ...]

    def improvement(self, arm: Arm, over: Arm) -> Interval:
        """The probability that a seed of `arm` is better than one of `over`."""
        better, worse = (over, arm) if lower_is_better(self.metric) else (arm, over)
        return probability_of_improvement(better.summary.scores, worse.summary.scores)

    def steps_to(self, arm: Arm, threshold: float) -> list[int | None]:
        """For each seed the first evaluation that reaches `threshold`."""
        reaches = operator.le if lower_is_better(self.metric) else operator.ge
        found = []
        for seed in arm.seeds:
            curve = seed.curve(self.metric)
            reached = (
                tick
                for tick, value in zip(curve.ticks, curve.values, strict=True)
                if reaches(value, threshold)
            )
            found.append(next(reached, None))
        return found

    def band(self, arm: Arm) -> Band:
        return band([seed.curve(self.metric) for seed in arm.seeds])

    def to_dict(self, threshold: float | None = None) -> dict[str, Any]:
        """Plain values; with a threshold also the steps of each seed to it, None where a seed
        never reaches it."""
        first = self.arms[0]
        return {
            "task": self.task,
            "metric": self.metric,
            **({} if threshold is None else {"threshold": threshold}),
            "experiments": [
                {
                    "name": arm.name,
                    "runs": [str(run.folder) for run in arm.runs],
                    "status": arm.statuses,
                    "seeds": [seed.seed for seed in arm.seeds],
                    "last": arm.summary.to_dict(),
                    "best": arm.best.to_dict(),
                    "wall_seconds": round(arm.wall_seconds, 3),
                    "improves_on_first": None
                    if arm is first
                    else vars(self.improvement(arm, first)),
                    **(
                        {}
                        if threshold is None
                        else {"steps_to_threshold": self.steps_to(arm, threshold)}
                    ),
                }
                for arm in self.arms
            ],
        }


def compare(runs: Sequence[Run], metric: str | None = None) -> Comparison:
    """Group runs into experiments and summarise each; refuses what cannot be compared."""
    tasks = list(dict.fromkeys(run.task for run in runs))
    if len(tasks) > 1:
        raise ConfigError(
            f"the runs are of different tasks ({', '.join(tasks)}), whose scores have different "
            "units; compare the runs of one task at a time"
        )
    chosen = metric or next((run.chosen_metric for run in runs if run.chosen_metric), None)
    if chosen is None:
        raise ConfigError(
            f"'{runs[0].folder}' has no evaluation yet; wait for its first one (eval_interval), "
            "or compare other runs"
        )
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.experiment(), []).append(run)
    names = names_of([group[0].config for group in groups.values()])
    arms = [_arm(name, group, chosen) for name, group in zip(names, groups.values(), strict=True)]
    return Comparison(tasks[0], chosen, tuple(arms))


def _arm(name: str, runs: list[Run], metric: str) -> Arm:
    by_seed: dict[int, tuple[Run, SeedRun]] = {}
    for run in runs:
        for seed in run.seeds:
            if seed.score(metric) is None:
                continue
            if seed.seed in by_seed:
                other = by_seed[seed.seed][0].folder
                raise ConfigError(
                    f"'{run.folder}' and '{other}' are the same experiment with the same seed "
                    f"{seed.seed}, which would count twice; leave one out"
                )
            by_seed[seed.seed] = (run, seed)
    seeds = [by_seed[seed][1] for seed in sorted(by_seed)]
    if not seeds:
        known = sorted({key for run in runs for seed in run.seeds for key in seed.metrics()})
        raise ConfigError(
            f"metric: '{metric}' is not in the evaluations of '{runs[0].folder}'; "
            f"there are {', '.join(known) or 'none yet'}"
        )
    scores = [score for seed in seeds if (score := seed.score(metric)) is not None]
    best = [found[1] for seed in seeds if (found := seed.best(metric)) is not None]
    return Arm(name, tuple(runs), tuple(seeds), Summary.of(scores), Summary.of(best))


def names_of(configs: Sequence[dict[str, Any]]) -> list[str]:
    """A short name for each configuration: its algorithm, and the keys in which it differs from
    others of the same algorithm."""
    flat = [_flat(config) for config in configs]
    names = []
    for own in flat:
        rivals = [other for other in flat if other.get("algo") == own.get("algo")]
        keys = sorted(
            key
            for key in {key for other in rivals for key in other}
            if key.split(".")[0] not in NOT_COMPARED
            and any(other.get(key) != own.get(key) for other in rivals)
        )
        differing = [f"{key.removeprefix('algo_kwargs.')}={own.get(key)}" for key in keys]
        names.append(" ".join([str(own.get("algo")), *differing[:4]]))
    return [
        name if names.count(name) == 1 else f"{name} ({names[:i].count(name) + 1})"
        for i, name in enumerate(names)
    ]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def probability_of_improvement(scores: Sequence[float], others: Sequence[float]) -> Interval:
    """P(X > Y) + P(X = Y) / 2 of two random seeds, with a bootstrap interval over both."""
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(others, dtype=np.float64)
    rng = np.random.default_rng(0)
    wins = (x[:, None] > y).astype(np.float64) + 0.5 * (x[:, None] == y)
    rows = rng.integers(len(x), size=(RESAMPLES, len(x)))
    columns = rng.integers(len(y), size=(RESAMPLES, len(y)))
    drawn = np.stack([
        wins[row][:, column].mean() for row, column in zip(rows, columns, strict=True)
    ])  # fmt: skip
    return bootstrap_interval(float(wins.mean()), drawn)


def performance_profile(scores: Sequence[float], thresholds: Sequence[float]) -> Array:
    """The share of seeds that score more than each threshold."""
    values, limits = np.asarray(scores, dtype=np.float64), np.asarray(thresholds)
    shares: Array = (values[:, None] > limits).mean(0)
    return shares


def band(curves: Sequence[Curve]) -> Band:
    """The interquartile mean over the curves, at the ticks that all of them have."""
    shared = sorted(set.intersection(*(set(curve.ticks) for curve in curves)) if curves else ())
    if not shared:
        return Band((), (), (), ())
    rows = np.stack([_at(curve, shared) for curve in curves])
    middle = interquartile_mean(rows.T)
    rng = np.random.default_rng(0)
    drawn = rows[rng.integers(len(rows), size=(500, len(rows)))]  # (500, seeds, ticks)
    resampled = interquartile_mean(np.swapaxes(drawn, 1, 2))
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    as_floats: Callable[[Array], tuple[float, ...]] = lambda x: tuple(x.tolist())  # noqa: E731
    return Band(tuple(shared), as_floats(middle), as_floats(low), as_floats(high))


def _at(curve: Curve, ticks: Sequence[int]) -> Array:
    """Values at those ticks; the newest one where a tick was evaluated twice."""
    newest = dict(zip(curve.ticks, curve.values, strict=True))
    return np.asarray([newest[tick] for tick in ticks])
