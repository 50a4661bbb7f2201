"""Reward processing: what the configuration section `rewards` does to the stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.config import RewardProcessing
from rl_training.experiment.errors import DataError


def return_range_factor(returns: NDArray[np.float64], target: float) -> float:
    """Factor that makes best minus worst episode return equal to `target`."""
    spread = float(returns.max() - returns.min())
    if not spread > 0.0:
        raise DataError(
            f"rewards.return_range needs episodes of different returns, but all "
            f"{returns.shape[0]} episodes return {float(returns[0]):g}; "
            "remove return_range or use rewards.scale"
        )
    return target / spread


def process_rewards(
    rewards: NDArray[np.float32], returns: NDArray[np.float64], processing: RewardProcessing
) -> NDArray[np.float32]:
    """return_range, scale, shift and clip, in this order, computed in float64.

    `returns` are the undiscounted returns of the episodes before processing.
    """
    result = rewards.astype(np.float64)
    if processing.return_range is not None:
        result *= return_range_factor(returns, processing.return_range)
    result = result * processing.scale + processing.shift
    if processing.clip is not None:
        result = np.clip(result, -processing.clip, processing.clip)
    with np.errstate(over="ignore"):
        return result.astype(np.float32)


def apply_reward_processing(
    dataset: TransitionDataset, processing: RewardProcessing
) -> TransitionDataset:
    """The data set with processed rewards; the same object where nothing is to be done.

    Episodes that were set aside are scaled by what the others return.
    """
    if processing == RewardProcessing():
        return dataset
    returns = dataset.episode_returns()
    processed = _processed(dataset, returns, processing)
    if dataset.held_out is None:
        return processed
    return replace(processed, held_out=_processed(dataset.held_out, returns, processing))


def _processed(
    dataset: TransitionDataset, returns: NDArray[np.float64], processing: RewardProcessing
) -> TransitionDataset:
    rewards = process_rewards(dataset.rewards, returns, processing)
    if not np.isfinite(rewards).all():
        row = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise DataError(
            f"{dataset.name}: the processed reward of row {row} is not finite; "
            "use a smaller rewards.scale, rewards.shift or rewards.return_range"
        )
    what = f"{processing!r} {returns.min()!r} {returns.max()!r}".encode()
    return replace(dataset, rewards=rewards, stamp=dataset.restamped(what))
