"""Learning a world model online, with a recurrent policy.

The off-policy loop with an actor that carries a latent state from step to step, and a replay of
streams from which updates sample sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.dreamer import DreamerCarry
from rl_training.algorithms.roles import SequenceKnobs, SequenceLearner
from rl_training.envs.collector import Step
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.seeding import derive_seed
from rl_training.experiment.state import Stored
from rl_training.models.carry import reset_rows
from rl_training.replay.sequences import Context, SequenceBatch, SequenceReplay, StreamStep
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.controls import Progress, crossed
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Extra, Report
from rl_training.runtime.loops.off_policy import (
    OffPolicyLoop,
    OffPolicyParts,
    UpdateSchedule,
    refuse_idle_learning,
)
from rl_training.runtime.loops.online import Experience, step_budget
from rl_training.runtime.predictions import predictions
from rl_training.runtime.profile import Part
from rl_training.runtime.signals import RunLink

VIDEOS = 20
"""Number of prediction videos per run."""


class StreamActor:
    """The policy, used from the first step on, with the stream's latent state."""

    def __init__(self, algorithm: Algorithm, experience: Experience, stream: Stream) -> None:
        self.algorithm, self.experience, self.stream = algorithm, experience, stream

    def actions(self) -> NDArray[Any]:
        obs = torch.from_numpy(self.experience.obs).to(self.algorithm.update_count.device)
        acted = self.algorithm.act(obs, explore=True, carry=self.stream.carry)
        self.stream.acted(acted.carry)
        return acted.action.cpu().numpy()


class StreamMemory:
    """Streams of all environments, with one entry per observation.

    An episode of n actions has n + 1 entries, the first without an action or a reward. An entry is
    stored with the policy's latent state, so it is stored after the policy has acted on it.
    """

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        self.learner = cast(SequenceLearner, algorithm)
        self.knobs: SequenceKnobs = algorithm.params
        self.stream = Stream(algorithm.initial_carry(config.num_envs), algorithm.spaces)
        size = self.learner.rssm.size
        self.replay = SequenceReplay(
            self.knobs.buffer_capacity,
            config.num_envs,
            algorithm.spaces,
            algorithm.update_count.device,
            deter=size.deter,
            latents=size.latents,
        )
        self._every = np.arange(config.num_envs)
        self._uniform = algorithm.uniform

    def draw(self) -> SequenceBatch:
        size = self.knobs.batch_size
        chance = self._uniform(2, size)
        return self.replay.sample(size, self.knobs.batch_length, chance, newest=1)

    @property
    def touched(self) -> Sequence[Tensor]:
        return self.replay.refreshed

    def cut(self, restarted: NDArray[Any]) -> None:
        self.replay.cut(restarted)
        self.stream.restart(restarted)

    def store(self, step: Step, fraction: float) -> None:
        """Store the entries that were acted on, and the last entries of ended episodes."""
        context = self.learner.context(self.stream.took())
        self.replay.add(self.stream.step(step.obs), self._every, context)
        ended = step.terminated | step.truncated
        due = np.flatnonzero(ended)
        if len(due):
            none = np.zeros(len(due), np.bool_)
            last = StreamStep(
                step.next_obs[due],
                step.action[due],
                step.reward[due],
                first=none,
                last=~none,
                terminal=step.terminated[due],
            )
            self.replay.add(last, due)
        self.stream.arrive(step.action, step.reward, ended)

    def learned(self, batch: SequenceBatch) -> None:
        context = Context(self.learner.last_deter, self.learner.last_stoch)
        self.replay.refresh(batch.places, context)

    def components(self) -> dict[str, Component]:
        return {"replay": self.replay, "stream": self.stream}

    def parts(self) -> list[Part]:
        return [Part(self.replay, "add", "buffer")]


class ShownPredictions(Extra):
    """Reports open-loop predictions of the model a few times per run."""

    def __init__(
        self, config: TrainConfig, memory: StreamMemory, progress: Progress, total: int
    ) -> None:
        self.memory, self.progress = memory, progress
        self._every = max(1, total // VIDEOS) if config.logs_media else 0
        self._seed = derive_seed(config.seed, "film")

    def report(self, tick: int) -> Report:
        memory = self.memory
        before, memory.stream.reported_at = memory.stream.reported_at, tick
        if not (self.progress.updates and crossed(before, tick, self._every)):
            return {}
        return predictions(memory.learner, memory.replay, memory.knobs.batch_length, self._seed)


class Stream:
    """The latest observation of every environment and the policy's carry."""

    def __init__(self, carry: DreamerCarry, spaces: Spaces) -> None:
        num_envs = carry.deter.shape[0]
        actions = np.zeros((num_envs, spaces.action_dim), np.float32)
        self.carry = carry
        self.action: NDArray[Any] = actions[:, 0] if spaces.is_discrete else actions
        self.reward: NDArray[Any] = np.zeros(num_envs, np.float32)
        self.first: NDArray[Any] = np.ones(num_envs, np.bool_)
        self.reported_at = 0
        self._next = carry

    def acted(self, carry: DreamerCarry) -> None:
        """The policy's carry after its chosen actions."""
        self._next = carry

    def took(self) -> DreamerCarry:
        """Mark the actions as executed; returns the policy's carry since then."""
        self.carry = self._next
        return self.carry

    def step(self, obs: NDArray[Any]) -> StreamStep:
        none = np.zeros(len(self.first), np.bool_)
        return StreamStep(obs, self.action, self.reward, self.first, none, none)

    def arrive(self, action: NDArray[Any], reward: NDArray[Any], first: NDArray[Any]) -> None:
        """Advance to the next observation, after an action or a reset."""
        self.action, self.reward, self.first = action, reward, first
        if first.any():
            self.carry = reset_rows(self.carry, torch.from_numpy(first))

    def restart(self, envs: NDArray[Any]) -> None:
        """Restart episodes in environments (a boolean mask) whose episode was abandoned."""
        self.arrive(self.action, self.reward, self.first | envs)

    def training_state(self) -> dict[str, Any]:
        return {
            "carry": [kept.cpu() for kept in self.carry],
            "action": torch.from_numpy(np.array(self.action)),
            "reward": torch.from_numpy(self.reward.copy()),
            "first": torch.from_numpy(self.first.copy()),
            "reported_at": self.reported_at,
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored, device = Stored(state, "stream"), self.carry.deter.device
        carry = stored.tensors_like("carry", list(self.carry))
        self.carry = DreamerCarry(*(kept.to(device) for kept in carry))
        self.action = stored.tensor("action", None, *self.action.shape).numpy()
        self.reward = stored.tensor("reward", torch.float32, *self.reward.shape).numpy()
        self.first = stored.tensor("first", torch.bool, *self.first.shape).numpy()
        self.reported_at = stored.whole("reported_at", least=-1)


def build(config: TrainConfig, algorithm: Algorithm, _: object) -> OffPolicyLoop:
    """Dreamer."""
    knobs: SequenceKnobs = algorithm.params
    refuse_short_streams(config, knobs)
    refuse_idle_learning(config, knobs)
    total, schedule, link = step_budget(config), UpdateSchedule(config, knobs), RunLink()
    memory = StreamMemory(config, algorithm)
    learner = SingleLearner(algorithm, lambda _: memory.draw(), memory.learned, memory.touched)
    engine = Engine(learner, config.engine, schedule.in_total(total), link)
    experience = Experience(config, algorithm, link.pause)
    actor = StreamActor(algorithm, experience, memory.stream)
    shown = ShownPredictions(config, memory, experience.progress, total)
    return OffPolicyLoop(
        total,
        OffPolicyParts(algorithm, schedule, memory, engine, actor, experience, extras=(shown,)),
    )


def refuse_short_streams(config: TrainConfig, params: SequenceKnobs) -> None:
    """Raise an error for knobs with which no sequence could be sampled at the first update."""
    num_envs, moments = config.num_envs, params.batch_length + 1
    needed = f"sequences of {params.batch_length} steps and the step before them"
    if params.buffer_capacity // num_envs < moments:
        raise ConfigError(
            f"algo_kwargs.buffer_capacity: {params.buffer_capacity:,} is too small for "
            f"{num_envs} environments and {needed}; set at least {moments * num_envs:,}, or lower "
            "algo_kwargs.batch_length"
        )
    if params.learning_starts < params.batch_length * num_envs:
        raise ConfigError(
            f"algo_kwargs.learning_starts: after {params.learning_starts:,} steps of {num_envs} "
            f"environments {needed} are longer than what is stored; set at least "
            f"{params.batch_length * num_envs:,}, or lower algo_kwargs.batch_length"
        )
