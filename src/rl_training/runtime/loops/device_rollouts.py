"""Rollouts of a policy in worlds on the training device."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.roles import RolloutLearner
from rl_training.envs.device.worlds import Worlds
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.state import Stored
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, OptionalComponent
from rl_training.runtime.loops.device import (
    DeviceExperience,
    require_worlds_memory,
    seeds_of,
    training_worlds,
)
from rl_training.runtime.loops.device_draws import DeviceDraws
from rl_training.runtime.loops.rollouts import RolloutSteps
from rl_training.runtime.profile import Part


class DeviceRollout:
    """The steps since the last update of all runs, in fixed memory on the device."""

    def __init__(self, steps: int, worlds: Worlds) -> None:
        self.steps, self.filled, self.first_seen = steps, 0, False
        spaces, obs = worlds.spaces, worlds.obs
        actions = torch.float32 if spaces.is_box else torch.int64

        def column(dtype: torch.dtype, *shape: int) -> Tensor:
            size = (steps, worlds.num_worlds, *shape)
            return torch.zeros(size, dtype=dtype, device=worlds.device)

        seen = (column(obs.dtype, *spaces.obs_shape) for _ in range(2))
        self._raw, *columns = *seen, column(actions, *spaces.inner_action_shape)
        columns += [column(torch.float32) for _ in range(3)]
        columns += [column(kind) for kind in (torch.bool, torch.bool, torch.float32)]
        self._columns = RolloutSteps(*columns)
        self.position = torch.zeros(1, dtype=torch.int64, device=worlds.device)
        """Where the next step is stored."""

    def tensors(self) -> list[Tensor]:
        return [self._raw, *self._columns]

    def store(self, raw_obs: Tensor, step: RolloutSteps) -> None:
        """Add one step, (N, ...); waits for nothing."""
        for column, value in zip(self.tensors(), (raw_obs, *step), strict=True):
            column.index_copy_(0, self.position, value.unsqueeze(0))
        self.position.add_(1).remainder_(self.steps)

    def __len__(self) -> int:
        return self.filled

    @property
    def is_full(self) -> bool:
        return self.filled == self.steps

    def clear(self) -> None:
        self.filled = 0

    def taken(self) -> RolloutSteps:
        return self._columns

    def raw_obs(self) -> Tensor:
        return self._raw


class RolloutOfRun(OptionalComponent):
    """The rollout of one run, as a part of its checkpoint; runs are equally far."""

    def __init__(self, rollout: DeviceRollout, first: int, count: int) -> None:
        """Of `count` worlds, the first of which has number `first`."""
        self._rollout, self._worlds = rollout, slice(first, first + count)

    def _columns(self, filled: int) -> list[Tensor]:
        return [column[:filled, self._worlds] for column in self._rollout.tensors()]

    def training_state(self) -> dict[str, Any]:
        rollout = self._rollout
        kept = [column.contiguous().cpu() for column in self._columns(rollout.filled)]
        return {"first_seen": rollout.first_seen, "filled": rollout.filled, "columns": kept}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored, rollout = Stored(state, "rollout"), self._rollout
        rollout.first_seen = stored.flag("first_seen")
        filled = stored.whole("filled", most=rollout.steps)
        own = self._columns(filled)
        for column, value in zip(own, stored.tensors_like("columns", own), strict=True):
            column.copy_(value)
        rollout.filled = filled
        rollout.position.fill_(filled % rollout.steps)


def refuse_large_rollouts(config: TrainConfig, algorithm: Algorithm) -> None:
    """Raise an error if the rollouts of all worlds do not fit on the device."""
    spaces, steps = algorithm.spaces, algorithm.params.rollout_length
    obs = math.prod(spaces.obs_shape) * (1 if spaces.is_image else 4)
    # the rollout, and the rows that minibatches are drawn from with their order
    needed = steps * (3 * obs + 16 * spaces.action_dim + 50)
    device = algorithm.update_count.device
    worlds = config.num_envs * len(seeds_of(config))
    require_worlds_memory(worlds, needed, f"rollouts of {steps:,} steps", device)


class DeviceRollouts:
    """Fills rollouts in worlds on the device: policy, simulator and storage are one step of an
    engine, which a GPU captures in a graph."""

    carried = None

    def __init__(self, config: TrainConfig, algorithm: Algorithm, engine: Engine) -> None:
        self.algorithm, self.pause = algorithm, engine.pause
        self.actor_critic = cast(RolloutLearner, algorithm)
        self.worlds = training_worlds(config, algorithm)
        self.draws = DeviceDraws(seeds_of(config), self.worlds.device)
        self.rollout = DeviceRollout(algorithm.params.rollout_length, self.worlds)
        written = [*algorithm.normalizer.buffers(), self.rollout.position]
        self.experience = DeviceExperience(
            self.worlds, self._step, engine, written, self.rollout.tensors()
        )

    def collect(self) -> None:
        """Step to the end of the rollout, or until the pause is due."""
        rollout = self.rollout
        if not rollout.first_seen:
            self.algorithm.normalizer.observe(self.worlds.obs)
            rollout.first_seen = True
        while not rollout.is_full:
            rollout.filled += self.experience.steps(rollout.steps - len(rollout))
            if self.pause.due():
                break

    def _step(self) -> None:
        algorithm, worlds = self.algorithm, self.worlds
        raw = worlds.obs.clone()
        obs = algorithm.normalizer(raw)
        with self.draws.of_step(self.draws.actions[0], worlds.steps[0]):
            action, log_prob, value = self.actor_critic.collect(obs)
        step = worlds.step(action)
        # of every world, because which ones are truncated is not known without waiting
        last = self.actor_critic.value(algorithm.normalizer(step.next_obs))
        final = torch.where(step.truncated, last, 0.0)
        flags = (step.terminated, step.truncated)
        taken = RolloutSteps(obs, action, log_prob, value, step.reward, *flags, final)
        self.rollout.store(raw, taken)
        algorithm.normalizer.observe(worlds.obs)

    def order(self, size: int, updates: int) -> Tensor:
        """(size,) rows of a rollout in random order, after so many updates."""
        return self.draws.orders(size, updates)[0]

    def last_value(self) -> Tensor:
        """(N,) values of the observations to act on next."""
        value: Tensor = self.actor_critic.value(self.algorithm.normalizer(self.worlds.obs))
        return value

    def component(self) -> Component:
        return RolloutOfRun(self.rollout, 0, self.worlds.num_envs)

    def parts(self) -> list[Part]:
        return [Part(self.experience, "steps", "environment")]
