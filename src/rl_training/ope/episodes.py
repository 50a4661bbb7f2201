"""Logged episodes as padded arrays, with the weights that importance sampling needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.errors import DataError

Floats = NDArray[np.float64]

MAX_LOG_WEIGHT = 600.0
"""Cumulative log ratios are limited to this much, so that no weight overflows."""


@dataclass(frozen=True, eq=False)
class WeightedEpisodes:
    """N episodes of at most T steps under a behaviour policy, beside a target policy.

    Past its end an episode stays in a state that pays nothing, where both policies agree: its
    rewards and values are 0 there and its weight is that of its last step.
    """

    rewards: Floats
    """(N, T), 0 past the end."""
    log_ratios: Floats
    """(N, T), log pi(a|s) - log beta(a|s) of the logged actions, 0 past the end."""
    lengths: NDArray[np.int64]
    """(N,), number of steps."""
    gamma: float
    groups: NDArray[np.int64] | None = None
    """(N,), who an episode belongs to; episodes of one group are resampled together."""

    @classmethod
    def of(
        cls,
        rewards: Floats,
        log_ratios: Floats,
        starts: NDArray[np.int64],
        gamma: float,
        groups: NDArray[np.int64] | None = None,
    ) -> WeightedEpisodes:
        """From rows in time order, one episode after the other, that begin at `starts`."""
        lengths = np.diff(np.append(starts, len(rewards)))
        if np.isnan(log_ratios).any() or np.isposinf(log_ratios).any():
            row = int(np.flatnonzero(np.isnan(log_ratios) | np.isposinf(log_ratios))[0])
            raise DataError(
                f"row {row:,}: the behaviour probability of the logged action is 0 or not a "
                "number, so no ratio exists; correct the probabilities, or leave them out to have "
                "the behaviour policy estimated"
            )
        return cls(
            padded(rewards, starts, lengths),
            padded(log_ratios, starts, lengths),
            lengths,
            gamma,
            groups,
        )

    @property
    def count(self) -> int:
        return len(self.lengths)

    @cached_property
    def discounts(self) -> Floats:
        """(T + 1,), gamma to the power of the step."""
        return np.asarray(self.gamma ** np.arange(self.rewards.shape[1] + 1), dtype=np.float64)

    @cached_property
    def returns(self) -> Floats:
        """(N,), discounted."""
        return np.asarray(self.rewards @ self.discounts[:-1])

    @cached_property
    def log_weights(self) -> Floats:
        """(N, T), sum of the log ratios up to and including each step; minus infinity from the
        first action on that the target policy never takes."""
        return np.asarray(np.cumsum(self.log_ratios, axis=1))

    @cached_property
    def weights(self) -> Floats:
        """(N, T), product of the ratios up to and including each step."""
        return np.asarray(np.exp(np.minimum(self.log_weights, MAX_LOG_WEIGHT)))

    @cached_property
    def weights_before(self) -> Floats:
        """(N, T + 1), product of the ratios before each step: 1 at the first."""
        return np.concatenate([np.ones((self.count, 1)), self.weights], axis=1)

    @property
    def whole_weights(self) -> Floats:
        """(N,), product of all ratios of an episode."""
        return self.weights[:, -1]

    @property
    def effective_size(self) -> float:
        """Kish's effective number of episodes: (sum of weights)^2 / sum of squared weights; 0 if
        the target policy follows no episode to its end."""
        scaled = relative(self.log_weights[:, -1])
        squares = float(np.square(scaled).sum())
        return float(scaled.sum() ** 2 / squares) if squares else 0.0


def relative(log_weights: Floats) -> Floats:
    """Weights over the largest of their step, which changes no share and overflows nowhere."""
    largest = log_weights.max(axis=0)
    return np.asarray(np.exp(log_weights - np.where(np.isneginf(largest), 0.0, largest)))


def padded(values: Floats, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Floats:
    """(N, T) from rows in time order, 0 past the end of each episode."""
    result = np.zeros((len(lengths), int(lengths.max())), np.float64)
    inside = np.arange(result.shape[1]) < lengths[:, None]
    rows = starts[:, None] + np.arange(result.shape[1])
    result[inside] = np.asarray(values, np.float64)[rows[inside]]
    return result
