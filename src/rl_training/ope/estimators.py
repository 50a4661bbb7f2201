"""Importance sampling and doubly robust estimators of a policy's value.

Each is a function of how often every episode counts, so that the same code gives the estimate
(each once) and its bootstrap replicates (as often as each was drawn). w_t is the product of the
ratios pi/beta of the logged actions up to step t, G the discounted return, N the number of
episodes.

Precup, Sutton and Singh 2000 (IS, WIS, PDIS, PDWIS); Jiang and Li 2016 (DR); Thomas and Brunskill
2016 (WDR). Kept: weights per decision, past the end of an episode its last weight stays.
Added: WDR by default cuts weights at the square root of N (Ionides 2008; for doubly robust
estimators of single decisions Su et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rl_training.ope.episodes import Floats, WeightedEpisodes, relative


@dataclass(frozen=True, eq=False)
class Values:
    """A model's values of the logged pairs and states, padded as the episodes are."""

    q: Floats
    """(N, T), Q(s_t, a_t) of the logged action; 0 past the end."""
    v: Floats
    """(N, T + 1), V(s_t): Q averaged over the target policy's actions. The state after the last
    step counts where the episode was cut; where it ended, and later, 0 stands."""


Estimator = Callable[[Floats], Floats]
"""Counts (B, N) of the episodes to B estimates."""


def importance_sampling(episodes: WeightedEpisodes) -> Estimator:
    """IS: sum of w_T G / N. Unbiased, and as wide as the largest weight."""
    return _mean(episodes.whole_weights * episodes.returns)


def weighted_importance_sampling(episodes: WeightedEpisodes) -> Estimator:
    """WIS: sum of w_T G / sum of w_T. Biased for few episodes, consistent, never out of range."""
    weights = relative(episodes.log_weights[:, -1])
    return lambda counts: _ratio(counts @ (weights * episodes.returns), counts @ weights)


def per_decision(episodes: WeightedEpisodes) -> Estimator:
    """PDIS: sum over t of gamma^t w_t r_t / N. A reward is not weighted by what came after it."""
    return _mean((episodes.weights * episodes.rewards) @ episodes.discounts[:-1])


def weighted_per_decision(episodes: WeightedEpisodes) -> Estimator:
    """PDWIS: sum over t of gamma^t (sum of w_t r_t / sum of w_t)."""
    weights = relative(episodes.log_weights)
    paid = weights * episodes.rewards
    return lambda counts: _ratio(counts @ paid, counts @ weights) @ episodes.discounts[:-1]


def doubly_robust(episodes: WeightedEpisodes, values: Values) -> Estimator:
    """DR: sum over t of gamma^t (w_t (r_t - Q_t) + w_{t-1} V_t) / N.

    Unbiased where the ratios or the values are right.
    """
    corrections = episodes.weights * (episodes.rewards - values.q)
    baselines = episodes.weights_before * values.v
    return _mean(corrections @ episodes.discounts[:-1] + baselines @ episodes.discounts)


def weighted_doubly_robust(episodes: WeightedEpisodes, values: Values) -> Estimator:
    """WDR: DR whose weights are divided by their sum over the episodes at each step."""
    return _weighted_doubly_robust(episodes, values, np.inf)


def truncated_doubly_robust(episodes: WeightedEpisodes, values: Values) -> Estimator:
    """WDR whose weights are cut at the square root of N before they are divided by their sum.

    The sum over t of w_t (r_t + gamma V_{t+1} - Q_t) is 0 on the mean for right values, whatever
    the weights are, but the outcome of one step is noise, which the largest weight decides. So
    cutting costs only what the values are wrong by in the mass that was cut, and that vanishes as
    N grows. The mean of all ratios is 1, which makes the limit free of units.
    """
    return _weighted_doubly_robust(episodes, values, 0.5 * float(np.log(episodes.count)))


def _weighted_doubly_robust(
    episodes: WeightedEpisodes, values: Values, largest_log: float
) -> Estimator:
    cut = np.minimum(episodes.log_weights, largest_log)
    weights = relative(cut)
    before = np.concatenate([np.ones((episodes.count, 1)), weights], axis=1)
    corrections = weights * (episodes.rewards - values.q)
    baselines = before * values.v

    def estimate(counts: Floats) -> Floats:
        corrected = _ratio(counts @ corrections, counts @ weights)
        expected = _ratio(counts @ baselines, counts @ before)
        total: Floats = corrected @ episodes.discounts[:-1] + expected @ episodes.discounts
        return total

    return estimate


def _mean(per_episode: Floats) -> Estimator:
    return lambda counts: (counts @ per_episode) / counts.sum(-1)


def _ratio(above: Floats, below: Floats) -> Floats:
    """0 if no episode has any weight."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
