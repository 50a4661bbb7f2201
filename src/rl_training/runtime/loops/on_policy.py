"""On-policy learning: collect a rollout, update on it, discard it."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.params import refuse_cut_sequences
from rl_training.algorithms.roles import RolloutKnobs, RolloutLearner
from rl_training.envs.collector import Step
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, TrainingDivergedError
from rl_training.models import Carry, RewardScale
from rl_training.models.carry import reset_rows
from rl_training.replay.rollout import RolloutBatch, generalized_advantages, sequences_of
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, ModuleState, Report
from rl_training.runtime.loops.online import Experience, step_budget
from rl_training.runtime.loops.rollouts import Carried, Minibatches, Rollout, RolloutSteps
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
        self._refuse_unfit_sizes(config)
        self.device = algorithm.update_count.device
        self.reward_scale = RewardScale(config.num_envs, p.gamma).to(self.device)
        minibatches = self.rollout_size // p.batch_size * p.epochs
        updates = self.total // self.rollout_size * minibatches
        self.carried = Carried(algorithm, config.num_envs) if algorithm.recurrent else None
        length = 1 if self.carried is None else self.carried.length
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
        sizes = p.rollout_length, config.num_envs
        self.rollout = Rollout(*sizes, algorithm.spaces, self.device, self.carried)
        self.experience = Experience(config, algorithm, self.engine.pause)
        self.progress = self.experience.progress

    def _draw(self, _: Algorithm) -> Any:
        minibatch = self.minibatches.next()
        return minibatch if self.judge is None else self.judge.batch(minibatch)

    def _refuse_unfit_sizes(self, config: TrainConfig) -> None:
        p, size = self.params, self.rollout_size
        product = f"rollout_length {p.rollout_length:,} times num_envs {config.num_envs:,}"
        if size > self.total:
            raise ConfigError(
                f"algo_kwargs.rollout_length: one rollout takes {size:,} steps ({product}), more "
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
        if self.algorithm.recurrent:
            refuse_cut_sequences(self.algorithm.params, "batch_size", "rollout_length")
        if p.batch_size == 1 and p.normalize_advantages:
            raise ConfigError(
                "algo_kwargs.batch_size: 1 advantage cannot be standardised; set at least 2, or "
                "algo_kwargs.normalize_advantages=false"
            )

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

    @torch.no_grad()
    def _collect(self) -> None:
        """Step to the end of the rollout, or until the pause is due."""
        # the last observation of a rollout is the first of the next one and counts once
        first = self.progress.env_steps == 0 and not self.rollout.first_seen
        obs = self._seen(self.experience.obs, observe=first)
        self.rollout.first_seen = True
        tensor = torch.from_numpy
        while not self.rollout.is_full:
            before = None if self.carried is None else self.carried.now
            recalled, after = self._recall(obs, before)
            step, (action, log_prob, value) = self._step(recalled)
            final = torch.zeros_like(value)
            if 1 in step.truncated.tobytes():  # then the next state is not in the next row
                last, _ = self._recall(self._seen(step.next_obs, observe=False), after)
                final = self.actor_critic.value(last)
            reward, terminated = tensor(step.reward), tensor(step.terminated)
            self.rollout.add(
                tensor(step.obs),
                RolloutSteps(
                    *(obs, action, log_prob, value, reward, terminated),
                    *(tensor(step.truncated), final),
                ),
            )
            if self.carried is not None:
                if (len(self.rollout) - 1) % self.carried.length == 0:
                    self.carried.before.append(before)
                self.carried.now = reset_rows(after, terminated | tensor(step.truncated))
            obs = self._seen(self.experience.obs, observe=True)
            if self.link.pause.due():
                break

    def _recall(self, obs: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """What the networks get of seen observations, and the carry after them."""
        return (obs, None) if self.carried is None else self.carried.recall(obs, carry)

    def _step(self, obs: Tensor) -> tuple[Step, tuple[Tensor, Tensor, Tensor]]:
        """One step with newly sampled actions and the results of `RolloutLearner.collect`."""
        drawn: Any = ()

        def draw() -> Any:
            nonlocal drawn
            drawn = self._drawn(obs)
            return drawn[0].cpu().numpy()

        return self.experience.draw_and_step(draw), drawn

    def _drawn(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        try:
            return self.actor_critic.collect(obs)
        except RuntimeError:  # sampling raises an error for NaN probabilities
            head = self.actor_critic.actor
            if self.algorithm.spaces.is_box or bool(torch.isfinite(head(obs).exp()).all()):
                raise
        raise TrainingDivergedError(
            f"the policy's probabilities became NaN by update {int(self.learning.update_count)}; "
            "go back to an earlier checkpoint, lower the learning rate, set algo_kwargs.grad_clip, "
            "or scale the rewards"
        )

    def _seen(self, raw: Any, observe: bool) -> Tensor:
        """Update the statistics with observations and return them normalised."""
        obs = torch.from_numpy(raw).to(self.device, copy=True)
        if observe:
            self.algorithm.normalizer.observe(obs)
        seen: Tensor = self.algorithm.normalizer(obs)
        return seen

    @torch.no_grad()
    def _rollout(self, taken: RolloutSteps, reward: Tensor) -> RolloutBatch:
        """The steps with their advantages: (T * E) rows, or the sequences of a policy with
        memory."""
        p = self.params
        terminated, truncated = taken.terminated, taken.truncated
        carried = self.carried
        now = None if carried is None else carried.now
        seen, _ = self._recall(self._seen(self.experience.obs, observe=False), now)
        last = self.actor_critic.value(seen)
        next_value = torch.cat([taken.value[1:], last.unsqueeze(0)])
        next_value = torch.where(truncated, taken.final_value, next_value)
        if p.normalize_rewards:
            ended = torch.logical_or(terminated, truncated)
            scaled = self.reward_scale.scaled
            reward = torch.stack([scaled(*at) for at in zip(reward, ended, strict=True)])
        advantage = generalized_advantages(
            reward,
            taken.value,
            next_value,
            terminated,
            truncated,
            gamma=p.gamma,
            gae_lambda=p.gae_lambda,
        )
        fields = (taken.obs, taken.action, taken.log_prob, taken.value)
        columns = (*fields, advantage, advantage + taken.value)
        if carried is None:
            return RolloutBatch(*(x.flatten(0, 1) for x in columns))
        sequences = RolloutBatch(*(sequences_of(x, carried.length) for x in columns))
        return sequences._replace(first=carried.first(taken), carry=carried.stacked())

    def _learn(self, taken: RolloutSteps) -> Metrics:
        """Update on a whole rollout; returns the latest metrics."""
        if self.judge is None:
            return self._improve(self._rollout(taken, taken.reward))
        verdict = self.judge.learn(self.rollout.raw_obs(), taken)
        return verdict | self._improve(self._rollout(taken, self.judge.rewards(taken)))

    def _improve(self, rollout: RolloutBatch) -> Metrics:
        p, metrics = self.params, {}
        self.minibatches.take(rollout)
        for _ in range(p.epochs):
            count = self.minibatches.shuffle()
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
        own: dict[str, Component] = {"reward_scale": scale, "rollout": self.rollout}
        others = {} if self.judge is None else self.judge.components()
        return {**others, **self.experience.components(), **own}

    def parts(self) -> list[Part]:
        return [
            Part(self.engine, "run", "update"),
            Part(self.experience.collector, "step", "environment"),
            Part(self.algorithm, "collect", "policy"),
            Part(self, "_rollout", "buffer"),
            *(() if self.judge is None else self.judge.parts()),
        ]

    def close(self) -> None:
        self.experience.close()


def build(config: TrainConfig, algorithm: Algorithm, _: object) -> OnPolicyLoop:
    return OnPolicyLoop(config, algorithm)
