"""Simulators on the device that a third party could have written, for tests of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.envs.device.protocol import StepTensors
from rl_training.envs.device.register import register_device_env
from rl_training.envs.device.streams import uniforms
from rl_training.execution import between_graphs


class Reach:
    """A point on a line that is pushed to 0; leaving (-2, 2) terminates."""

    deterministic = True
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Box(-0.5, 0.5, (1,), np.float32)

    def __init__(
        self,
        num_worlds: int,
        device: torch.device,
        max_episode_steps: int = 20,
        fails_at: int | None = None,
        width: int = 2,
        waits: bool = False,
    ) -> None:
        self.num_worlds, self.device, self.time_limit = num_worlds, device, max_episode_steps
        self.place = torch.zeros(num_worlds, device=device)
        self.taken = torch.zeros(num_worlds, dtype=torch.int64, device=device)
        self.fails_at, self.width = fails_at, width
        self.says = ["the simulator waits"] if waits else []
        self.waits, self.push = waits, torch.zeros(num_worlds, device=device)

    def _obs(self) -> Tensor:
        obs = torch.stack([self.place, self.place.square()], 1)
        return obs[:, : self.width]

    def reset(self, mask: Tensor, seeds: Tensor) -> Tensor:
        self.place.copy_(torch.where(mask, uniforms(seeds, 1)[:, 0] - 0.5, self.place))
        self.taken.masked_fill_(mask, 0)
        return self._obs()

    def step(self, actions: Tensor) -> StepTensors:
        self.push.copy_(actions[:, 0])
        if self.waits:
            between_graphs(self._wait_and_move)
        else:
            self.place += self.push
        self.taken += 1
        if self.fails_at is not None:  # in the third world alone
            broken = (torch.arange(self.num_worlds) == 2) & (self.taken == self.fails_at)
            self.place.copy_(torch.where(broken, torch.nan, self.place))
        return StepTensors(self._obs(), -self.place.abs(), self.place.abs() > 2.0)

    def _wait_and_move(self) -> None:
        """As a library would that launches graphs of its own."""
        self.place.copy_(torch.tensor(self.place.tolist()) + self.push.cpu())

    def new_notes(self) -> list[str]:
        said, self.says = self.says, []
        return said

    def state(self) -> Mapping[str, Tensor]:
        return {"place": self.place, "taken": self.taken}

    def close(self) -> None:
        pass


register_device_env("simulators/Reach-v0", f"{__name__}:Reach")
