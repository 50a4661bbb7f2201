"""Imitating demonstrations: collect, train the discriminator, relabel, improve the policy.

The on-policy and the off-policy loop with one difference: what the policy learns to
collect is what the discriminator says of its steps. The environment's reward is reported
and reaches nothing that learns, not even a replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.loops import batch_of
from rl_training.algorithms.roles import ImitationKnobs, Imitator
from rl_training.data.dataset import TransitionDataset
from rl_training.data.demonstrations import demonstrations
from rl_training.envs.collector import Step
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.seeding import derive_seed
from rl_training.replay.imitation import ImitationBatch, Pairs
from rl_training.replay.rollout import RolloutBatch
from rl_training.replay.table import TransitionTable
from rl_training.runtime.agents import OneAgent
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Report
from rl_training.runtime.loops.data import raw_data, require_dataset
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.loops.offline import DataFingerprint
from rl_training.runtime.loops.on_policy import OnPolicyLoop, Taken
from rl_training.runtime.profile import Part


class Demonstrations:
    """What the policy should do, on the training device."""

    def __init__(
        self, config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset
    ) -> None:
        p: ImitationKnobs = algorithm.params
        seed = derive_seed(config.seed, "demonstrations")
        kept = demonstrations(dataset, p.demo_episodes, p.demo_subsample, seed)
        shown = dataset.terminations[dataset.episode_ends[: p.demo_episodes]]
        self.reach_an_end = bool(shown.mean() > 0.5)
        """Whether most demonstrations terminate, so that terminating is no failure."""
        self.states = StateSamples(kept.observations, config.logs_media)
        self.rows = int(p.batch_size * p.discriminator_steps)
        """Pairs of either side in one round of the discriminator."""
        self.fingerprint = DataFingerprint(kept)
        self.notes = dataset.notes
        self._table = TransitionTable(
            kept, algorithm.update_count.device, gamma=algorithm.gamma, with_returns=False
        )

    def draw(self) -> Pairs:
        """As many pairs as one round of the discriminator takes."""
        batch = self._table.sample(self.rows)
        return Pairs(batch.obs, batch.action)


class PPOImitationLoop(OnPolicyLoop):
    """After each rollout the discriminator learns to tell it from the demonstrations; then its
    rewards take the place of the environment's, and PPO goes on as ever."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm, demos: Demonstrations) -> None:
        assert isinstance(algorithm, Imitator)
        self.imitator: Algorithm = algorithm
        self.demos, self.data_notes = demos, demos.notes
        super().__init__(config, algorithm.generator)
        self.reward_of = algorithm.reward
        rollouts = self.total // self.rollout_size
        self.samples = Samples(self.rollout_size, algorithm)
        learner = OneAgent(algorithm, lambda _: self._discriminator_batch())
        self.discriminating = Engine(learner, self.engine.mode, rollouts, beside=self.engine)
        self.bias = TerminationBias(algorithm.params.reward_form, demos.reach_an_end)
        self._verdict: Metrics = {}

    def _learner(self, touched: Sequence[Tensor]) -> OneAgent:
        def draw(_: Algorithm) -> ImitationBatch:
            return ImitationBatch(experience=self.minibatches.next())

        return OneAgent(self.imitator, draw, touched=touched)

    @property
    def learning(self) -> Algorithm:
        return self.imitator

    def _discriminator_batch(self) -> ImitationBatch:
        return ImitationBatch(self.demos.draw(), self.samples.draw(self.demos.rows))

    def _rewards(self, taken: Taken) -> Tensor:
        """Of the discriminator, once it has learned from these very steps."""
        obs = self.rollout.raw_obs().flatten(0, 1)
        self.bias.look(bool(taken.terminated.any()), self.engine.notes)
        self.demos.states.see(obs.cpu().numpy())
        self.samples.take(obs, taken.action.flatten(0, 1))
        self._verdict = self.discriminating.run(1)
        every = self.samples.pairs
        return self.reward_of(every.obs, every.action).view(taken.value.shape)

    def _learn(self, rollout: RolloutBatch) -> Metrics:
        return self._verdict | super()._learn(rollout)

    def report(self) -> Report:
        return {**super().report(), **self.demos.states.report()}

    def components(self) -> dict[str, Component]:
        return {"demonstrations": self.demos.fingerprint, **super().components()}

    def parts(self) -> list[Part]:
        return [Part(self.discriminating, "run", "discriminator"), *super().parts()]


class SACImitationLoop(OffPolicyLoop):
    """Every update is one of the discriminator, on pairs of the whole replay, and one of SAC, on
    a minibatch with the rewards of the discriminator as it is then."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm, demos: Demonstrations) -> None:
        assert isinstance(algorithm, Imitator)
        self.imitator: Algorithm = algorithm
        self.demos, self.data_notes = demos, demos.notes
        super().__init__(config, algorithm.generator)
        self.bias = TerminationBias(algorithm.params.reward_form, demos.reach_an_end)

    def _learner(self) -> OneAgent:
        return OneAgent(self.imitator, lambda _: self._imitation_batch())

    def _imitation_batch(self) -> ImitationBatch:
        own = self.replay.sample(self.demos.rows)
        return ImitationBatch(self.demos.draw(), Pairs(own.obs, own.action), self._draw())

    def _stored(self, step: Step) -> Step:
        self.bias.look(bool(step.terminated.any()), self.engine.notes)
        self.demos.states.see(step.obs)
        return step._replace(reward=np.zeros_like(step.reward))

    def report(self) -> Report:
        return {**super().report(), **self.demos.states.report()}

    def components(self) -> dict[str, Component]:
        return {"demonstrations": self.demos.fingerprint, **super().components()}


def build(
    config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset | None
) -> PPOImitationLoop | SACImitationLoop:
    """The loop of the chosen generator."""
    require_dataset(config, "demonstrations")
    assert isinstance(algorithm, Imitator)
    learns_from = batch_of(type(algorithm.generator))
    loop = PPOImitationLoop if learns_from is RolloutBatch else SACImitationLoop
    demos = Demonstrations(config, algorithm, raw_data(config, algorithm, dataset))
    try:
        return loop(config, algorithm, demos)
    except ConfigError as error:
        # the loops refuse knobs of the generator, which lie in a section of their own here
        raise ConfigError(algorithm.own_knobs(str(error))) from None


class Samples:
    """The pairs of the newest rollout, always in the same place."""

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


class StateSamples:
    """Where experts and policy have been lately, component by component, for TensorBoard."""

    NEWEST = 2_048
    MOST_COMPONENTS = 32

    def __init__(self, expert: NDArray[np.float32], active: bool) -> None:
        self.expert, self.active = expert[:, : self.MOST_COMPONENTS], active
        self._seen: deque[NDArray[np.float32]] = deque()
        self._count = 0

    def see(self, obs: NDArray[np.float32]) -> None:
        """Take in (B, O) observations of the policy; the oldest are forgotten."""
        if not self.active:
            return
        self._seen.append(obs[-self.NEWEST :, : self.MOST_COMPONENTS])
        self._count += len(self._seen[-1])
        while self._count - len(self._seen[0]) >= self.NEWEST:
            self._count -= len(self._seen.popleft())

    def report(self) -> Report:
        if not self._seen:
            return {}
        policy = np.concatenate(self._seen)
        return {
            f"states/{i}/{who}": states[:, i]
            for i in range(policy.shape[1])
            for who, states in (("expert", self.expert), ("policy", policy))
        }


class TerminationBias:
    """Warns once where episodes end early and the reward has one sign: then a constant reward
    already teaches to stay alive, or to end soon, and no demonstration is needed, or helps."""

    def __init__(self, form: str, experts_reach_an_end: bool) -> None:
        self.form, self.success = form, experts_reach_an_end
        self.silent = form == "logit"

    def look(self, terminated: bool, notes: list[str]) -> None:
        """Add the warning to `notes` at the first episode that has terminated."""
        if self.silent or not terminated:
            return
        self.silent = True
        how = "as most demonstrations do" if self.success else "which most demonstrations do not"
        sign, lesson, proves = {
            ("softplus", False): (
                "never negative",
                "staying alive",
                "a good return then proves no imitation: compare with random demonstrations, or "
                "use an environment of fixed horizon",
            ),
            ("softplus", True): (
                "never negative",
                "never to finish",
                "use algo_kwargs.reward_form=log_sigmoid",
            ),
            ("log_sigmoid", False): (
                "never positive",
                "to fail soon",
                "use algo_kwargs.reward_form=softplus",
            ),
            ("log_sigmoid", True): (
                "never positive",
                "to finish soon",
                "a good return then proves no imitation: compare with random demonstrations, or "
                "use an environment of fixed horizon",
            ),
        }[self.form, self.success]
        notes.append(
            f"algo_kwargs.reward_form: episodes of this environment terminate, {how}, and "
            f"{self.form} is {sign}, so that a constant reward already teaches {lesson}; {proves}"
        )
