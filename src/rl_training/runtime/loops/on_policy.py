"""On-policy learning: collect a rollout, update on it, discard it."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.params import refuse_cut_sequences
from rl_training.algorithms.roles import RolloutKnobs, RolloutLearner
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.models import RewardScale
from rl_training.replay.rollout import RolloutBatch, generalized_advantages, sequences_of
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, ModuleState, Report
from rl_training.runtime.loops.device import worlds_of
from rl_training.runtime.loops.device_rollouts import DeviceRollouts, refuse_large_rollouts
from rl_training.runtime.loops.host_rollouts import HostRollouts
from rl_training.runtime.loops.online import step_budget
from rl_training.runtime.loops.rollouts import Minibatches, RolloutSteps
from rl_training.runtime.profile import Part
from rl_training.runtime.randomness import TorchRandom
from rl_training.runtime.signals import undone_if_interrupted


class Judge(Protocol):
    """Computes the rewards of rollouts instead of the environment, and learns from them."""

    learning: Algorithm
    """The algorithm that learns from the minibatches."""

    def learn_beside(self, engine: Engine, rollouts: int, rollout_size: int) -> None:
        """Prepare for so many rollouts, executed as the updates of `engine` are."""

    def batch(self, minibatch: RolloutBatch) -> Any:
        """What `learning` gets of a minibatch."""

    def learn(self, raw_obs: Tensor, taken: RolloutSteps) -> Metrics:
        """Learn from the steps of a rollout before their rewards are computed."""

    def rewards(self, taken: RolloutSteps) -> Tensor:
        """(T, E) rewards of those steps."""

    def components(self) -> dict[str, Component]: ...
    def report(self, tick: int) -> Report: ...
    def parts(self) -> list[Part]: ...


class OnPolicyLoop:
    """The clock counts environment steps and advances by whole rollouts after their updates."""

    unit = "env steps"
    held_out = None

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm,
        judge: Judge | None = None,
        data_notes: tuple[str, ...] = (),
    ) -> None:
        self.total = self.horizon = step_budget(config)
        p: RolloutKnobs = algorithm.params
        self.actor_critic = cast(RolloutLearner, algorithm)
        self.algorithm: Algorithm = algorithm
        self.params = p
        self.rollout_size = p.rollout_length * config.num_envs
        refuse_unfit_sizes(config, algorithm)
        self.device = algorithm.update_count.device
        self.reward_scale = RewardScale(config.num_envs, p.gamma).to(self.device)
        minibatches = self.rollout_size // p.batch_size * p.epochs
        updates = self.total // self.rollout_size * minibatches
        length = algorithm.params.sequence_length if algorithm.recurrent else 1
        rows = self.rollout_size // length, p.batch_size // length
        self.minibatches = Minibatches(*rows, self.device)
        self.judge, self.data_notes = judge, data_notes
        self.learning = algorithm if judge is None else judge.learning
        """The algorithm that learns from the minibatches."""
        learner = SingleLearner(self.learning, self._draw, touched=(self.minibatches.position,))
        self.engine = Engine(learner, config.engine, updates)
        self.link = self.engine.link
        if judge is not None:
            judge.learn_beside(self.engine, self.total // self.rollout_size, self.rollout_size)
        self.gathering: HostRollouts | DeviceRollouts
        """Fills the rollouts."""
        if worlds_of(config) is None:
            self.gathering = HostRollouts(config, algorithm, self.engine, self.learning)
        else:
            self.gathering = DeviceRollouts(config, algorithm, self.engine)
        self.rollout, self.carried = self.gathering.rollout, self.gathering.carried
        self.experience = self.gathering.experience
        self.progress = self.experience.progress

    def _draw(self, _: Algorithm) -> Any:
        minibatch = self.minibatches.next()
        return minibatch if self.judge is None else self.judge.batch(minibatch)

    @property
    def tick(self) -> int:
        return self.position - len(self.rollout) * self.experience.num_envs

    @property
    def position(self) -> int:
        return self.progress.env_steps

    def advance(self, ticks: int) -> Metrics:
        until, metrics = self.tick + ticks, {}
        while self.tick < until:
            self.actor_critic.follow_schedules(self.tick, self.horizon)
            self._collect()
            if self.rollout.is_full:
                # Interrupted learning is undone: the steps are kept, and learning is repeated.
                scale = ModuleState(self.reward_scale)
                with undone_if_interrupted(self.learning, scale, self.progress, TorchRandom()):
                    metrics = self._learn(self.rollout.taken())
                self.rollout.clear()
                if self.learning.first_nonfinite():
                    break  # a diverged policy cannot act
            if self.link.pause.due():
                break
        return metrics

    def _collect(self) -> None:
        self.gathering.collect()

    @torch.no_grad()
    def _rollout(self, taken: RolloutSteps, reward: Tensor) -> RolloutBatch:
        """The steps with their advantages: (T * E) rows, or the sequences of a policy with
        memory."""
        p = self.params
        terminated, truncated = taken.terminated, taken.truncated
        carried, last = self.carried, self.gathering.last_value()
        if p.normalize_rewards:
            ended = torch.logical_or(terminated, truncated)
            scaled = self.reward_scale.scaled
            reward = torch.stack([scaled(*at) for at in zip(reward, ended, strict=True)])
        advantage = advantages_of(taken, reward, last, p)
        fields = (taken.obs, taken.action, taken.log_prob, taken.value)
        columns = (*fields, advantage, advantage + taken.value)
        if carried is None:
            return RolloutBatch(*(x.flatten(0, 1) for x in columns))
        sequences = RolloutBatch(*(sequences_of(x, carried.length) for x in columns))
        return sequences._replace(first=carried.first(taken), carry=carried.stacked())

    def _learn(self, taken: RolloutSteps) -> Metrics:
        """Update on a whole rollout; returns the latest metrics."""
        if self.judge is None:
            return self.improve(self._rollout(taken, taken.reward))
        verdict = self.judge.learn(self.rollout.raw_obs(), taken)
        return verdict | self.improve(self._rollout(taken, self.judge.rewards(taken)))

    def improve(self, rollout: RolloutBatch) -> Metrics:
        p, metrics = self.params, {}
        self.minibatches.take(rollout)
        for _ in range(p.epochs):
            order = self.gathering.order(self.minibatches.size, self.progress.updates)
            count = self.minibatches.shuffle(order)
            metrics = self.engine.run(count)
            self.progress.updates += count
            if p.target_kl is not None and float(metrics["approx_kl"]) > 1.5 * p.target_kl:
                break
        return metrics

    def episodes(self) -> str:
        return str(self.experience.episodes)

    def report(self) -> Report:
        own = self.experience.episodes.report()
        return own if self.judge is None else {**own, **self.judge.report(self.tick)}

    def components(self) -> dict[str, Component]:
        scale = ModuleState(self.reward_scale)
        own: dict[str, Component] = {"reward_scale": scale, "rollout": self.gathering.component()}
        others = {} if self.judge is None else self.judge.components()
        return {**others, **self.experience.components(), **own}

    def parts(self) -> list[Part]:
        return [
            Part(self.engine, "run", "update"),
            *self.gathering.parts(),
            Part(self, "_rollout", "buffer"),
            *(() if self.judge is None else self.judge.parts()),
        ]

    def close(self) -> None:
        self.experience.close()


def advantages_of(taken: RolloutSteps, reward: Tensor, last: Tensor, knobs: RolloutKnobs) -> Tensor:
    """(T, E) advantages of steps with those rewards; `last` are the values after them."""
    next_value = torch.cat([taken.value[1:], last.unsqueeze(0)])
    next_value = torch.where(taken.truncated, taken.final_value, next_value)
    return generalized_advantages(
        reward,
        taken.value,
        next_value,
        taken.terminated,
        taken.truncated,
        gamma=knobs.gamma,
        gae_lambda=knobs.gae_lambda,
    )


def refuse_unfit_sizes(config: TrainConfig, algorithm: Algorithm) -> None:
    """Refuse sizes of rollouts and minibatches that do not fit each other or the budget."""
    p: RolloutKnobs = algorithm.params
    size, total = p.rollout_length * config.num_envs, step_budget(config)
    product = f"rollout_length {p.rollout_length:,} times num_envs {config.num_envs:,}"
    if size > total:
        raise ConfigError(
            f"algo_kwargs.rollout_length: one rollout takes {size:,} steps ({product}), more "
            f"than the {total:,} in total_timesteps; set at most "
            f"{total // config.num_envs:,}, or raise total_timesteps"
        )
    if size % p.batch_size:
        divisors = (d for d in range(2, size + 1) if size % d == 0)
        nearest = min(divisors, key=lambda d: abs(d - p.batch_size), default=1)
        raise ConfigError(
            f"algo_kwargs.batch_size: {p.batch_size:,} does not divide a rollout of {size:,} "
            f"steps ({product}); {nearest:,} would fit"
        )
    if worlds_of(config) is not None:
        refuse_large_rollouts(config, algorithm)
    if algorithm.recurrent:
        refuse_cut_sequences(algorithm.params, "batch_size", "rollout_length")
    if p.batch_size == 1 and p.normalize_advantages:
        raise ConfigError(
            "algo_kwargs.batch_size: 1 advantage cannot be standardised; set at least 2, or "
            "algo_kwargs.normalize_advantages=false"
        )


def build(config: TrainConfig, algorithm: Algorithm, _: object) -> OnPolicyLoop:
    return OnPolicyLoop(config, algorithm)
