"""Acting with a carry, and a memory of the streams of observations that it was acted on.

What loops of recurrent policies share: Dreamer's, and that of value-based algorithms with memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.roles import ReplayKnobs
from rl_training.envs.collector import Step
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.state import Stored
from rl_training.models.carry import Carry, num_rows, reset_rows
from rl_training.replay.batch import Batch
from rl_training.replay.sequences import SequenceReplay, StatePart, StreamStep, transitions_of
from rl_training.runtime.acting import RepeatedActing
from rl_training.runtime.loops import Component
from rl_training.runtime.loops.online import Experience, random_actions
from rl_training.runtime.profile import Part


class StreamActor:
    """The policy with the stream's carry, after the number of random steps that are asked for,
    during which the carry is kept as well."""

    def __init__(
        self, acting: RepeatedActing, experience: Experience, stream: Stream, random_steps: int = 0
    ) -> None:
        self.acting, self.experience, self.stream = acting, experience, stream
        self.random_steps = random_steps

    def actions(self) -> NDArray[Any]:
        acted = self.acting(torch.from_numpy(self.experience.obs), self.stream.carry)
        self.stream.acted(acted.carry)
        if self.experience.progress.env_steps < self.random_steps:
            return random_actions(self.acting.algorithm.spaces, self.experience)
        return acted.action.cpu().numpy()


class Stream:
    """The latest observation of every environment and the policy's carry, a named tuple."""

    def __init__(self, carry: Carry, spaces: Spaces) -> None:
        num_envs = num_rows(carry) or 0
        actions = np.zeros((num_envs, spaces.action_dim), np.float32)
        self.carry = carry
        self.action: NDArray[Any] = actions[:, 0] if spaces.is_discrete else actions
        self.reward: NDArray[Any] = np.zeros(num_envs, np.float32)
        self.first: NDArray[Any] = np.ones(num_envs, np.bool_)
        self.reported_at = 0
        self._next = carry

    def acted(self, carry: Carry) -> None:
        """The policy's carry after its chosen actions."""
        self._next = carry

    def took(self) -> Carry:
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
        stored, device = Stored(state, "stream"), self.carry[0].device
        carry = stored.tensors_like("carry", list(self.carry))
        self.carry = type(self.carry)(*(kept.to(device) for kept in carry))
        self.action = stored.tensor("action", None, *self.action.shape).numpy()
        self.reward = stored.tensor("reward", torch.float32, *self.reward.shape).numpy()
        self.first = stored.tensor("first", torch.bool, *self.first.shape).numpy()
        self.reported_at = stored.whole("reported_at", least=-1)


class StreamMemory:
    """Streams of all environments, with one entry per observation.

    An episode of n actions has n + 1 entries, the first without an action or a reward. An entry is
    stored with the policy's state, so it is stored after the policy has acted on it. `state_of`
    is what the replay keeps of a carry.
    """

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm,
        state_parts: Any,
        state_of: Callable[[Carry], Any],
    ) -> None:
        knobs: ReplayKnobs = algorithm.params
        self.stream = Stream(algorithm.initial_carry(config.num_envs), algorithm.spaces)
        self.replay = SequenceReplay(
            knobs.buffer_capacity,
            config.num_envs,
            algorithm.spaces,
            algorithm.update_count.device,
            state_parts,
        )
        self._every, self._state_of = np.arange(config.num_envs), state_of
        self._uniform = algorithm.uniform

    @property
    def touched(self) -> Sequence[Tensor]:
        return ()

    def cut(self, restarted: NDArray[Any]) -> None:
        self.replay.cut(restarted)
        self.stream.restart(restarted)

    def store(self, step: Step, fraction: float) -> None:
        """Store the entries that were acted on, and the last entries of ended episodes."""
        state = self._state_of(self.stream.took())
        self.replay.add(self.stream.step(step.obs), self._every, state)
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

    def learned(self, batch: Any) -> None:
        """Nothing is taken back."""

    def components(self) -> dict[str, Component]:
        return {"replay": self.replay, "stream": self.stream}

    def parts(self) -> list[Part]:
        return [Part(self.replay, "add", "buffer")]


class TransitionStreams(StreamMemory):
    """Transitions inside of sequences, for value-based algorithms with memory."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        carry = algorithm.initial_carry(1)
        parts = type(carry)(*(StatePart(tuple(x.shape[1:]), x.dtype, x.dtype) for x in carry))
        super().__init__(config, algorithm, parts, lambda state: state)
        p = algorithm.params
        self._sequences, self._burn_in, self._gamma = (
            p.batch_size // p.sequence_length,
            p.burn_in,
            p.discount,
        )
        self._steps = p.burn_in + p.sequence_length + 1
        refuse_short_streams(config, p, self._steps, "sequence_length")

    def draw(self, rows: int) -> Batch:
        """As many transitions as a batch has."""
        chance = self._uniform(2, self._sequences)
        sequences = self.replay.sample(self._sequences, self._steps, chance)
        return transitions_of(sequences, self._burn_in, self._gamma)


def refuse_short_streams(
    config: TrainConfig, params: ReplayKnobs, steps: int, lengthening: str
) -> None:
    """Raise an error for knobs with which no sequence could be sampled at the first update;
    `lengthening` is the one that makes sequences long."""
    num_envs = config.num_envs
    needed = f"sequences of {steps} steps and the step before them"
    if params.buffer_capacity // num_envs < steps + 1:
        raise ConfigError(
            f"algo_kwargs.buffer_capacity: {params.buffer_capacity:,} is too small for "
            f"{num_envs} environments and {needed}; set at least {(steps + 1) * num_envs:,}, or "
            f"lower algo_kwargs.{lengthening}"
        )
    if params.learning_starts < steps * num_envs:
        raise ConfigError(
            f"algo_kwargs.learning_starts: after {params.learning_starts:,} steps of {num_envs} "
            f"environments {needed} are longer than what is stored; set at least "
            f"{steps * num_envs:,}, or lower algo_kwargs.{lengthening}"
        )
