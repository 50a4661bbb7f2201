"""Learning a model of the world from one's own experience, and acting with a memory of it.

The off-policy loop with three differences: the policy carries its latent state from step to
step, experience is stored as streams of what was seen, and updates take stretches of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.dreamer import DreamerCarry
from rl_training.algorithms.roles import SequenceKnobs, SequenceLearner
from rl_training.envs.collector import Step
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.seeding import derive_seed
from rl_training.experiment.sinks import Video
from rl_training.experiment.state import Stored
from rl_training.models.carry import reset_rows
from rl_training.replay.sequences import Context, SequenceBatch, SequenceReplay, StreamStep
from rl_training.runtime.agents import OneAgent
from rl_training.runtime.controls import crossed
from rl_training.runtime.loops import Component, Report
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.predictions import predictions

FILMS = 20
"""Predictions of the model that are shown in the course of a run."""


class WorldModelLoop(OffPolicyLoop):
    """The clock counts environment steps; every vector step takes `num_envs` of them.

    An environment's stream has one moment per observation: an episode of n steps has n + 1,
    the first without an action or a reward, the last without an action after it. A moment is
    stored together with the latent state that the policy held in it, so it is stored once the
    policy has acted on it.
    """

    replay: SequenceReplay

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        refuse_short_streams(config, algorithm.params)
        assert isinstance(algorithm, SequenceLearner)
        self.learner: SequenceLearner = algorithm
        super().__init__(config, algorithm)
        self.stream = Stream(algorithm.initial_carry(config.num_envs), algorithm.spaces)
        self._films_every = max(1, self.total // FILMS) if config.logs_media else 0
        self._film_seed = derive_seed(config.seed, "film")

    def _make_replay(self, config: TrainConfig) -> SequenceReplay:
        algorithm, size = self.algorithm, self.learner.rssm.size
        return SequenceReplay(
            self.params.buffer_capacity,
            config.num_envs,
            algorithm.spaces,
            algorithm.update_count.device,
            deter=size.deter,
            latents=size.latents,
        )

    def _learner(self) -> OneAgent:
        return OneAgent(
            self.algorithm, lambda _: self._draw(), self._learned, self.replay.refreshed
        )

    def _collect(self) -> None:
        restarted = self.experience.collector.restarted
        if restarted.any():
            self.replay.cut(restarted)
            self.stream.restart(restarted)
            restarted[:] = False
        before = self.stream.carry
        obs = self.experience.obs
        try:
            step = self.experience.draw_and_step(self._actions)
        except BaseException:
            self.stream.carry = before  # nothing has happened
            raise
        self._store(obs, step)

    def _actions(self) -> NDArray[Any]:
        obs = torch.from_numpy(self.experience.obs).to(self.algorithm.update_count.device)
        acted = self.algorithm.act(obs, explore=True, carry=self.stream.carry)
        self.stream.carry = acted.carry
        return acted.action.cpu().numpy()

    def _store(self, obs: NDArray[Any], step: Step) -> None:
        """The moments that were acted on, and those with which episodes have ended."""
        every = np.arange(self.experience.num_envs)
        context = self.learner.context(self.stream.carry)
        self.replay.add(self.stream.moments(obs), every, context)
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

    def _draw(self) -> SequenceBatch:
        p = self.params
        chance = self.algorithm.uniform(2, p.batch_size)
        return self.replay.sample(p.batch_size, p.batch_length, chance, newest=1)

    def _learned(self, batch: Any) -> None:
        context = Context(self.learner.last_deter, self.learner.last_stoch)
        self.replay.refresh(batch.places, context)

    def report(self) -> Report:
        return {**super().report(), **self._predictions()}

    def _predictions(self) -> dict[str, float | Video]:
        """How the model sees what comes, some times in the course of a run."""
        before, self.stream.reported_at = self.stream.reported_at, self.tick
        if not (self.progress.updates and crossed(before, self.tick, self._films_every)):
            return {}
        return predictions(self.learner, self.replay, self.params.batch_length, self._film_seed)

    def components(self) -> dict[str, Component]:
        return {**super().components(), "stream": self.stream}


class Stream:
    """What every environment has shown last, and what the policy carries into it."""

    def __init__(self, carry: DreamerCarry, spaces: Spaces) -> None:
        num_envs = carry.deter.shape[0]
        actions = np.zeros((num_envs, spaces.action_dim), np.float32)
        self.carry = carry
        self.action: NDArray[Any] = actions[:, 0] if spaces.is_discrete else actions
        self.reward: NDArray[Any] = np.zeros(num_envs, np.float32)
        self.first: NDArray[Any] = np.ones(num_envs, np.bool_)
        self.reported_at = 0

    def moments(self, obs: NDArray[Any]) -> StreamStep:
        none = np.zeros(len(self.first), np.bool_)
        return StreamStep(obs, self.action, self.reward, self.first, none, none)

    def arrive(self, action: NDArray[Any], reward: NDArray[Any], first: NDArray[Any]) -> None:
        """At the next moment, to which an action has led, or with which an episode begins."""
        self.action, self.reward, self.first = action, reward, first
        if first.any():
            self.carry = reset_rows(self.carry, torch.from_numpy(first))

    def restart(self, envs: NDArray[Any]) -> None:
        """Begin episodes in environments (a boolean mask) whose episode was given up."""
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


def build(config: TrainConfig, algorithm: Algorithm, _: object) -> WorldModelLoop:
    return WorldModelLoop(config, algorithm)


def refuse_short_streams(config: TrainConfig, params: SequenceKnobs) -> None:
    """Refuse knobs with which no stretch could be drawn when the first update is due."""
    num_envs, moments = config.num_envs, params.batch_length + 1
    needed = f"sequences of {params.batch_length} moments and the one before them"
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
