"""Stores the images of a replay, each frame once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError
from rl_training.experiment.state import Stored
from rl_training.replay.priorities import prefix

LARGEST_NUMBER = 2**24
"""Frame numbers are stored in float32 rows, which represent integers exactly up to here."""


class FrameStore:
    """A ring buffer of frames; an observation is stored as the numbers of its stacked frames.

    Consecutive observations of an environment share all frames but one, so a step stores one
    frame, plus the distinct frames of the first stack of an episode. How an environment fills
    its first stack does not matter.

    A frame's number is its position in the ring. Positions are reused in the order of writing:
    references to frames older than `oldest` must be dropped.
    """

    def __init__(self, capacity: int, num_envs: int, spaces: Spaces, device: torch.device) -> None:
        if capacity > LARGEST_NUMBER:
            raise ConfigError(
                f"algo_kwargs.buffer_capacity: a replay of images holds at most "
                f"{LARGEST_NUMBER:,} frames, this one would need {capacity:,}; lower it"
            )
        self.capacity, self.stack, self.image_shape = (
            capacity,
            spaces.frame_stack,
            spaces.image_shape,
        )
        # Not zeroed: the memory is allocated as it fills.
        size = spaces.obs_dim // self.stack
        self.frames = torch.empty(capacity, size, dtype=torch.uint8, device=device)
        self._on_host = self.frames.numpy() if device.type == "cpu" else None
        self.written = 0  # total frames written
        self._current = np.zeros(
            (num_envs, self.stack), np.int64
        )  # count at which each was written
        self._begins = np.ones(num_envs, np.bool_)

    @staticmethod
    def memory_needed(capacity: int, spaces: Spaces) -> int:
        """Bytes of a ring of `capacity` frames."""
        return capacity * (spaces.obs_dim // spaces.frame_stack)

    @staticmethod
    def frames_for(transitions: int, num_envs: int, spaces: Spaces, n_step: int) -> int:
        """Frames needed for a number of transitions, assuming episodes of 32 steps or more.

        There is always room for the newest transitions, which have no row in a replay yet.
        """
        stack = spaces.frame_stack
        waiting = num_envs * (stack + 1) * (stack + n_step + 1)
        return transitions + transitions // 16 + 2 * waiting

    @property
    def oldest(self) -> int:
        """The number of frames that were written before the oldest one still stored."""
        return self.written - self.capacity

    def add(
        self, obs: NDArray[Any], next_obs: NDArray[Any], ended: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], int]:
        """Store the new frames of one step of every environment, (E, ...) uint8 each.

        Returns the frame numbers of both observations, (E, stack) each, and the number of
        frames that were written before the oldest of them.
        """
        num_envs, stack = self._current.shape
        seen = obs.reshape(num_envs, stack, -1)
        following = next_obs.reshape(num_envs, stack, -1)
        new: list[NDArray[Any]] = []
        for i in np.flatnonzero(self._begins).tolist():
            for k, frame in enumerate(seen[i]):
                if k == 0 or not np.array_equal(frame, seen[i, k - 1]):
                    new.append(frame)
                self._current[i, k] = self.written + len(new) - 1
        if stack > 1 and not np.array_equal(following[:, :-1], seen[:, 1:]):
            raise EnvironmentSetupError(
                "env_id: the environment's observations are not a stack that shifts by one "
                "frame per step, as its wrapper's stack_size implies; correct its wrappers"
            )
        before = self._current.copy()
        self._current[:, :-1] = before[:, 1:]
        self._current[:, -1] = self.written + len(new) + np.arange(num_envs)
        new.extend(following[:, -1])
        self._write(new)
        self._begins[...] = ended
        numbers = before % self.capacity, self._current % self.capacity
        return *numbers, int(before.min())

    def _write(self, new: list[NDArray[Any]]) -> None:
        places = (self.written + np.arange(len(new))) % self.capacity
        self.written += len(new)
        if self._on_host is not None:
            for place, frame in zip(places.tolist(), new, strict=True):
                self._on_host[place] = frame
            return
        # From pageable memory: the driver has copied it when the call returns, without a sync.
        block = torch.from_numpy(np.stack(new))
        start, device = int(places[0]), self.frames.device
        ahead = min(len(new), self.capacity - start)
        self.frames[start : start + ahead].copy_(block[:ahead].to(device, non_blocking=True))
        if ahead < len(new):
            self.frames[: len(new) - ahead].copy_(block[ahead:].to(device, non_blocking=True))

    def begin(self, envs: NDArray[Any]) -> None:
        """Mark environments (a boolean mask) whose next `add` starts an episode."""
        self._begins |= envs

    def images(self, numbers: Tensor) -> Tensor:
        """Return (B, *image_shape) uint8 observations for (B, stack) frame numbers."""
        flat = numbers.long().view(-1)
        return self.frames.index_select(0, flat).view(-1, *self.image_shape)

    def training_state(self) -> dict[str, Any]:
        """Return the state, which shares memory with a full ring: save it before the next `add`."""
        return {
            "frames": prefix(self.frames, min(self.written, self.capacity)),
            "written": self.written,
            "current": torch.from_numpy(self._current.copy()),
            "begins": torch.from_numpy(self._begins.copy()),
        }

    def load_training_state(self, state: dict[str, Any] | Stored) -> None:
        stored = Stored(state, "frames")
        written = stored.whole("written")
        rows = min(written, self.capacity)
        self.frames[:rows].copy_(stored.tensor("frames", torch.uint8, rows, self.frames.shape[1]))
        current = stored.tensor("current", torch.int64, *self._current.shape).numpy()
        if ((current < 0) | (current >= max(written, 1))).any():
            raise stored.wrong("current", f"frames below {written:,}")
        self.written = written
        self._current[...] = current
        self._begins[...] = stored.tensor("begins", torch.bool, *self._begins.shape).numpy()
