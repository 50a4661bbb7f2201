"""Returns-to-go and what continues them at a time limit.

All functions take the flags of rows in time order. Rows after the last flag form one
more episode, cut at the last row. Where both flags are set, the termination counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import TransitionDataset, episode_end_flags
from rl_training.experiment.errors import DataError

AT_ONCE = 1 << 22
"""Rows of large data that are computed together, since each takes many numbers meanwhile; whole
episodes, so that some are more."""

FEWEST_EPISODES = 20
"""In effect, where an algorithm chooses how much better episodes are preferred."""


def spans(
    terminations: NDArray[Any], truncations: NDArray[Any], at_once: int = AT_ONCE
) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
    """About `at_once` rows of whole episodes at a time, and their flags."""
    ends = np.flatnonzero(episode_end_flags(terminations, truncations)) + 1
    start, count = 0, len(terminations)
    while start < count:
        place = int(np.searchsorted(ends, start + at_once))
        stop = int(ends[place]) if place < len(ends) else count
        rows = slice(start, stop)
        yield rows, terminations[rows], truncations[rows]
        start = stop


def returns_to_go(
    rewards: NDArray[Any],
    terminations: NDArray[Any],
    truncations: NDArray[Any],
    gamma: float,
    at_once: int = AT_ONCE,
) -> NDArray[np.float32]:
    """Discounted sum of rewards from each row to the end of its episode."""
    found = np.zeros(len(rewards), np.float32)
    for rows, terminated, truncated in spans(terminations, truncations, at_once):
        found[rows] = _returns_to_go(rewards[rows], terminated, truncated, gamma)
    return found


def _returns_to_go(
    rewards: NDArray[Any], terminations: NDArray[Any], truncations: NDArray[Any], gamma: float
) -> NDArray[np.float32]:
    """The returns of rows that are computed together.

    The recursion R[i] = r[i] + d[i] R[i+1], with d = gamma inside an episode and 0 at its
    end, is solved in blocks of about sqrt(N) rows that advance side by side; afterwards
    the last unknown of each block, the R of the next block's first row, is put in. The
    cost is linear in N and does not depend on how long the episodes are.
    """
    count = int(rewards.shape[0])
    length = math.isqrt(count - 1) + 1
    blocks = -(-count // length)
    padding = blocks * length - count
    discounts = np.where(episode_end_flags(terminations, truncations), 0.0, gamma)
    # Time runs down the first axis, so that one step of all blocks is one contiguous row.
    sums = np.pad(rewards.astype(np.float64), (0, padding)).reshape(blocks, length).T.copy()
    carried = np.pad(discounts, (0, padding)).reshape(blocks, length).T.copy()
    for step in range(length - 2, -1, -1):
        sums[step] += carried[step] * sums[step + 1]
        carried[step] *= carried[step + 1]
    following = np.zeros(blocks)
    for block in range(blocks - 2, -1, -1):
        following[block] = sums[0, block + 1] + carried[0, block + 1] * following[block + 1]
    sums += carried * following
    in_order: NDArray[np.float64] = sums.T.reshape(-1)[:count]
    with np.errstate(over="ignore"):  # the trainer names the loss that becomes infinite
        return in_order.astype(np.float32)


def final_rows(terminations: NDArray[Any], truncations: NDArray[Any]) -> NDArray[np.int64]:
    """For each row the index of the last row of its episode.

    The `next_observations` of that row is the final observation of the episode.
    """
    flags = episode_end_flags(terminations, truncations)
    if flags.shape[0] == 0:
        return np.zeros(0, np.int64)
    flags[-1] = True
    ends = np.flatnonzero(flags)
    return np.repeat(ends, np.diff(ends, prepend=-1))


def bootstrap_discounts(
    terminations: NDArray[Any], truncations: NDArray[Any], gamma: float, at_once: int = AT_ONCE
) -> NDArray[np.float32]:
    """Factor of the value of the final observation in each row's return.

    gamma to the power of the steps from the row to the cut (1 for the last row) in
    truncated episodes, 0 in terminated ones.
    """
    found = np.zeros(len(terminations), np.float32)
    for rows, terminated, truncated in spans(terminations, truncations, at_once):
        final = final_rows(terminated, truncated)
        steps = final - np.arange(final.shape[0]) + 1
        cut = np.logical_not(np.asarray(terminated, bool)[final])
        found[rows] = np.where(cut, np.power(float(gamma), steps), 0.0)
    return found


def episodes_by_return(
    dataset: TransitionDataset, temperature: float
) -> tuple[tuple[int, float], ...]:
    """(number of rows, weight) of every episode, where a row's weight is exp(z / temperature) and
    z the return of its episode, scaled to 0..1 over the data; Hong et al. 2023, arXiv:2306.13085.

    The parts of a mix keep their weights.
    """
    weights = _Standing(dataset).weights(temperature)
    return tuple(zip(dataset.episode_lengths().tolist(), weights.tolist(), strict=True))


def careful_temperature(dataset: TransitionDataset, temperature: float) -> float:
    """The temperature, raised until enough episodes count: `FEWEST_EPISODES` in effect, or half of
    those that count where all rows are drawn alike.

    Where returns differ by luck alone, few episodes would hold nearly all of the weight.
    """
    standing = _Standing(dataset)
    fewest = min(FEWEST_EPISODES, _effective(standing.weights(math.inf)) / 2.0)
    while _effective(standing.weights(temperature)) < fewest:
        temperature *= 1.25
    return temperature


class _Standing:
    """How far the episodes of a data set are behind the best one."""

    def __init__(self, dataset: TransitionDataset) -> None:
        if not dataset.has_whole_episode:
            raise DataError(
                f"algo_kwargs.return_temperature: data set '{dataset.name}' marks no end of an "
                "episode, so that its returns mean nothing; remove this key, or add the ends"
            )
        returns, self._lengths = dataset.episode_returns(), dataset.episode_lengths()
        sizes, self._shares = (np.array(column) for column in zip(*dataset.parts, strict=True))
        self._part = np.searchsorted(sizes.cumsum(), dataset.episode_ends)
        best = np.full(len(sizes), -np.inf)
        np.maximum.at(best, self._part, returns)
        spread = returns.max() - returns.min()
        # behind the best of its part, so that no part is left without any weight
        self._behind = (returns - best[self._part]) / (spread if spread > 0.0 else 1.0)

    def weights(self, temperature: float) -> NDArray[np.float64]:
        """Of whole episodes, all their rows together."""
        found: NDArray[np.float64] = self._lengths * np.exp(self._behind / temperature)
        found *= (self._shares / np.bincount(self._part, found))[self._part]
        return found


def _effective(weights: NDArray[np.float64]) -> float:
    """How many of equal weight would say as much."""
    return float(weights.sum() ** 2 / np.square(weights).sum())
