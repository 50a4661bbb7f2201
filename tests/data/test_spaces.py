"""Advice about spaces that are refused, followed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import EnvironmentSetupError


class Unbounded(gym.Env[np.ndarray, np.ndarray]):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)


def test_unbounded_actions_can_be_given_bounds_as_the_message_says() -> None:
    env: gym.Env[np.ndarray, np.ndarray] = Unbounded()
    with pytest.raises(EnvironmentSetupError, match="every bound must be finite") as caught:
        Spaces.of(env)
    advice = str(caught.value).partition("for example ")[2]
    bounded = eval(advice, {"gymnasium": gym, "env": env})
    assert Spaces.of(bounded) == Spaces(2, "box", 3, (-1.0,) * 3, (1.0,) * 3)
