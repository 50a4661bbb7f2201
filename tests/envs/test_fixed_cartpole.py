"""The CartPole whose episodes all last as long."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training import load_transition_dataset
from rl_training.data.scripted import cartpole_balance
from rl_training.envs.episodes import roll_out, uniform_controller
from rl_training.envs.make import make_env
from rl_training.envs.spaces import Spaces
from rl_training.envs.toys.fixed_cartpole import FIXED_CARTPOLE_ID


def test_it_is_a_proper_environment() -> None:
    check_env(make_env(FIXED_CARTPOLE_ID).unwrapped, skip_render_check=True)


def test_inside_the_bounds_it_is_cartpole() -> None:
    runs = [
        roll_out(make_env(name), cartpole_balance, seed=4, episodes=2)
        for name in ("CartPole-v1", FIXED_CARTPOLE_ID)
    ]
    for name in runs[0]:
        np.testing.assert_array_equal(runs[0][name], runs[1][name], err_msg=name)


def test_nothing_ends_it_but_the_clock_and_it_pays_inside_the_bounds() -> None:
    env = make_env(FIXED_CARTPOLE_ID)
    arrays = roll_out(env, uniform_controller(Spaces.of(env)), seed=0, episodes=20)
    assert not arrays["terminations"].any()
    np.testing.assert_array_equal(np.flatnonzero(arrays["truncations"]), 500 * np.arange(1, 21) - 1)
    position, angle = arrays["next_observations"][:, 0], arrays["next_observations"][:, 2]
    inside = (np.abs(position) <= 2.4) & (np.abs(angle) <= 12 * math.pi / 180)
    np.testing.assert_array_equal(arrays["rewards"], inside.astype(np.float32))
    assert arrays["rewards"].reshape(20, 500).sum(1).max() < 200


def test_whatever_happens_stays_within_the_declared_space() -> None:
    env = make_env(FIXED_CARTPOLE_ID)
    for action in (0, 1):
        obs, _ = env.reset(seed=0)
        for _ in range(500):
            obs, _, terminated, _, _ = env.step(action)
            assert env.observation_space.contains(obs)
            assert not terminated
        assert abs(obs[0]) == pytest.approx(4.8)


@pytest.mark.parametrize(
    ("name", "returns", "position"),
    [
        ("fixed-cartpole-expert", (500, 500), (-0.1, 0.1)),
        ("fixed-cartpole-left", (500, 500), (-1.6, -1.2)),
        ("fixed-cartpole-random", (5, 200), (-3.0, 3.0)),
    ],
)
def test_scripted_data(
    name: str, returns: tuple[float, float], position: tuple[float, float]
) -> None:
    data = load_transition_dataset(name)
    assert data.num_episodes == 20
    assert returns[0] <= data.episode_returns().min()
    assert data.episode_returns().max() <= returns[1]
    assert position[0] < data.observations[:, 0].mean() < position[1]
