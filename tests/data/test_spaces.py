"""Advice about spaces that are refused, followed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import yaml

from rl_training.envs.make import env_spaces
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import EnvironmentSetupError


class Unbounded(gym.Env[np.ndarray, np.ndarray]):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)


def test_unbounded_actions_can_be_given_bounds_as_the_message_says() -> None:
    gym.register("tests/Unbounded-v0", Unbounded)  # type: ignore[arg-type]
    with pytest.raises(EnvironmentSetupError, match="every bound must be finite") as caught:
        env_spaces("tests/Unbounded-v0")
    key, _, value = str(caught.value).partition("such as env_kwargs.")[2].partition("=")
    advised = {key: yaml.safe_load(value.strip("'"))}
    found = env_spaces("tests/Unbounded-v0", advised)
    assert found == Spaces(2, "box", 3, (-1.0,) * 3, (1.0,) * 3)
