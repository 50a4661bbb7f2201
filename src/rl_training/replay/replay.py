"""The replay buffer: a ring of transitions on the training device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import CheckpointError, ConfigError
from rl_training.experiment.memory import Claim, require_memory
from rl_training.experiment.state import Stored
from rl_training.replay.batch import Batch
from rl_training.replay.frames import FrameStore
from rl_training.replay.priorities import Priorities, prefix

__all__ = ["Priorities", "ReplayBuffer"]


class ReplayBuffer:
    """Stores the newest transitions and samples them uniformly or by priority.

    It holds `capacity` transitions, rounded down to whole vector steps. A transition is one
    packed row, so a batch is a single gather; row `step * num_envs + env` belongs to
    environment `env`. Sampling has fixed shapes, needs no host sync and uses the device's
    generator.

    ***n-step returns are complete before they are stored.** The last `n_step` vector steps stay
    on the host, where each new reward is added to every n-step window that contains it. A
    window ends with its n-th reward or with its episode, and its row enters the ring when its
    step is `n_step - 1` vector steps old. So every stored row is independent: none crosses the
    end of an episode or the write position of the ring, the ring may overwrite anything, and
    sampling costs the same for every n. In exchange, the newest `n_step - 1` vector steps
    cannot be sampled yet and do not count in `len`.

    Images are stored separately, each frame once; rows hold frame numbers. If episodes are so
    short that their extra frames fill that memory, the oldest transitions are dropped before
    `capacity` is reached.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        spaces: Spaces,
        device: torch.device,
        *,
        gamma: float,
        n_step: int = 1,
        priorities: Priorities | None = None,
        rows: Tensor | None = None,
    ) -> None:
        """`rows` is memory for the transitions, where it is a part of something larger."""
        least = num_envs * (n_step + 1)
        if capacity < least:
            raise ConfigError(
                f"algo_kwargs.buffer_capacity: {capacity:,} is too small for {num_envs} "
                f"environments and {n_step}-step returns; set at least {least:,}"
            )
        self.steps = capacity // num_envs
        self.capacity = self.steps * num_envs
        if priorities is not None and priorities.capacity < self.capacity:
            raise ValueError(f"{priorities.capacity} priorities for {self.capacity} transitions")
        held = 0 if priorities is None else priorities.memory_needed(priorities.capacity)
        prioritised = priorities is not None
        needed = self.memory_needed(self.capacity, spaces, num_envs, n_step, prioritised)
        require_memory(device, Claim("a replay", self.capacity, needed), held=held)
        self.num_envs, self.n_step, self.gamma = num_envs, n_step, gamma
        self.priorities = priorities
        self.discrete = spaces.is_discrete
        self.widths = row_widths(spaces)
        # Not zeroed: the memory is allocated as it fills, and empty rows are never sampled.
        size = (self.capacity, sum(self.widths))
        self.rows = torch.empty(size, device=device) if rows is None else rows.view(size)
        self._cursor = 0  # vector step to write next
        self._filled = 0  # vector steps in the ring
        self._used = 0  # vector steps of the ring that were ever written
        # The number of rows on the device, for sampling without a sync; on the CPU the same memory.
        self._size = np.zeros(1)
        self._device_size = torch.from_numpy(self._size).to(device)
        self._make_window(spaces)
        self.frames: FrameStore | None = None
        if spaces.is_image:
            frames = FrameStore.frames_for(self.capacity, num_envs, spaces, n_step)
            self.frames = FrameStore(frames, num_envs, spaces, device)
            # Per vector step: the number of frames written before its oldest one.
            self._frames_before = np.zeros(self.steps, np.int64)
            self._window_frames_before = np.zeros(n_step, np.int64)
            self._device_first = torch.zeros((), dtype=torch.int64, device=device)
        by_step = self.rows.view(self.steps, num_envs, -1)
        self._ring = by_step
        self._host_ring: NDArray[Any] | None = by_step.numpy() if device.type == "cpu" else None

    def _make_window(self, spaces: Spaces) -> None:
        """Allocate host memory for unfinished rows, one slot per vector step."""
        n = self.n_step
        self._window = np.zeros((n, self.num_envs, sum(self.widths)), np.float32)
        self._window_tensor = torch.from_numpy(self._window)
        parts = np.split(self._window, np.cumsum(self.widths)[:-1].tolist(), axis=2)
        self._obs, self._next_obs, self._action = parts[:3]
        self._reward, self._discount = parts[3][..., 0], parts[4][..., 0]
        if spaces.is_discrete:
            self._action = self._action[..., 0]
        self._newest = n - 1  # slot of the last vector step
        self._waiting = 0  # slots whose row is not in the ring yet
        self._open = np.zeros((n, self.num_envs), np.bool_)  # windows that are still open
        # [newest slot, slot] -> gamma^k, with k vector steps between the two.
        age = (np.arange(n)[:, None] - np.arange(n)) % n
        self._reward_scale = (self.gamma**age).astype(np.float32)[..., None]
        self._next_scale = (self.gamma ** (age + 1)).astype(np.float32)[..., None]

    @staticmethod
    def memory_needed(
        capacity: int,
        spaces: Spaces,
        num_envs: int = 1,
        n_step: int = 1,
        prioritised: bool = False,
    ) -> int:
        """Bytes of a replay of `capacity` transitions on its device."""
        needed = 4 * capacity * sum(row_widths(spaces))
        if spaces.is_image:
            frames = FrameStore.frames_for(capacity, num_envs, spaces, n_step)
            needed += FrameStore.memory_needed(frames, spaces)
        return needed + (Priorities.memory_needed(capacity) if prioritised else 0)

    def __len__(self) -> int:
        """The number of transitions that can be sampled."""
        return self._filled * self.num_envs

    @property
    def size(self) -> Tensor:
        """The same as a float64 tensor on the device."""
        return self._device_size

    # --- storing ------------------------------------------------------------------------------

    def add(
        self,
        obs: NDArray[Any],
        action: NDArray[Any],
        reward: NDArray[Any],
        next_obs: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
    ) -> None:
        """Store one step of every environment.

        Observations are (num_envs, ...), and `next_obs` is what the step returned even if it
        ended the episode; actions are in inner units, (num_envs, A) or (num_envs,) for Discrete;
        rewards and boolean flags are (num_envs,). The arrays are copied.
        """
        frames_before = 0
        if self.frames is not None:
            ended = np.logical_or(terminated, truncated)
            obs, next_obs, frames_before = self.frames.add(obs, next_obs, ended)
            self._forget_lost_frames()
        if self.n_step == 1:
            slot = 0
            self._next_obs[0] = next_obs
            self._reward[0] = reward
            discount = self._discount[0]
            discount.fill(self.gamma)
            discount[terminated] = 0.0
        else:
            slot = self._newest = (self._newest + 1) % self.n_step
            self._grow_windows(reward, next_obs, terminated, truncated)
        self._obs[slot] = obs
        self._action[slot] = action
        if self.frames is not None:
            self._window_frames_before[slot] = frames_before
        if self._waiting < self.n_step - 1:
            self._waiting += 1
        else:
            self._store((slot + 1) % self.n_step)

    def _grow_windows(
        self,
        reward: NDArray[Any],
        next_obs: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
    ) -> None:
        """Open a window in the newest slot and add this step to all open windows."""
        newest, still_open = self._newest, self._open
        still_open[newest] = True
        self._reward[newest] = 0.0
        self._reward += self._reward_scale[newest] * still_open * reward
        discount = self._next_scale[newest] * np.logical_not(terminated)
        np.copyto(self._discount, discount, where=still_open)
        np.copyto(self._next_obs, next_obs, where=still_open[..., None])
        still_open &= np.logical_not(np.logical_or(terminated, truncated))

    def _store(self, slot: int) -> None:
        """Write the rows of a slot over the oldest vector step of the ring."""
        cursor, host_ring = self._cursor, self._host_ring
        if host_ring is not None:
            host_ring[cursor] = self._window[slot]
        else:
            # From pageable memory: the driver has copied it when the call returns, so the slot may
            # be reused, and the host does not wait for updates that are still queued.
            self._ring[cursor].copy_(self._window_tensor[slot], non_blocking=True)
        if self.frames is not None:
            self._frames_before[cursor] = self._window_frames_before[slot]
        self._advance()

    def add_rows(self, rows: Tensor) -> None:
        """Store complete rows of one step of every environment, (num_envs, width), that are on
        the device already; not for images."""
        self._ring[self._cursor].copy_(rows)
        self._advance()

    def _advance(self) -> None:
        """Count the vector step that was written at the cursor."""
        cursor = self._cursor
        if self.priorities is not None:
            self.priorities.insert(cursor * self.num_envs, self.num_envs)
        self._used = max(self._used, cursor + 1)
        self._cursor = cursor + 1 if cursor + 1 < self.steps else 0
        if self._filled < self.steps:
            self._set_filled(self._filled + 1)
        elif self.frames is not None:
            self._set_filled(self._filled)  # the first row has changed

    def _forget_lost_frames(self) -> None:
        """Drop the oldest vector steps whose frames have just been overwritten."""
        assert self.frames is not None
        oldest = self.frames.oldest
        while self._filled and self._frames_before[self._first] < oldest:
            if self.priorities is not None:
                self.priorities.remove(self._first * self.num_envs, self.num_envs)
            self._set_filled(self._filled - 1)

    @property
    def _first(self) -> int:
        """The oldest vector step of the ring."""
        return (self._cursor - self._filled) % self.steps

    def _set_filled(self, vector_steps: int) -> None:
        self._filled = vector_steps
        self._size[0] = vector_steps * self.num_envs
        if self._host_ring is None:
            self._device_size.fill_(vector_steps * self.num_envs)
        if self.frames is not None:
            self._device_first.fill_(self._first * self.num_envs)

    def cut(self, envs: NDArray[Any]) -> None:
        """End the open windows of environments (a boolean mask) whose episode was abandoned
        without a flag, like a truncation: the next `add` starts another episode there."""
        self._open[:, envs] = False
        if self.frames is not None:
            self.frames.begin(envs)

    # --- sampling -----------------------------------------------------------------------------

    def sample(self, batch_size: int) -> Batch:
        """Sample transitions with replacement; prioritised ones have `index` and `weight`."""
        if not self._filled:
            raise ConfigError(
                f"algo_kwargs.learning_starts: nothing can be sampled from the replay before "
                f"{self.n_step * self.num_envs} environment steps; set at least that many"
            )
        if self.priorities is not None:
            index, weight = self.priorities.draw(batch_size)
            return self.gather(index)._replace(index=index, weight=weight)
        # Doubles: their product with the size stays below it, and all rows are equally likely.
        u = torch.rand(batch_size, dtype=torch.float64, device=self.rows.device)
        index = (u * self._device_size).long()
        if self.frames is not None:  # the rows in use may not start at row 0
            index = (index + self._device_first) % self.capacity
        return self.gather(index)

    def gather(self, index: Tensor) -> Batch:
        """Return the transitions in the given rows."""
        return self.unpacked(self.rows.index_select(0, index))

    def unpacked(self, rows: Tensor) -> Batch:
        """The transitions of (B, width) packed rows."""
        obs, next_obs, action, reward, discount = torch.split(rows, self.widths, dim=1)
        if self.frames is not None:
            obs, next_obs = self.frames.images(obs), self.frames.images(next_obs)
        return Batch(
            obs=obs,
            action=action.squeeze(1).long() if self.discrete else action,
            reward=reward.squeeze(1),
            next_obs=next_obs,
            discount=discount.squeeze(1),
        )

    def everything(self) -> Batch:
        """Return all transitions that can be sampled, in the order of their rows."""
        return self.gather(torch.arange(len(self), device=self.rows.device))

    def feed_back(self, index: Tensor, td_errors: Tensor) -> None:
        """Set the priorities of sampled rows, before the next `add`; ignored if sampling is
        uniform."""
        if self.priorities is not None:
            self.priorities.update(index, td_errors)

    # --- state --------------------------------------------------------------------------------

    def _layout(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "n_step": self.n_step,
            "gamma": self.gamma,
            "widths": list(self.widths),
            "prioritised": self.priorities is not None,
        }

    def training_state(self) -> dict[str, Any]:
        """Return the filled part and the open windows. It shares memory with a full buffer: save
        it before the next `add`."""
        return {
            "layout": self._layout(),
            "rows": prefix(self.rows, self._used * self.num_envs),
            "filled": self._filled,
            "cursor": self._cursor,
            "window": self._window_tensor.clone(),
            "open": torch.from_numpy(self._open.copy()),
            "newest": self._newest,
            "waiting": self._waiting,
            "priorities": None if self.priorities is None else self.priorities.training_state(),
            "frames": None if self.frames is None else self._frames_state(self.frames),
        }

    def _frames_state(self, frames: FrameStore) -> dict[str, Any]:
        return {
            "store": frames.training_state(),
            "before": torch.from_numpy(self._frames_before[: self._used].copy()),
            "window_before": torch.from_numpy(self._window_frames_before.copy()),
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Continue from `training_state` of a buffer built with the same arguments."""
        stored = Stored(state, "replay")
        saved, own = stored.section("layout"), self._layout()
        for key, value in own.items():
            if saved[key] != value:
                raise CheckpointError(
                    f"the checkpoint's replay has {key} {saved[key]}, but the run's has "
                    f"{value}; resume with the configuration it was saved with"
                )
        rows = stored.tensor("rows", torch.float32, None, self.rows.shape[1])
        used, left = divmod(len(rows), self.num_envs)
        if left or used > self.steps:
            raise stored.wrong("rows", f"of whole vector steps, at most {self.steps:,}")
        filled, cursor = stored.whole("filled", 0, used), stored.whole("cursor", 0, self.steps - 1)
        self.rows[: len(rows)].copy_(rows)
        self._used, self._cursor = used, cursor
        self._set_filled(filled)
        self._window_tensor.copy_(stored.tensor_like("window", self._window_tensor))
        self._open[...] = stored.tensor("open", torch.bool, *self._open.shape).numpy()
        self._newest = stored.whole("newest", 0, self.n_step - 1)
        self._waiting = stored.whole("waiting", 0, self.n_step)
        if self.priorities is not None:
            self.priorities.load_training_state(stored.section("priorities"))
        if self.frames is not None:
            frames = stored.section("frames")
            self.frames.load_training_state(frames.section("store"))
            before = frames.tensor("before", torch.int64, used)
            self._frames_before[:used] = before.numpy()
            waiting = self._window_frames_before
            waiting[...] = frames.tensor("window_before", torch.int64, *waiting.shape).numpy()


def row_widths(spaces: Spaces) -> list[int]:
    """Columns of obs, next_obs, action, reward and discount; images are frame numbers."""
    width = spaces.frame_stack if spaces.is_image else spaces.obs_dim
    return [width, width, 1 if spaces.is_discrete else spaces.action_dim, 1, 1]
