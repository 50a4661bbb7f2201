"""Imitating demonstrations: collect, train the discriminator, relabel, improve the policy.

The on-policy and the off-policy loop with one difference: the rewards come from the
discriminator. The environment's reward is only reported; it is not even stored in the
replay.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.loops import batch_of
from rl_training.algorithms.roles import ImitationKnobs, Imitator, ReplayKnobs
from rl_training.data.dataset import TransitionDataset
from rl_training.data.demonstrations import demonstrations
from rl_training.envs.collector import Step
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.seeding import derive_seed
from rl_training.replay.imitation import ImitationBatch, Pairs
from rl_training.replay.rollout import RolloutBatch
from rl_training.replay.table import TransitionTable
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Extra, Report
from rl_training.runtime.loops.data import raw_data, require_dataset
from rl_training.runtime.loops.imitation_signs import StateSamples, SurvivalBiasWarning
from rl_training.runtime.loops.memory import TransitionMemory
from rl_training.runtime.loops.off_policy import (
    OffPolicyLoop,
    OffPolicyParts,
    UpdateSchedule,
    collecting_for,
    random_steps,
    refuse_idle_learning,
)
from rl_training.runtime.loops.offline import DataFingerprint
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.loops.online import step_budget
from rl_training.runtime.loops.rollouts import RolloutSteps
from rl_training.runtime.profile import Part
from rl_training.runtime.signals import RunLink


class Demonstrations(Extra):
    """Demonstrations on the training device, and diagnostics of the imitation."""

    def __init__(
        self, config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset
    ) -> None:
        p: ImitationKnobs = algorithm.params
        seed = derive_seed(config.seed, "demonstrations")
        kept = demonstrations(dataset, p.demo_episodes, p.demo_subsample, seed).in_memory()
        shown = dataset.terminations[dataset.episode_ends[: p.demo_episodes]]
        self.reach_an_end = bool(shown.mean() > 0.5)
        """Whether most demonstrations terminate, so that a termination is not a failure."""
        self.bias = SurvivalBiasWarning(p.reward_form, self.reach_an_end)
        self.states = StateSamples(kept.observations, config.logs_media)
        self.rows = int(p.batch_size * p.discriminator_steps)
        """Pairs of expert and of policy per round of the discriminator."""
        self.fingerprint = DataFingerprint(kept)
        self.notes = dataset.notes
        self.table = TransitionTable(
            kept, algorithm.update_count.device, gamma=algorithm.gamma, with_returns=False
        )

    def draw(self) -> Pairs:
        """Sample the pairs for one round of the discriminator."""
        batch = self.table.sample(self.rows)
        return Pairs(batch.obs, batch.action)

    def see(self, obs: NDArray[Any], terminated: bool, notes: list[str]) -> None:
        """Record observations of the policy, and whether one of its episodes terminated."""
        self.bias.check(terminated, notes)
        self.states.see(obs)

    def report(self, tick: int) -> Report:
        return self.states.report()

    def components(self) -> dict[str, Component]:
        return {"demonstrations": self.fingerprint}


class Discriminating(Extra):
    """The discriminator of an on-policy loop: after each rollout it learns to separate it from
    the demonstrations and then computes the rewards of its steps."""

    def __init__(self, algorithm: Algorithm, demos: Demonstrations) -> None:
        self.learning: Algorithm = algorithm
        self.demos, self._reward_of = demos, cast(Imitator, algorithm).reward

    def learn_beside(self, engine: Engine, rollouts: int, rollout_size: int) -> None:
        """Prepare for so many rollouts, executed as the updates of `engine` are."""
        self.samples = Samples(rollout_size, self.learning)
        learner = SingleLearner(self.learning, lambda _: self.draw())
        self.engine = Engine(learner, engine.mode, rollouts, engine.link)

    def draw(self) -> ImitationBatch:
        """Pairs for one round of the discriminator."""
        return ImitationBatch(self.demos.draw(), self.samples.draw(self.demos.rows))

    def batch(self, minibatch: RolloutBatch) -> ImitationBatch:
        """A minibatch of the generator."""
        return ImitationBatch(experience=minibatch)

    def learn(self, raw_obs: Tensor, taken: RolloutSteps) -> Metrics:
        """Train the discriminator on the steps of a rollout."""
        obs, terminated = raw_obs.flatten(0, 1), bool(taken.terminated.any())
        self.demos.see(obs.cpu().numpy(), terminated, self.engine.link.notes)
        self.samples.take(obs, taken.action.flatten(0, 1))
        return self.engine.run(1)

    def rewards(self, taken: RolloutSteps) -> Tensor:
        """(T, E) rewards of the steps that the discriminator has just learned from."""
        every = self.samples.pairs
        return self._reward_of(every.obs, every.action).view(taken.value.shape)

    def components(self) -> dict[str, Component]:
        return self.demos.components()

    def report(self, tick: int) -> Report:
        return self.demos.report(tick)

    def parts(self) -> list[Part]:
        return [Part(self.engine, "run", "discriminator")]


class ImitationMinibatches:
    """Batches of off-policy updates: pairs of the whole replay for the discriminator, and a
    minibatch for the generator with rewards of the current discriminator."""

    def __init__(self, memory: TransitionMemory, demos: Demonstrations, batch_size: int) -> None:
        self.memory, self.demos, self.batch_size = memory, demos, batch_size

    def draw(self) -> ImitationBatch:
        own = self.memory.draw(self.demos.rows)
        pairs = Pairs(own.obs, own.action)
        return ImitationBatch(self.demos.draw(), pairs, self.memory.draw(self.batch_size))


def build(
    config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset | None
) -> OnPolicyLoop | OffPolicyLoop:
    """The loop of the chosen generator."""
    require_dataset(config, "demonstrations")
    generator = cast(Imitator, algorithm).generator
    demos = Demonstrations(config, algorithm, raw_data(config, algorithm, dataset))
    try:
        if batch_of(type(generator)) is RolloutBatch:
            judge = Discriminating(algorithm, demos)
            return OnPolicyLoop(config, generator, judge, demos.notes)
        return _off_policy(config, algorithm, generator, demos)
    except ConfigError as error:
        # the loops check the generator's knobs, which are in their own section here
        raise ConfigError(algorithm.own_knobs(str(error))) from None


def _off_policy(
    config: TrainConfig, imitator: Algorithm, generator: Algorithm, demos: Demonstrations
) -> OffPolicyLoop:
    knobs: ReplayKnobs = generator.params
    refuse_idle_learning(config, knobs)
    total, schedule, link = step_budget(config), UpdateSchedule(config, knobs), RunLink()

    def without_reward(step: Step) -> Step:
        demos.see(step.obs, bool(step.terminated.any()), link.notes)
        return step._replace(reward=np.zeros_like(step.reward))

    memory = TransitionMemory(config, generator, without_reward)
    minibatches = ImitationMinibatches(memory, demos, knobs.batch_size)
    learner = SingleLearner(imitator, lambda _: minibatches.draw())
    engine = Engine(learner, config.engine, schedule.in_total(total), link)
    starts = random_steps(config, knobs)
    collecting = collecting_for(config, generator, memory, engine, starts)
    return OffPolicyLoop(
        total,
        OffPolicyParts(
            generator,
            schedule,
            memory,
            engine,
            collecting,
            extras=(demos,),
            data_notes=demos.notes,
        ),
    )


class Samples:
    """The pairs of the last rollout, in fixed memory."""

    def __init__(self, size: int, algorithm: Algorithm) -> None:
        spaces, device = algorithm.spaces, algorithm.update_count.device
        shape, kind = (
            ((size,), torch.int64)
            if spaces.is_discrete
            else ((size, spaces.action_dim), torch.float32)
        )
        self.pairs = Pairs(
            torch.zeros(size, spaces.obs_dim, device=device),
            torch.zeros(shape, dtype=kind, device=device),
        )

    def take(self, obs: Tensor, action: Tensor) -> None:
        self.pairs.obs.copy_(obs)
        self.pairs.action.copy_(action)

    def draw(self, rows: int) -> Pairs:
        """With replacement."""
        index = torch.randint(len(self.pairs.obs), (rows,), device=self.pairs.obs.device)
        return Pairs(*(column.index_select(0, index) for column in self.pairs))
