"""Learning from the current policy's experience: collect a rollout, update on it, forget it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, load_module
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.data.rollout import RolloutBatch, generalized_advantages
from rl_training.envs.collector import Step
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.state import Stored
from rl_training.models import RewardScale
from rl_training.runtime.agents import OneAgent
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Report
from rl_training.runtime.loops.online import Experience, step_budget
from rl_training.runtime.profile import Part


class Taken(NamedTuple):
    """The steps of a rollout, (T, E), with what the policy thought of them."""

    steps: list[Step]
    obs: Tensor  # (T, E, O) as the networks saw it
    action: Tensor  # as drawn
    log_prob: Tensor
    value: Tensor
    next_value: Tensor  # of the true final state where an episode was cut

    def column(self, name: str) -> Tensor:
        """A field of the steps, on the device."""
        column = np.stack([getattr(step, name) for step in self.steps])
        return torch.from_numpy(column).to(self.value.device)


class OnPolicyLoop:
    """The clock counts environment steps and moves by whole rollouts."""

    unit = "env steps"
    data_notes: tuple[str, ...] = ()

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        self.total = step_budget(config)
        p = algorithm.params
        self.algorithm, self.params = cast(PPOAlgorithm, algorithm), p
        self.rollout_size = p.rollout_steps * config.num_envs
        self._refuse_unfit_sizes(config)
        self.device = algorithm.update_count.device
        self.reward_scale = RewardScale(config.num_envs, p.gamma).to(self.device)
        minibatches = self.rollout_size // p.batch_size * p.epochs
        updates = self.total // self.rollout_size * minibatches
        self.minibatches = Minibatches(self.rollout_size, p.batch_size, self.device)
        learner = self._learner((self.minibatches.position,))
        self.engine = Engine(learner, config.engine, updates)
        self.experience = Experience(config, algorithm)
        self.progress = self.experience.progress

    def _learner(self, touched: Sequence[Tensor]) -> OneAgent:
        """Who learns from the minibatches."""
        return OneAgent(self.algorithm, lambda _: self.minibatches.next(), touched=touched)

    def _refuse_unfit_sizes(self, config: TrainConfig) -> None:
        p, size = self.params, self.rollout_size
        product = f"rollout_steps {p.rollout_steps:,} times num_envs {config.num_envs:,}"
        if size > self.total:
            raise ConfigError(
                f"algo_kwargs.rollout_steps: one rollout takes {size:,} steps ({product}), more "
                f"than the {self.total:,} in total_timesteps; set at most "
                f"{self.total // config.num_envs:,}, or raise total_timesteps"
            )
        if size % p.batch_size:
            divisors = (d for d in range(2, size + 1) if size % d == 0)
            nearest = min(divisors, key=lambda d: abs(d - p.batch_size), default=1)
            raise ConfigError(
                f"algo_kwargs.batch_size: {p.batch_size:,} does not divide a rollout of {size:,} "
                f"steps ({product}); {nearest:,} would fit"
            )
        if p.batch_size == 1 and p.normalize_advantages:
            raise ConfigError(
                "algo_kwargs.batch_size: 1 advantage cannot be standardised; set at least 2, or "
                "algo_kwargs.normalize_advantages=false"
            )

    @property
    def tick(self) -> int:
        return self.progress.env_steps

    def advance(self, ticks: int) -> Metrics:
        until, metrics = self.tick + ticks, {}
        while self.tick < until:
            self.algorithm.follow_schedules(self.tick / self.total)
            # The statistics move with every step, so a part of a rollout cannot be kept.
            with self.experience.all_or_nothing(self.algorithm.normalizer):
                taken = self._collect()
            metrics = self._learn(self._rollout(taken, self._rewards(taken)))
        return metrics

    @torch.no_grad()
    def _collect(self) -> Taken:
        """The steps of one rollout."""
        rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        steps: list[Step] = []
        finals: list[tuple[int, Tensor, Tensor]] = []
        # the last observation of a rollout is the first of the next, and counts once
        obs = self._seen(self.experience.obs, observe=self.tick == 0)
        for t in range(self.params.rollout_steps):
            action, log_prob, value = self.algorithm.collect(obs)
            step = self.experience.step(action.cpu().numpy())
            steps.append(step)
            rows.append((obs, action, log_prob, value))
            if step.truncated.any():  # the state after a cut is not the next row's
                final = self.algorithm.value(self._seen(step.next_obs, observe=False))
                finals.append((t, torch.from_numpy(step.truncated).to(self.device), final))
            obs = self._seen(self.experience.obs, observe=True)
        obs_column, action, log_prob, value = (
            torch.stack(column) for column in zip(*rows, strict=True)
        )
        next_value = torch.cat([value[1:], self.algorithm.value(obs).unsqueeze(0)])
        for t, truncated, final in finals:
            next_value[t] = torch.where(truncated, final, next_value[t])
        return Taken(steps, obs_column, action, log_prob, value, next_value)

    def _seen(self, raw: Any, observe: bool) -> Tensor:
        """Observations as the networks see them, after their statistics took them in."""
        obs = torch.from_numpy(raw).to(self.device, copy=True)
        if observe:
            self.algorithm.normalizer.observe(obs)
        return cast(Tensor, self.algorithm.normalizer(obs))

    def _rewards(self, taken: Taken) -> Tensor:
        """(T, E) what the policy learns to collect."""
        return taken.column("reward")

    @torch.no_grad()
    def _rollout(self, taken: Taken, reward: Tensor) -> RolloutBatch:
        """The steps with their advantages, flattened to (T * E) rows."""
        p = self.params
        terminated, truncated = taken.column("terminated"), taken.column("truncated")
        if p.normalize_rewards:
            ended = torch.logical_or(terminated, truncated)
            scaled = self.reward_scale.scaled
            reward = torch.stack([scaled(*at) for at in zip(reward, ended, strict=True)])
        advantage = generalized_advantages(
            reward,
            taken.value,
            taken.next_value,
            terminated,
            truncated,
            gamma=p.gamma,
            gae_lambda=p.gae_lambda,
        )
        fields = (taken.obs, taken.action, taken.log_prob, taken.value)
        columns = (*fields, advantage, advantage + taken.value)
        return RolloutBatch(*(x.flatten(0, 1) for x in columns))

    def _learn(self, rollout: RolloutBatch) -> Metrics:
        p, metrics = self.params, {}
        self.minibatches.take(rollout)
        for _ in range(p.epochs):
            count = self.minibatches.shuffle()
            metrics = self.engine.run(count)
            self.progress.updates += count
            if p.target_kl is not None and float(metrics["approx_kl"]) > 1.5 * p.target_kl:
                break
        return metrics

    def report(self) -> Report:
        return self.experience.returns.report()

    def components(self) -> dict[str, Component]:
        return {**self.experience.components(), "reward_scale": ModuleState(self.reward_scale)}

    def parts(self) -> list[Part]:
        return [
            Part(self.engine, "run", "update"),
            Part(self.experience.collector, "step", "environment"),
            Part(self.algorithm, "collect", "policy"),
            Part(self, "_rollout", "buffer"),
        ]

    def close(self) -> None:
        self.experience.close()


class Minibatches:
    """A rollout in random order, piece by piece; device work of fixed shape and place."""

    def __init__(self, rollout_size: int, batch_size: int, device: torch.device) -> None:
        self._size, self._batch_size = rollout_size, batch_size
        self._order = torch.arange(rollout_size, device=device)
        self._within = torch.arange(batch_size, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self._rollout: RolloutBatch | None = None

    def take(self, rollout: RolloutBatch) -> None:
        """The rollout to cut up, written over the last one."""
        if self._rollout is None:
            self._rollout = rollout
        else:
            for own, new in zip(self._rollout, rollout, strict=True):
                own.copy_(new)

    def shuffle(self) -> int:
        """Begin a pass in a new order; the number of pieces in it."""
        self._order.copy_(torch.randperm(self._size, device=self._order.device))
        self.position.zero_()
        return self._size // self._batch_size

    def next(self) -> RolloutBatch:
        assert self._rollout is not None
        rows = self._order.index_select(0, self._within + self.position)
        # round and round, for whoever asks for more than there is
        self.position.add_(self._batch_size).remainder_(self._size)
        return RolloutBatch(*(column.index_select(0, rows) for column in self._rollout))


class ModuleState:
    """A module's buffers as a part of the checkpoint."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def training_state(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_training_state(self, state: dict[str, Any]) -> None:
        load_module(self.module, Stored(state))
