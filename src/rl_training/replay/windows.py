"""n-step windows of transitions on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.envs.spaces import Spaces
from rl_training.experiment.state import Stored
from rl_training.replay.replay import row_widths


class DeviceWindows:
    """Makes rows for a replay of the steps of worlds on the device, as `ReplayBuffer.add` does on
    the host: the same rows, `n_step - 1` vector steps later.

    Slots are ordered by age and move on at every step, so that `add` is the same work each time
    and can be captured in a CUDA graph.
    """

    def __init__(
        self, num_envs: int, spaces: Spaces, device: torch.device, gamma: float, n_step: int
    ) -> None:
        self.n_step, self.num_envs, self.device = n_step, num_envs, device
        self.widths = row_widths(spaces)
        self.rows = torch.zeros(n_step, num_envs, sum(self.widths), device=device)
        self._open = torch.zeros(n_step, num_envs, dtype=torch.bool, device=device)
        self.added = 0
        """Vector steps so far, up to `n_step`."""
        age = torch.arange(n_step - 1, -1, -1, device=device).unsqueeze(1)
        self._reward_scale, self._next_scale = gamma**age, gamma ** (age + 1)

    def tensors(self) -> list[Tensor]:
        """Those that `add` writes to."""
        return [self.rows, self._open]

    def add(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        terminated: Tensor,
        truncated: Tensor,
    ) -> None:
        """Add one step of every world, (N, ...), to all windows that are still open."""
        if self.n_step > 1:
            for part in self.tensors():
                part.copy_(part.roll(-1, 0))
        newest, still_open = self.n_step - 1, self._open
        still_open[newest] = True
        old_obs, last_obs, actions, gains, discounts = torch.split(self.rows, self.widths, dim=2)
        old_obs[newest] = obs
        actions[newest] = action.reshape(self.num_envs, -1).to(self.rows.dtype)
        gains[newest] = 0.0
        gains.add_((self._reward_scale * still_open * reward).unsqueeze(2))
        discount = (self._next_scale * ~terminated).unsqueeze(2)
        is_open = still_open.unsqueeze(2)
        discounts.copy_(torch.where(is_open, discount.to(discounts.dtype), discounts))
        last_obs.copy_(torch.where(is_open, next_obs, last_obs))
        still_open &= ~(terminated | truncated)

    def complete(self) -> Tensor | None:
        """After an `add`: the (N, width) rows of the oldest slot; None while it is empty."""
        self.added = min(self.added + 1, self.n_step)
        return self.rows[0] if self.added == self.n_step else None

    def training_state(self) -> dict[str, Any]:
        return {"added": self.added, "tensors": [part.cpu() for part in self.tensors()]}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "windows")
        self.added = stored.whole("added", most=self.n_step)
        own = self.tensors()
        for part, value in zip(own, stored.tensors_like("tensors", own), strict=True):
            part.copy_(value)
