"""The pendulum that is paid only for standing."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training import load_transition_dataset
from rl_training.data.scripted import pendulum_swing_up
from rl_training.envs.episodes import roll_out, uniform_controller
from rl_training.envs.make import make_env
from rl_training.envs.spaces import Spaces
from rl_training.envs.toys.sparse_pendulum import SPARSE_PENDULUM_ID
from rl_training.experiment.errors import EnvironmentSetupError


def test_it_is_a_proper_environment() -> None:
    check_env(make_env(SPARSE_PENDULUM_ID).unwrapped, skip_render_check=True)


def test_it_hangs_at_the_start_by_its_seed() -> None:
    env = make_env(SPARSE_PENDULUM_ID)
    starts = np.stack([env.reset(seed=seed)[0] for seed in range(50)])
    angle = np.abs(np.arctan2(starts[:, 1], starts[:, 0]))
    assert (angle > math.pi - 0.1001).all()
    assert len(np.unique(angle)) == 50
    assert (starts[:, 2] == 0).all()
    np.testing.assert_array_equal(env.reset(seed=3)[0], starts[3])


def test_it_pays_for_standing_and_for_nothing_else() -> None:
    env = make_env(SPARSE_PENDULUM_ID)
    arrays = roll_out(env, pendulum_swing_up, seed=0, episodes=5)
    cosine, sine = arrays["next_observations"][:, 0], arrays["next_observations"][:, 1]
    standing = np.abs(np.arctan2(sine, cosine)) < 0.2
    np.testing.assert_array_equal(arrays["rewards"], standing.astype(np.float32))
    assert arrays["truncations"].sum() == 5
    assert len(arrays["rewards"]) == 5 * 200
    assert 120 < arrays["rewards"].sum() / 5 < 150


def test_chance_is_not_paid() -> None:
    env = make_env(SPARSE_PENDULUM_ID)
    chance = uniform_controller(Spaces.of(env))
    assert roll_out(env, chance, seed=0, episodes=40)["rewards"].sum() == 0


def test_arguments_that_mean_nothing() -> None:
    for arguments in ({"upright": 0.0}, {"upright": 4.0}, {"start_spread": -0.1}):
        with pytest.raises(EnvironmentSetupError, match="upright must be in"):
            make_env(SPARSE_PENDULUM_ID, arguments)


def test_the_clumsy_data_are_between_chance_and_the_controller() -> None:
    data = load_transition_dataset("sparse-pendulum-clumsy")
    returns = data.episode_returns()
    assert data.num_episodes == 30
    assert 30 < returns.mean() < 80
    assert returns.min() < 20


def test_data_can_be_made_before_anything_else_is_imported() -> None:
    code = (
        "from rl_training.data.sources import load_transition_dataset as load; "
        f"print(len(load({{'kind': 'random', 'steps': 7}}, env_id='{SPARSE_PENDULUM_ID}')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "7"
