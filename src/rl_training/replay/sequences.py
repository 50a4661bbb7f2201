"""A replay of observation streams, from which sequences of any length are sampled."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.memory import Claim, require_memory
from rl_training.experiment.state import Stored
from rl_training.models import Past
from rl_training.replay.batch import Batch


class StreamStep(NamedTuple):
    """The newest observations of some environments, one row each.

    `action` is the inner action before the observation and `reward` its reward; both are ignored
    where `first` marks a reset. `last` marks the end of an episode, `terminal` a termination.
    """

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[Any]
    first: NDArray[Any]
    last: NDArray[Any]
    terminal: NDArray[Any]


class Context(NamedTuple):
    """Stored latent states of the model at some steps."""

    deter: Tensor  # (B, D)
    stoch: Tensor  # (B, latents) classes


class StatePart(NamedTuple):
    """One tensor of the states that are stored with the steps."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stored_as: torch.dtype


def latent_parts(deter: int, latents: int) -> Any:
    """The parts of a `Context` of these sizes."""
    parts: Any = (
        StatePart((deter,), torch.float32, torch.float16),
        StatePart((latents,), torch.int64, torch.uint8),
    )
    return Context(*parts)


class SequenceBatch(NamedTuple):
    """(B, T, ...) consecutive steps, which may span several episodes."""

    obs: Tensor
    action: Tensor  # the action before each step, one-hot for Discrete; zero at a reset
    reward: Tensor
    first: Tensor
    last: Tensor
    terminal: Tensor
    context: Any  # the stored state of the step before the first one
    places: Tensor  # (B, T), for `refresh`


class SequenceReplay:
    """Stores the newest `capacity` steps in one ring per environment.

    A stored step is one observation, so an episode of n actions has n + 1. Sequences are sampled
    uniformly over all complete ones and never cross the write position of a ring; the first
    `newest` of a batch are the latest of each environment in turn. Sampling has fixed shapes and
    needs no host sync. States of the policy are stored with the steps and can be refreshed;
    every sequence comes with the state before it. `state` is a named tuple of `StatePart`s, and
    states are named tuples of its kind.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        spaces: Spaces,
        device: torch.device,
        state: Any,
    ) -> None:
        self.length = capacity // num_envs
        self.capacity = self.length * num_envs
        if self.length < 2:
            raise ConfigError(
                f"algo_kwargs.buffer_capacity: {capacity:,} is too small for {num_envs} "
                f"environments; set at least {2 * num_envs:,}"
            )
        needed = self.memory_needed(self.capacity, spaces, state)
        require_memory(device, Claim("a replay", self.capacity, needed))
        self.num_envs, self.spaces = num_envs, spaces
        n, discrete = self.capacity, spaces.is_discrete
        image = torch.uint8 if spaces.is_image else torch.float32
        self._obs = torch.zeros(n, *spaces.obs_shape, dtype=image, device=device)
        width = 1 if discrete else spaces.action_dim
        self._action = torch.zeros(n, width, device=device)
        self._reward = torch.zeros(n, device=device)
        # first, last, terminal
        self._flags = torch.zeros(3, n, dtype=torch.bool, device=device)
        self._state_parts = state
        self._states = type(state)(
            *(torch.zeros(n, *part.shape, dtype=part.stored_as, device=device) for part in state)
        )
        self._written = np.zeros(num_envs, np.int64)  # total steps written per environment
        self._device_written = torch.zeros(num_envs, dtype=torch.int64, device=device)

    @staticmethod
    def memory_needed(capacity: int, spaces: Spaces, state: Any) -> int:
        """Bytes of a replay of `capacity` steps on its device."""
        seen = int(np.prod(spaces.obs_shape)) * (1 if spaces.is_image else 4)
        width = 1 if spaces.is_discrete else spaces.action_dim
        kept: int = sum(math.prod(part.shape) * part.stored_as.itemsize for part in state)
        return capacity * (seen + 4 * width + 4 + 3 + kept)

    def __len__(self) -> int:
        """The number of stored steps."""
        return int(np.minimum(self._written, self.length).sum())

    @property
    def shortest(self) -> int:
        """The number of stored steps of the environment with the fewest."""
        return int(np.minimum(self._written, self.length).min())

    def add(self, steps: StreamStep, envs: NDArray[Any], context: Any = None) -> None:
        """Store one step of each of the given environments with the policy's states."""
        device = self._reward.device
        places = torch.from_numpy(envs * self.length + self._written[envs] % self.length)
        places = places.to(device)
        self._obs[places] = torch.from_numpy(np.ascontiguousarray(steps.obs)).to(device)
        action = np.asarray(steps.action, np.float32).reshape(len(envs), -1)
        self._action[places] = torch.from_numpy(action).to(device)
        self._reward[places] = torch.from_numpy(np.asarray(steps.reward, np.float32)).to(device)
        flags = np.stack([steps.first, steps.last, steps.terminal])
        self._flags[:, places] = torch.from_numpy(flags).to(device)
        if context is None:
            for states in self._states:
                states[places] = 0
        else:
            self.refresh(places, context)
        self._written[envs] += 1
        self._device_written.copy_(torch.from_numpy(self._written))

    def sample(
        self, batch_size: int, steps: int, uniform: Tensor, newest: int = 0
    ) -> SequenceBatch:
        """Sample sequences of `steps` steps; `uniform` is (2, batch_size) noise in [0, 1)."""
        if self.shortest <= steps:
            raise ConfigError(
                f"algo_kwargs.batch_length: sequences of {steps} steps and the step before them "
                f"need {steps + 1} of every environment, but the replay holds {self.shortest}; "
                "raise algo_kwargs.learning_starts or buffer_capacity, or shorten the sequences"
            )
        device = self._reward.device
        rows = torch.arange(batch_size, device=device)
        noise = uniform.double()
        env = (noise[0] * self.num_envs).long()
        env = torch.where(rows < newest, (env + rows) % self.num_envs, env)
        written = self._device_written[env]
        stored = written.clamp(max=self.length)
        begin = ((stored - steps).double() * noise[1]).long()
        begin = torch.where(rows < newest, stored - steps - 1, begin)
        first = written - stored + begin  # counts all steps of an environment
        number = first[:, None] + torch.arange(steps + 1, device=device)
        place = env[:, None] * self.length + number % self.length
        before, index = place[:, 0], place[:, 1:]
        begins, last, terminal = self._flags[:, index]
        going = (~begins).unsqueeze(-1)
        action = self._action[index]
        if self.spaces.is_discrete:
            choices = torch.arange(self.spaces.action_dim, device=device)
            action = (action == choices).float()
        return SequenceBatch(
            self._obs[index],
            action * going,
            self._reward[index] * going.squeeze(-1),
            begins,
            last,
            terminal,
            self._state_at(before),
            index,
        )

    def _state_at(self, places: Tensor) -> Any:
        parts = zip(self._states, self._state_parts, strict=True)
        return type(self._states)(*(stored[places].to(part.dtype) for stored, part in parts))

    def cut(self, envs: NDArray[Any]) -> None:
        """End the episodes of environments (a boolean mask) that were abandoned without a flag,
        like a truncation."""
        due = np.flatnonzero(envs & (self._written > 0))
        newest = due * self.length + (self._written[due] - 1) % self.length
        self._flags[1, torch.from_numpy(newest).to(self._flags.device)] = True

    def refresh(self, places: Tensor, context: Any) -> None:
        """Store the policy's current states at some places; of duplicates the last counts."""
        flat = places.flatten()
        # a GPU does not guarantee the order of writes, so duplicates write the same value
        rows = torch.arange(len(flat), device=flat.device)
        last = torch.where(flat[:, None] == flat, rows, -1).amax(1)
        for states, new in zip(self._states, context, strict=True):
            states[flat] = new.flatten(0, -2)[last].to(states.dtype)

    @property
    def refreshed(self) -> tuple[Tensor, ...]:
        """The tensors that `refresh` writes to."""
        return tuple(self._states)

    # --- state --------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Tensor]:
        return {
            "obs": self._obs,
            "action": self._action,
            "reward": self._reward,
            "first": self._flags[0],
            "last": self._flags[1],
            "terminal": self._flags[2],
            **self._states._asdict(),
        }

    def training_state(self) -> dict[str, Any]:
        """Return only what was written, so that a young replay makes a small checkpoint."""
        used = int(min(self._written.max(), self.length))
        shape = (self.num_envs, self.length)
        kept = {
            name: part.view(*shape, *part.shape[1:])[:, :used].cpu()
            for name, part in self._parts().items()
        }
        return {**kept, "written": torch.from_numpy(self._written.copy())}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "replay")
        written = stored.tensor("written", torch.int64, self.num_envs)
        if bool((written < 0).any()):
            raise stored.wrong("written", "counts")
        used = min(int(written.max()), self.length)
        shape = (self.num_envs, self.length)
        for name, part in self._parts().items():
            rest = part.shape[1:]
            kept = stored.tensor(name, part.dtype, self.num_envs, used, *rest)
            part.view(*shape, *rest)[:, :used] = kept.to(part.device)
        self._written[:] = written.numpy()
        self._device_written.copy_(written)


def transitions_of(sequences: SequenceBatch, burn_in: int, gamma: float) -> Batch:
    """The transitions between the steps of sequences behind the first `burn_in`, as (B,) rows.

    Those from the end of an episode to the next one have the weight 0; the mean weight is 1.
    `past` is what networks with memory are given of the sequences.
    """

    def steps(column: Tensor, begin: int, end: int | None = None) -> Tensor:
        return column[:, begin:end].flatten(0, 1)

    after = burn_in + 1
    inside = (~steps(sequences.last, burn_in, -1)).to(sequences.reward.dtype)
    return Batch(
        steps(sequences.obs, burn_in, -1),
        steps(sequences.action, after).argmax(-1),
        steps(sequences.reward, after),
        steps(sequences.obs, after),
        gamma * (~steps(sequences.terminal, after)).to(sequences.reward.dtype),
        weight=inside / inside.mean().clamp(min=1e-8),
        past=Past(sequences.obs, sequences.first, sequences.context, burn_in),
    )
