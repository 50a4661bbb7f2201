"""How near a decision is to what the data show, as one number between 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.envs.spaces import Spaces

Array = np.ndarray[Any, Any]
REFERENCES = 2_000
NEIGHBOURS, VOTERS = 5, 50
"""Logged pairs whose distance counts, and logged states whose actions are counted."""


class Support:
    """Of Box actions: the share of logged pairs of state and action that lie as far from their own
    neighbours among the data, or further. Of Discrete actions: the share of the nearest logged
    states in which the same action was taken, which estimates its probability in the data.
    """

    def __init__(self, spaces: Spaces, observations: Array, inner_actions: Array) -> None:
        self.discrete, self.actions = spaces.is_discrete, spaces.action_dim
        count = min(REFERENCES, len(observations) // 2)  # the others are left to compare with
        # drawn, since rows at even distances lie further from one another than from the others
        rows = np.random.default_rng(0).permutation(len(observations))[:count]
        self.rows = np.sort(rows)
        obs = torch.from_numpy(np.asarray(observations[self.rows], np.float32))
        action = torch.from_numpy(np.ascontiguousarray(inner_actions[self.rows]))
        self.mean, self.std = obs.mean(0), obs.std(0, correction=0).clamp(min=1e-3)
        if self.discrete:
            self.data = self._scaled(obs)
            self.taken = F.one_hot(action, self.actions).float()
            return
        action = action.float()
        self.action_std = action.std(0, correction=0).clamp(min=1e-2)
        self.data = self._points(obs, action)
        # every reference among the others: the distance to itself, 0, is left out
        own = self._squared(self.data).topk(NEIGHBOURS + 1, largest=False).values[:, 1:]
        self.ordered = own.clamp(min=0.0).sqrt().mean(-1).sort().values

    @property
    def meaning(self) -> str:
        if self.discrete:
            return "estimated probability of the action in the data, given the observation"
        return "share of the data's own decisions that lie as far from the data, or further"

    def of(self, obs: Tensor, action: Tensor) -> Tensor:
        """(B,) support of inner actions for raw observations."""
        if self.discrete:
            nearest = self._squared(self._scaled(obs)).topk(self._voters, largest=False).indices
            shares = self.taken[nearest].mean(1)
            return shares.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        squared = self._squared(self._points(obs, action))
        near = squared.topk(NEIGHBOURS, largest=False).values.clamp(min=0.0).sqrt().mean(-1)
        return (self.ordered >= near.unsqueeze(-1)).float().mean(-1)

    @property
    def _voters(self) -> int:
        return min(VOTERS, len(self.data))

    def _scaled(self, obs: Tensor) -> Tensor:
        return (obs - self.mean) / self.std

    def _points(self, obs: Tensor, action: Tensor) -> Tensor:
        return torch.cat([self._scaled(obs), action / self.action_std], -1)

    def _squared(self, points: Tensor) -> Tensor:
        """(B, references) squared distances."""
        mine, theirs = points.square().sum(-1, keepdim=True), self.data.square().sum(-1)
        return mine + theirs - 2.0 * points @ self.data.T


def support_of(spaces: Spaces, observations: Array, actions: Array) -> Support | None:
    """From data in the environment's units; None where there are too few, images, or actions of
    several choices."""
    if spaces.is_image or spaces.action_choices or len(observations) < 2 * VOTERS:
        return None
    return Support(spaces, observations, spaces.from_env(actions))
