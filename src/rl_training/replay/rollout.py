"""Rollouts of the current policy and their advantages."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RolloutBatch(NamedTuple):
    """B steps of a rollout, with the log-probabilities and values of the policy that took them."""

    obs: Tensor  # (B, O) as given to the networks
    action: Tensor  # (B, A) as sampled, or int64, (B,) or (B, A)
    log_prob: Tensor  # (B,)
    value: Tensor  # (B,)
    advantage: Tensor  # (B,)
    returns: Tensor  # (B,) advantage + value


def generalized_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Compute GAE (Schulman et al. 2016) over (T, E) steps of E environments.

    `next_value` is the value of the state that followed each step, which at the end of an
    episode is its true final state. A termination sets the next value to 0; terminations and
    truncations both stop the recursion.
    """
    delta = reward + gamma * torch.where(terminated, 0.0, next_value) - value
    goes_on = torch.logical_not(torch.logical_or(terminated, truncated)).to(delta.dtype)
    carried = gamma * gae_lambda * goes_on
    advantages = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(delta.shape[0] - 1, -1, -1):
        following = delta[t] + carried[t] * following
        advantages[t] = following
    return advantages
