"""What decides the first run, measured on logs of which the answer is known."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from rl_training.data.dataset import TransitionDataset
from rl_training.data.measures import (
    ActionNoise,
    action_noise,
    at_edge,
    hints,
    observation_spread,
    suggested_scaling,
)
from rl_training.data.sources import load_transition_dataset
from rl_training.envs.spaces import Spaces


def log_of(policy: Any, rows: int = 4_000, width: int = 3, **changes: Any) -> TransitionDataset:
    """Rows in which `policy` makes actions in [-2, 2] of random observations."""
    generator = np.random.default_rng(3)
    observations = generator.normal(size=(rows, width)).astype(np.float32)
    actions = np.asarray(policy(observations, generator), np.float32)
    discrete = actions.ndim == 1
    arrays = {
        "observations": observations,
        "actions": actions.astype(np.int64) if discrete else actions,
        "rewards": generator.normal(size=rows).astype(np.float32),
        "next_observations": observations,
        "terminations": np.arange(rows) % 100 == 99,
        "truncations": np.zeros(rows, bool),
        **changes,
    }
    spaces = Spaces(width, "discrete", 3) if discrete else Spaces(width, "box", 1, (-2.0,), (2.0,))
    return load_transition_dataset(arrays, spaces=spaces)


def noise_of(policy: Any, **options: Any) -> ActionNoise:
    found = action_noise(log_of(policy, **options))
    assert found is not None
    return found


def smooth(observations: Any, _: Any) -> Any:
    return np.tanh(observations[:, :1] - observations[:, 1:2])


def test_noise_separates_deterministic_from_random_logs() -> None:
    def noisy(observations: Any, generator: Any) -> Any:
        return np.clip(smooth(observations, None) + generator.normal(0, 0.7, (4_000, 1)), -2, 2)

    def half(observations: Any, generator: Any) -> Any:
        drawn = generator.uniform(-2.0, 2.0, (4_000, 1))
        return np.where(np.arange(4_000)[:, None] < 2_000, smooth(observations, None), drawn)

    clean, drawn = noise_of(smooth), noise_of(lambda o, g: g.uniform(-2.0, 2.0, (len(o), 1)))
    mixed, spread = noise_of(half), noise_of(noisy)
    assert clean.share < 0.05 < 0.3 < spread.share < 0.8 < 0.9 < drawn.share <= 1.0
    assert drawn.repeated < 0.15 < 0.2 < mixed.repeated < 0.6 < 0.7 < clean.repeated
    assert (clean.verdict, drawn.verdict[:13]) == ("nearly deterministic", "mostly random")


def test_noise_of_discrete_actions() -> None:
    sure = noise_of(lambda o, g: (o[:, 0] > 0).astype(int), width=1)
    drawn = noise_of(lambda o, g: g.integers(0, 3, len(o)), width=1)
    assert sure.share < 0.02 < 0.9 < drawn.share
    assert action_noise(log_of(lambda o, g: np.ones(len(o)), width=1)) is None  # one action alone


class Watched(np.ndarray[Any, Any]):
    """Notes how many rows were chosen."""

    chosen: list[int] = []

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, np.ndarray):
            self.chosen.append(len(key))
        return np.asarray(self)[key]


def test_the_work_is_bounded() -> None:
    """Among fewer rows neighbours are further away, but the answer stays."""
    log = log_of(smooth)
    watched = dataclasses.replace(log, observations=log.observations.view(Watched))
    found = action_noise(watched, queries=200, most_numbers=3 * 1_500)
    assert found is not None
    assert found.share < 0.1
    assert Watched.chosen == [1_500]


def test_edges_and_scales() -> None:
    actions = np.linspace(-2.0, 2.0, 4_000, dtype=np.float32)[:, None]
    actions[:400], actions[-200:] = -2.0, 1.9999
    data = log_of(lambda o, g: actions)
    assert at_edge(data)[0] == pytest.approx(0.15, abs=0.002)
    assert at_edge(log_of(lambda o, g: g.integers(0, 3, len(o)))) == ()
    scaled = data.observations * np.array([1.0, 30.0, 0.0], np.float32)
    assert observation_spread(scaled) == pytest.approx(30.0, rel=0.1)
    assert observation_spread(np.zeros((5, 2), np.float32)) == 1.0


def test_suggested_scaling() -> None:
    rewards = np.repeat(np.linspace(-5.0, -1.0, 40, dtype=np.float32), 100)
    data = log_of(smooth, rewards=rewards)
    found = suggested_scaling(data)
    assert found
    assert (found.key, found.value) == ("return_range", 100.0)
    assert found.factor == pytest.approx(100.0 / 400.0)
    equal = dataclasses.replace(data, rewards=np.tile(10 * rewards[::40], 40))
    alone = suggested_scaling(equal)
    assert alone
    assert alone.key == "scale"
    assert suggested_scaling(dataclasses.replace(data, rewards=rewards / 4)) is None  # as it is
    assert suggested_scaling(dataclasses.replace(data, rewards=np.ones_like(rewards))) is None


def test_hints_are_given_where_they_apply() -> None:
    plain = log_of(lambda o, g: g.uniform(-1.9, 1.9, (len(o), 1)), rewards=np.ones(4_000))
    assert hints(plain, action_noise(plain)) == ()
    rewards = np.repeat(np.linspace(-5.0, -1.0, 40, dtype=np.float32), 100)
    actions = np.sign(smooth(plain.observations, None)) * np.float32(2.0)
    observations = plain.observations * np.array([1, 1, 99], np.float32)
    changes = {"rewards": rewards, "actions": actions, "observations": observations}
    odd = dataclasses.replace(plain, **changes)
    text = "\n".join(hints(odd, action_noise(odd)))
    for words in (
        "100% of the actions are at the edge",
        "dataset.rewards.return_range: 100",
        "dataset.normalize_observations: true",
        "nearly deterministic",
    ):
        assert words in text, words
