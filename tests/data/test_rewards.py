"""Reward processing by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.data.rewards import apply_reward_processing, process_rewards
from rl_training.data.sources import load_transition_dataset
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import RewardProcessing
from rl_training.experiment.errors import DataError

from ..each import each


@each(
    ("section", "expected"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"scale": 2.0}, [2, 4, 6, 8, 10]),
        ({"shift": -1.0}, [0, 1, 2, 3, 4]),
        ({"clip": 2.5}, [1, 2, 2.5, 2.5, 2.5]),
        # returns 6 and 9: factor 30 / 3
        ({"return_range": 30.0}, [10, 20, 30, 40, 50]),
        # (r * 10) * 0.1 - 3, then clipped to [-1, 1]: the order matters at every step
        (
            {"return_range": 30.0, "scale": 0.1, "shift": -3.0, "clip": 1.0},
            [-1, -1, 0, 1, 1],
        ),
    ],
)
def test_by_hand(
    arrays: dict[str, Any], box_spaces: Spaces, section: dict[str, float], expected: list[float]
) -> None:
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    processing = RewardProcessing.parse(section)
    result = apply_reward_processing(dataset, processing)
    assert result.rewards.dtype == np.float32
    np.testing.assert_allclose(result.rewards, expected, rtol=1e-6, atol=1e-6)
    assert dataset.rewards.tolist() == [1, 2, 3, 4, 5]
    assert (result is dataset) == (section == {})


def test_pure_function_takes_returns_as_they_are() -> None:
    rewards = process_rewards(
        np.array([1.0, 2.0], np.float32), np.array([0.0, 4.0]), RewardProcessing(return_range=1.0)
    )
    assert rewards.tolist() == [0.25, 0.5]


def test_equal_returns_have_no_range(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["rewards"] = np.array([1, 2, 3, 2, 4], np.float32)
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    with pytest.raises(DataError, match="all 2 episodes return 6; remove return_range"):
        apply_reward_processing(dataset, RewardProcessing(return_range=1000.0))


def test_overflow_is_refused(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    with pytest.raises(DataError, match="processed reward of row 3 is not finite"):
        apply_reward_processing(dataset, RewardProcessing(scale=1e38))
