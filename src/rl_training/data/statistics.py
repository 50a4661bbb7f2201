"""Statistics of all observations, computed without a copy of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import AT_ONCE, TransitionDataset


def observation_statistics(
    dataset: TransitionDataset,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mean and standard deviation of each component; the latter is never 0."""
    mean, std = dataset.statistics or mean_and_std(dataset)
    mean, std = mean.copy(), std + np.float32(1e-3)
    if dataset.spaces.has_mask:  # it is read as it is
        kept = slice(-dataset.spaces.action_dim, None)
        mean[kept], std[kept] = 0.0, 1.0
    return mean, std


def mean_and_std(
    dataset: TransitionDataset, at_once: int = AT_ONCE
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Of each component of the observations, summed up in the order of the rows."""
    count, obs = len(dataset), dataset.observations
    if count <= at_once:
        rows = np.asarray(obs)
        mean, std = (f(0, dtype=np.float64).astype(np.float32) for f in (rows.mean, rows.std))
        return mean, std
    starts = range(0, count, at_once)
    sums = np.zeros(obs.shape[1])
    for start in starts:
        sums = _continued(sums, obs[start : start + at_once])
    centre = sums / count
    squares = np.zeros(obs.shape[1])
    for start in starts:
        far = obs[start : start + at_once] - centre
        squares = _continued(squares, np.multiply(far, far, out=far))
    return centre.astype(np.float32), np.sqrt(squares / count).astype(np.float32)


def _continued(so_far: NDArray[np.float64], rows: NDArray[Any]) -> NDArray[np.float64]:
    """A sum over rows that goes on as if all had been added in one go."""
    sums: NDArray[np.float64] = np.concatenate([so_far[None], rows], dtype=np.float64).sum(0)
    return sums


class RunningStatistics:
    """Mean and standard deviation of rows that are seen once, merged as Chan, Golub and LeVeque
    do."""

    def __init__(self, width: int) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(width), np.zeros(width)

    def add(self, rows: NDArray[np.float32]) -> None:
        own = rows.mean(0, dtype=np.float64)
        away, total = own - self.mean, self.count + len(rows)
        self.squares += np.square(rows - own).sum(0)
        self.squares += np.square(away) * (self.count * len(rows) / total)
        self.mean += away * (len(rows) / total)
        self.count = total

    def mean_and_std(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        std = np.sqrt(self.squares / max(self.count, 1))
        return self.mean.astype(np.float32), std.astype(np.float32)
