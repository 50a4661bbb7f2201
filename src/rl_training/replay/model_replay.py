"""A ring buffer of imagined transitions, stored many at once."""

from __future__ import annotations

from typing import Any

import torch

from rl_training.envs.spaces import Spaces
from rl_training.experiment.state import Stored
from rl_training.replay.batch import Batch
from rl_training.replay.replay import ReplayBuffer


class ModelReplay(ReplayBuffer):
    """Keeps the newest `limit` transitions, at most `capacity`, without a Python loop.

    `limit` may change during the run. The memory is never reallocated, so that sampling can be
    captured in a CUDA graph.
    """

    def __init__(
        self, capacity: int, spaces: Spaces, device: torch.device, *, gamma: float
    ) -> None:
        super().__init__(max(capacity, 2), 1, spaces, device, gamma=gamma)
        self.limit = self.capacity

    def set_limit(self, limit: int) -> None:
        """Keep at most the newest `limit` transitions from now on."""
        assert 0 < limit <= self.capacity, (limit, self.capacity)
        if limit == self.limit:
            return
        kept = min(self._filled, limit)
        age = torch.arange(kept, device=self.rows.device) - kept
        self.rows[:kept] = self.rows[(age + self._cursor) % self.limit]
        self.limit, self._cursor, self._used = limit, kept % limit, kept
        self._set_filled(kept)

    def extend(self, batch: Batch) -> None:
        """Store (N, ...) transitions, overwriting the oldest ones."""
        columns = (batch.obs, batch.next_obs, batch.action, batch.reward, batch.discount)
        rows = torch.cat([x if x.dim() == 2 else x[:, None] for x in columns], 1)
        assert len(rows) <= self.limit, (len(rows), self.limit)
        place = torch.arange(self._cursor, self._cursor + len(rows), device=self.rows.device)
        self.rows[place % self.limit] = rows
        self._used = max(self._used, min(self._cursor + len(rows), self.limit))
        self._cursor = (self._cursor + len(rows)) % self.limit
        self._set_filled(min(self._filled + len(rows), self.limit))

    def training_state(self) -> dict[str, Any]:
        return {**super().training_state(), "limit": self.limit}

    def load_training_state(self, state: dict[str, Any]) -> None:
        super().load_training_state(state)
        self.limit = Stored(state, "model_replay").whole("limit", 1, self.capacity)
