"""Returns-to-go against a loop, by hand, and against the clock."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rl_training.data.returns import bootstrap_discounts, final_rows, returns_to_go, spans

from ..each import each


def _loop(rewards: Any, terminations: Any, truncations: Any, gamma: float) -> Any:
    result = np.zeros(len(rewards))
    following = 0.0
    for i in range(len(rewards) - 1, -1, -1):
        if terminations[i] or truncations[i]:
            following = 0.0
        following = rewards[i] + gamma * following
        result[i] = following
    return result


def test_by_hand() -> None:
    rewards = np.array([1, 2, 4, 10, 20, 7], np.float32)
    terminations = np.array([0, 0, 1, 0, 0, 0], bool)
    truncations = np.array([0, 0, 0, 0, 1, 0], bool)
    # 1 + (2 + 4/2)/2 = 3, 2 + 4/2 = 4, 4; 10 + 20/2 = 20, 20; the open rest: 7
    returns = returns_to_go(rewards, terminations, truncations, 0.5)
    assert returns.dtype == np.float32
    assert returns.tolist() == [3, 4, 4, 20, 20, 7]
    assert final_rows(terminations, truncations).tolist() == [2, 2, 2, 4, 4, 5]
    # gamma^(steps to the cut), the last row counts one step; terminated rows get none
    factors = bootstrap_discounts(terminations, truncations, 0.5)
    assert factors.dtype == np.float32
    assert factors.tolist() == [0, 0, 0, 0.25, 0.5, 0.5]


def test_bootstrapped_return_of_a_constant_reward() -> None:
    # With reward 1 for ever, V = 1 / (1 - gamma) at the cut makes every return 1 / (1 - gamma).
    gamma, count = 0.9, 50
    none, cut = np.zeros(count, bool), np.zeros(count, bool)
    cut[19] = cut[49] = True
    ones = np.ones(count, np.float32)
    total = returns_to_go(ones, none, cut, gamma) + bootstrap_discounts(none, cut, gamma) * 10.0
    np.testing.assert_allclose(total, 10.0, rtol=1e-6)


@each("count", [1, 2, 3, 4, 5, 16, 17, 99, 1000])
@each("gamma", [0.0, 0.9, 1.0])
@each("end_rate", [0.0, 0.1, 1.0])
def test_equals_the_loop(count: int, gamma: float, end_rate: float) -> None:
    generator = np.random.default_rng(count)
    rewards = generator.normal(size=count).astype(np.float32)
    ends = generator.random(count) < end_rate
    terminations = ends & (generator.random(count) < 0.5)
    truncations = ends & ~terminations
    np.testing.assert_allclose(
        returns_to_go(rewards, terminations, truncations, gamma),
        _loop(rewards.astype(np.float64), terminations, truncations, gamma),
        rtol=1e-6,
        atol=1e-6,
    )
    closed = terminations | truncations
    closed[-1] = True
    expected_final = [next(j for j in range(i, count) if closed[j]) for i in range(count)]
    final = final_rows(terminations, truncations)
    assert final.tolist() == expected_final
    expected = [0.0 if terminations[j] else gamma ** (j - i + 1) for i, j in enumerate(final)]
    np.testing.assert_allclose(
        bootstrap_discounts(terminations, truncations, gamma), expected, rtol=1e-6, atol=1e-37
    )


def test_no_rows() -> None:
    none = np.zeros(0, bool)
    assert returns_to_go(np.zeros(0, np.float32), none, none, 0.9).shape == (0,)
    assert final_rows(none, none).shape == (0,)
    assert bootstrap_discounts(none, none, 0.9).shape == (0,)


def test_inputs_are_left_alone() -> None:
    rewards, flags = np.ones(5, np.float32), np.zeros(5, bool)
    returns_to_go(rewards, flags, flags, 0.9)
    bootstrap_discounts(flags, flags, 0.9)
    assert not flags.any()
    assert rewards.tolist() == [1.0] * 5


def test_long_sums_stay_accurate() -> None:
    # Added up one by one in float32, a million times 0.1 gives 100958.34.
    count = 1_000_000
    rewards = np.full(count, 0.1, np.float32)
    none = np.zeros(count, bool)
    np.testing.assert_allclose(returns_to_go(rewards, none, none, 1.0)[0], 1e5, rtol=1e-7)


@each("length", [10, 200, 1000, 1_000_000])
def test_a_million_steps_take_well_under_a_second(length: int) -> None:
    count = 1_000_000
    rewards = np.random.default_rng(0).normal(size=count).astype(np.float32)
    truncations, terminations = np.zeros(count, bool), np.zeros(count, bool)
    truncations[length - 1 :: length] = True
    start = time.process_time()
    returns = returns_to_go(rewards, terminations, truncations, 0.99)
    elapsed = time.process_time() - start
    assert elapsed < 1.0
    tail = slice(count - 10, None)
    expected = _loop(rewards[tail], terminations[tail], truncations[tail], 0.99)
    np.testing.assert_allclose(returns[tail], expected, rtol=1e-4, atol=1e-5)


def test_large_data_are_computed_episode_by_episode() -> None:
    rng = np.random.default_rng(5)
    rewards = rng.normal(size=300).astype(np.float32)
    terminations, truncations = rng.random(300) < 0.05, rng.random(300) < 0.05
    whole = [
        returns_to_go(rewards, terminations, truncations, 0.9),
        bootstrap_discounts(terminations, truncations, 0.9),
    ]
    assert len(list(spans(terminations, truncations, 40))) > 4
    parts = [
        returns_to_go(rewards, terminations, truncations, 0.9, 40),
        bootstrap_discounts(terminations, truncations, 0.9, 40),
    ]
    for ours, theirs in zip(parts, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
