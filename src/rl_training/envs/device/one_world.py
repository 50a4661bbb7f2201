"""One world of a simulator on the device as an environment of Gymnasium, for evaluations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.envs.device.register import device_task
from rl_training.experiment.errors import EnvironmentSetupError


class OneWorld(gym.Env[Any, Any]):
    """A world of its own on the CPU; the seed of a reset is that of the world's episode."""

    def __init__(self, task: str, **env_kwargs: Any) -> None:
        found = device_task(task)
        if found is None:
            raise EnvironmentSetupError(
                f"env_id: '{task}' is not an environment on the device; register it with "
                "register_device_env"
            )
        self._env = found.maker()(1, torch.device("cpu"), **env_kwargs)
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        chosen = int(self.np_random.integers(2**62)) if seed is None else seed
        self._steps = 0
        obs = self._env.reset(torch.ones(1, dtype=torch.bool), torch.tensor([chosen]))
        return obs[0].numpy().copy(), {}

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        given = torch.as_tensor(np.asarray(action)).unsqueeze(0)
        obs, reward, terminated, truncated = self._env.step(given)
        self._steps += 1
        limit = self._env.time_limit
        over = (limit is not None and self._steps >= limit) or bool(
            truncated is not None and truncated[0]
        )
        return obs[0].numpy().copy(), float(reward[0]), bool(terminated[0]), over, {}

    def close(self) -> None:
        self._env.close()
