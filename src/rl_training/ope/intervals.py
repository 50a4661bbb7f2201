"""Intervals around an estimate: by the bootstrap, or from a bound that always holds."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.errors import ConfigError, DataError
from rl_training.ope.episodes import Floats
from rl_training.ope.estimators import Estimator
from rl_training.runtime.statistics import Interval

AT_ONCE = 4_000_000
"""Counts that are held at one time."""


def point(estimator: Estimator, episodes: int) -> float:
    """The estimate with every episode counted once."""
    return float(estimator(np.ones((1, episodes)))[0])


def bootstrap(
    estimator: Estimator,
    episodes: int,
    *,
    groups: NDArray[np.int64] | None = None,
    resamples: int = 1_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap over episodes, or over groups of episodes that belong together."""
    drawn = resampled(estimator, episodes, groups=groups, resamples=resamples, seed=seed)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(drawn, [tail, 100.0 - tail])
    return Interval(point(estimator, episodes), float(low), float(high))


def resampled(
    estimator: Estimator,
    episodes: int,
    *,
    groups: NDArray[np.int64] | None = None,
    resamples: int = 1_000,
    seed: int = 0,
) -> Floats:
    """(resamples,) estimates from episodes drawn with replacement, or from groups of them."""
    rng = np.random.default_rng(seed)
    members, owner = episodes, None
    if groups is not None:
        names, owner = np.unique(groups, return_inverse=True)
        members = len(names)
    drawn = []
    left = resamples
    while left:
        rows = min(left, max(1, AT_ONCE // episodes))
        counts = rng.multinomial(members, np.full(members, 1.0 / members), size=rows)
        of_episodes = counts if owner is None else counts[:, owner]
        drawn.append(estimator(of_episodes.astype(np.float64)))
        left -= rows
    return np.concatenate(drawn)


def empirical_bernstein(
    values: Floats, low: float, high: float, confidence: float = 0.95
) -> Interval:
    """Interval for the mean of independent `values` within [low, high] (Maurer and Pontil 2009).

    It holds for every number of values and every distribution, so it is wider than a bootstrap's.
    """
    if len(values) < 2:
        raise DataError("empirical Bernstein: two episodes at least are needed for an interval")
    if not low <= float(values.min()) <= float(values.max()) <= high:
        raise ConfigError(
            f"return bounds: [{low:g}, {high:g}] do not hold the data, whose values lie in "
            f"[{values.min():g}, {values.max():g}]; widen them"
        )
    log = math.log(4.0 / (1.0 - confidence))  # two sides, and mean and variance on each
    count = len(values)
    width = math.sqrt(2.0 * float(values.var(ddof=1)) * log / count)
    width += 7.0 * (high - low) * log / (3.0 * (count - 1))
    mean = float(values.mean())
    return Interval(mean, max(low, mean - width), min(high, mean + width))


def lower_bound(
    weights: Floats, returns: Floats, low: float, high: float, confidence: float = 0.95
) -> float:
    """A number that the policy's value exceeds with the given probability.

    Importance sampling with weights cut at c underestimates returns above `low`, so empirical
    Bernstein bounds of it are bounds of the value (Thomas et al. 2015). Every c is tried with its
    share of the allowed error.
    """
    above = returns - low
    cuts = np.geomspace(1.0, 1_000.0, 7)
    share = 1.0 - 2.0 * (1.0 - confidence) / len(cuts)  # one side each
    best = 0.0
    for cut in cuts:
        values = np.minimum(weights, cut) * above
        best = max(best, empirical_bernstein(values, 0.0, cut * (high - low), share).low)
    return low + best


def normal_quantile(confidence: float) -> float:
    """Standard deviations on either side that hold so much of a normal distribution."""
    return NormalDist().inv_cdf(0.5 + 0.5 * confidence)
