"""Images of a replay, each frame stored once."""

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
"""Numbers of frames are kept in float32 rows, which hold whole numbers exactly up to here."""


class FrameStore:
    """A ring of frames, and observations as the numbers of the frames in their stack.

    Consecutive observations of an environment share all frames but one, and a transition's
    next observation is the next transition's observation, so a step stores one frame, an
    episode its last one and the different ones of its first stack. How an environment fills
    up its first stack does not matter.

    A frame's number is its place in the ring. Places are reused in the order of writing:
    what refers to frames older than `oldest` must be forgotten.
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
        # Not zeroed: memory is taken as it fills.
        size = spaces.obs_dim // self.stack
        self.frames = torch.empty(capacity, size, dtype=torch.uint8, device=device)
        self._on_host = self.frames.numpy() if device.type == "cpu" else None
        self.written = 0  # frames ever
        self._current = np.zeros(
            (num_envs, self.stack), np.int64
        )  # count at which each was written
        self._begins = np.ones(num_envs, np.bool_)

    @staticmethod
    def memory_needed(capacity: int, spaces: Spaces) -> int:
        """Bytes that a ring of `capacity` frames takes."""
        return capacity * (spaces.obs_dim // spaces.frame_stack)

    @staticmethod
    def frames_for(transitions: int, num_envs: int, spaces: Spaces, n_step: int) -> int:
        """Frames that hold a number of transitions, with room for one episode in 32 steps.

        Whatever happens, the newest transitions that no row of a replay holds yet fit in.
        """
        stack = spaces.frame_stack
        waiting = num_envs * (stack + 1) * (stack + n_step + 1)
        return transitions + transitions // 16 + 2 * waiting

    @property
    def oldest(self) -> int:
        """How many frames had been written before the oldest that is still there."""
        return self.written - self.capacity

    def add(
        self, obs: NDArray[Any], next_obs: NDArray[Any], ended: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], int]:
        """Store what is new in one step of every environment, (E, ...) uint8 each.

        Returns the numbers of the frames of both observations, (E, stack) each, and the count
        of frames that had been written before the oldest of them.
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
                "env_id: the environment's observations are not a stack of frames that moves on "
                "by one frame a step, as its wrapper's stack_size says; correct its wrappers"
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
        # From pageable memory: the driver has its copy when the call returns, and nothing waits.
        block = torch.from_numpy(np.stack(new))
        start, device = int(places[0]), self.frames.device
        ahead = min(len(new), self.capacity - start)
        self.frames[start : start + ahead].copy_(block[:ahead].to(device, non_blocking=True))
        if ahead < len(new):
            self.frames[: len(new) - ahead].copy_(block[ahead:].to(device, non_blocking=True))

    def begin(self, envs: NDArray[Any]) -> None:
        """The next `add` begins an episode in these environments (a boolean mask)."""
        self._begins |= envs

    def images(self, numbers: Tensor) -> Tensor:
        """(B, *image_shape) uint8 observations from (B, stack) numbers of frames."""
        flat = numbers.long().view(-1)
        return self.frames.index_select(0, flat).view(-1, *self.image_shape)

    def training_state(self) -> dict[str, Any]:
        """Shares memory with a ring that is full: write it before the next `add`."""
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
