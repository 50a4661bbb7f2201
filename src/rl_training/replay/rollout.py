"""Rollouts of the current policy and their advantages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from rl_training.models import Carry


class RolloutBatch(NamedTuple):
    """B steps of a rollout, with the log-probabilities and values of the policy that took them.

    For a policy with memory all columns are (S, L, ...): S sequences of L consecutive steps, with
    what was carried into the first of them.
    """

    obs: Tensor  # (B, O) as given to the networks
    action: Tensor  # (B, A) as sampled, or int64, (B,) or (B, A)
    log_prob: Tensor  # (B,)
    value: Tensor  # (B,)
    advantage: Tensor  # (B,)
    returns: Tensor  # (B,) advantage + value
    first: Tensor | None = None  # (S, L), whether a step begins an episode
    carry: Carry | None = None  # (S, ...), before the sequences

    def map(self, function: Callable[[Tensor], Tensor]) -> RolloutBatch:
        """Every column changed, and every part of the carry."""
        changed = RolloutBatch(*map(function, self[:6]))
        if self.first is None:
            return changed
        carry = tree_map(function, self.carry)
        return changed._replace(first=function(self.first), carry=carry)

    def steps(self) -> RolloutBatch:
        """The columns of single steps, whether or not they are parts of sequences."""
        return self if self.first is None else RolloutBatch(*(x.flatten(0, 1) for x in self[:6]))


def sequences_of(columns: Tensor, length: int) -> Tensor:
    """(S, length, ...) sequences of consecutive steps, from (T, E, ...) steps; in the order of
    time, and of the environments within."""
    cut = columns.reshape(-1, length, *columns.shape[1:])
    return cut.transpose(1, 2).flatten(0, 1)


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
