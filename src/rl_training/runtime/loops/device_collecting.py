"""Collecting transitions for a replay in worlds on the training device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.replay.windows import DeviceWindows
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component
from rl_training.runtime.loops.device import DeviceExperience, training_worlds
from rl_training.runtime.loops.memory import TransitionMemory
from rl_training.runtime.profile import Part


class DeviceMemory(TransitionMemory):
    """A replay of single transitions that never leave the device."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        if algorithm.spaces.is_image:
            raise ConfigError(
                f"env_id: {config.algo} stores no images of worlds on the device, such as those of "
                f"'{config.env_id}', yet; use the environment of Gymnasium"
            )
        super().__init__(config, algorithm)
        replay, device = self.replay, algorithm.update_count.device
        self.windows = DeviceWindows(
            config.num_envs, algorithm.spaces, device, replay.gamma, replay.n_step
        )
        self.reward = torch.zeros(config.num_envs, device=device)
        """Of the newest step, with whether its episode ended there."""
        self.ended = torch.zeros(config.num_envs, dtype=torch.bool, device=device)

    def written(self) -> list[Tensor]:
        """The tensors that `add` writes to."""
        return [*self.windows.tensors(), self.reward, self.ended]

    def add(self, obs: Tensor, action: Tensor, step: Any) -> None:
        """Take one step of every world; waits for nothing."""
        next_obs, reward, terminated, truncated = step
        self.windows.add(obs, action, reward, next_obs, terminated, truncated)
        self.reward.copy_(reward)
        self.ended.copy_(terminated | truncated)

    def added(self, fraction: float) -> None:
        """Store what `add` has completed, after `fraction` of the run."""
        rows = self.windows.complete()
        if rows is not None:
            self.replay.add_rows(rows)
        self.stored(self.reward, self.ended, fraction)

    def components(self) -> dict[str, Component]:
        return {**super().components(), "windows": self.windows}

    def parts(self) -> list[Part]:
        return [Part(self.replay, "add_rows", "buffer")]


class DeviceCollecting:
    """Acts in worlds on the device and stores the steps; policy, simulator and windows are one
    step of an engine, which a GPU captures in a graph."""

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm,
        memory: DeviceMemory,
        engine: Engine,
        random_steps: int,
    ) -> None:
        self.algorithm, self.memory, self.random_steps = algorithm, memory, random_steps
        self.worlds = training_worlds(config, algorithm)
        device = self.worlds.device
        # tensors, because a graph keeps the plain numbers of its capture
        self._is_random = torch.zeros((), dtype=torch.bool, device=device)
        self._fraction = torch.zeros((), dtype=torch.float64, device=device)
        self.experience = DeviceExperience(self.worlds, self._step, engine, memory.written())

    def collect(self, fraction: float) -> None:
        """One step of every world, after `fraction` of the budget."""
        self._is_random.fill_(self.experience.progress.env_steps < self.random_steps)
        self._fraction.fill_(fraction)
        self.algorithm.fraction = self._fraction
        self.experience.steps(1)
        self.memory.added(fraction)

    def _step(self) -> None:
        obs = self.worlds.obs.clone()
        action = self.algorithm.act(obs, explore=True).action
        action = torch.where(self._is_random, self._uniform(action), action)
        self.memory.add(obs, action, self.worlds.step(action))

    def _uniform(self, like: Tensor) -> Tensor:
        """Uniform actions, of which only those of the first steps are taken."""
        if self.algorithm.spaces.is_box:
            return torch.rand_like(like) * 2.0 - 1.0
        return torch.randint_like(like, self.algorithm.spaces.action_dim)

    def parts(self) -> list[Part]:
        return [Part(self.experience, "steps", "environment")]
