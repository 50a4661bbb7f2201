"""What a simulator of many worlds on one device has to be.

Everything is a torch tensor on that device with the worlds along the first axis. Nothing may wait
for the device (`.item()`, `.cpu()`, a branch on a tensor's value), because a step is captured in a
CUDA graph together with the policy: shapes are fixed, and state is written in place. What has to
wait, or launches graphs of its own, does so in `rl_training.extend.between_graphs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import torch
from torch import Tensor


class StepTensors(NamedTuple):
    """One step of every world, before any of them is reset."""

    obs: Tensor  # (N, O) float32; of an ended episode the last observation, not the next first
    reward: Tensor  # (N,) float32
    terminated: Tensor  # (N,) bool
    truncated: Tensor | None = None  # (N,) bool, beside the time limit


class DeviceEnv(Protocol):
    """N worlds of one task. A world depends on its seed and its actions alone."""

    num_worlds: int
    device: torch.device
    observation_space: gym.Space[Any]
    """Of one world."""
    action_space: gym.Space[Any]
    time_limit: int | None
    """Steps after which an episode is truncated, counted outside; None for no limit."""

    deterministic: bool
    """Whether equal seeds and actions give equal states, bit for bit; otherwise resumed runs say
    that they are not exact."""

    # Where it has a method `new_notes`, the sentences that it returns, those since its last call,
    # are shown as warnings between steps; it may wait for the device.

    def reset(self, mask: Tensor, seeds: Tensor) -> Tensor:
        """Begin new episodes where the (N,) `mask` is set, each from its entry of the (N,) int64
        `seeds`, which are not negative; returns (N, O) observations, of which only the rows in
        the mask are read. The other worlds do not change."""

    def step(self, actions: Tensor) -> StepTensors:
        """Step all worlds with (N, A) float32 or (N,) int64 actions in the environment's units."""

    def state(self) -> Mapping[str, Tensor]:
        """All tensors on which later steps depend, by name: the tensors themselves, which a
        checkpoint copies from and a resume copies to."""

    def close(self) -> None:
        """Release what the simulator holds."""
