"""Masks of Discrete actions.

Where a task has them, they are the last components of every observation, one per action: 1 where
it is allowed, 0 where not. So they reach replay, data, targets and exports as observations do.
"""

from __future__ import annotations

import torch
from torch import Tensor

IMPOSSIBLE = -1e8
"""Value and logit of an action that is not allowed: its probability is 0, and 0 times it is 0."""


def allowed(obs: Tensor, num_actions: int) -> Tensor:
    """(..., actions), true where the observation's mask allows the action."""
    return obs[..., -num_actions:] > 0.5


def only_allowed(values: Tensor, obs: Tensor) -> Tensor:
    """(..., actions) values, `IMPOSSIBLE` where the observation's mask forbids the action."""
    return torch.where(allowed(obs, values.shape[-1]), values, IMPOSSIBLE)


def random_allowed(obs: Tensor, num_actions: int) -> Tensor:
    """(B,) actions, each drawn uniformly from those that its observation allows."""
    place = torch.rand(*obs.shape[:-1], num_actions, device=obs.device)
    return torch.where(allowed(obs, num_actions), place, -1.0).argmax(-1)
