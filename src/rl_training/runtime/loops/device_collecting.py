"""Collecting transitions for a replay in worlds on the training device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.models.draws import uniform_places
from rl_training.replay.windows import DeviceWindows
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component
from rl_training.runtime.loops.device import DeviceExperience, seeds_of, training_worlds
from rl_training.runtime.loops.device_draws import DeviceDraws
from rl_training.runtime.loops.memory import TransitionMemory
from rl_training.runtime.profile import Part


class DeviceMemory(TransitionMemory):
    """A replay of single transitions that never leave the device."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        refuse_images(config, algorithm)
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
        self.draws = DeviceDraws(seeds_of(config), device)
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
        with self.draws.of_step(self.draws.actions[0], self.worlds.steps[0]):
            action = self.algorithm.act(obs, explore=True).action
            # of which only those of the first steps are taken
            uniform = uniform_actions(self.algorithm.spaces, uniform_places(action))
        action = torch.where(self._is_random, uniform.to(action.dtype), action)
        self.memory.add(obs, action, self.worlds.step(action))

    def parts(self) -> list[Part]:
        return [Part(self.experience, "steps", "environment")]


def refuse_images(config: TrainConfig, algorithm: Algorithm) -> None:
    """Refuse worlds whose observations a replay on the device does not store."""
    if algorithm.spaces.is_image:
        raise ConfigError(
            f"env_id: {config.algo} stores no images of worlds on the device, such as those of "
            f"'{config.env_id}', yet; use the environment of Gymnasium"
        )


def uniform_actions(spaces: Spaces, places: Tensor) -> Tensor:
    """Inner actions at places in [0, 1)."""
    return 2.0 * places - 1.0 if spaces.is_box else (places * spaces.action_dim).long()
