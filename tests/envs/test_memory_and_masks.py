"""The CartPole that hides its velocities, and the doors of which most are locked."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training.envs.make import make_env
from rl_training.envs.toys.cartpole_no_velocity import CARTPOLE_NO_VELOCITY_ID
from rl_training.envs.toys.masked_doors import MASKED_DOORS_ID


def test_velocities_are_hidden_and_nothing_else() -> None:
    check_env(make_env(CARTPOLE_NO_VELOCITY_ID).unwrapped, skip_render_check=True)
    whole, blind = gym.make("CartPole-v1"), gym.make(CARTPOLE_NO_VELOCITY_ID)
    seen = whole.reset(seed=5)[0], blind.reset(seed=5)[0]
    for step in range(60):
        np.testing.assert_array_equal(seen[0][[0, 2]], seen[1])
        assert blind.observation_space.contains(seen[1])
        results = [env.step(step % 2) for env in (whole, blind)]
        assert results[0][1:4] == results[1][1:4]
        seen = results[0][0], results[1][0]
        if results[0][2]:
            break
    assert results[0][2], "the pole has fallen"


def test_locked_doors_stay_shut_and_the_shown_one_pays() -> None:
    check_env(gym.make(MASKED_DOORS_ID, locked=0).unwrapped, skip_render_check=True)
    env = gym.make(MASKED_DOORS_ID, doors=6, locked=3)
    (obs, info), steps, ended = env.reset(seed=1), 0, False
    while not ended:
        mask, shown = info["action_mask"], int(obs.argmax())
        assert mask.sum() == 3
        assert mask[shown]
        other = next(door for door in np.flatnonzero(mask) if door != shown)
        obs, reward, _, ended, info = env.step(shown if steps % 2 else other)
        assert reward == steps % 2
        steps += 1
    assert steps == 100
    locked = int(np.flatnonzero(info["action_mask"] == 0)[0])
    with pytest.raises(ValueError, match=f"door {locked} is locked"):
        env.unwrapped.step(locked)
    with pytest.raises(ValueError, match="locked must be"):
        gym.make(MASKED_DOORS_ID, doors=3, locked=3)
