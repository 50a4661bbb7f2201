"""Values, critics, and the containers that hold them beside a policy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from rl_training.models.encoders import Observed, mlp_on
from rl_training.models.masks import only_allowed
from rl_training.models.mlp import EnsembleMLP
from rl_training.models.policies import (
    ActionDistribution,
    BoundedGaussianPolicy,
    BoxPolicy,
    CategoricalPolicy,
    Policy,
    TanhGaussianPolicy,
)
from rl_training.models.questions import Question

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class ValueNetwork(nn.Module):
    """V(s), shape (B,)."""

    def __init__(self, observed: Observed, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp_on(observed, hidden_sizes, 1)

    def ask(self, obs: Tensor) -> Question[Tensor]:
        return Question(self.net, obs, lambda out: out.squeeze(-1))

    def forward(self, obs: Tensor) -> Tensor:
        return self.ask(obs).answer()


class EnsembleCritic(nn.Module):
    """Q_i(s, a) for all members at once, shape (members, B)."""

    def __init__(
        self,
        num_critics: int,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.net = EnsembleMLP(num_critics, obs_dim + action_dim, hidden_sizes, 1, layer_norm)

    def ask(self, obs: Tensor, action: Tensor) -> Question[Tensor]:
        return Question(self.net, torch.cat([obs, action], dim=-1), lambda out: out.squeeze(-1))

    def forward(self, obs: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Of all members, or of those whose numbers are in `members`."""
        out: Tensor = self.net(torch.cat([obs, action], dim=-1), members)
        return out.squeeze(-1)

    def of_samples(self, obs: Tensor, actions: Tensor) -> Tensor:
        """(members, S, B) values of (S, B, A) actions, S samples for each of (B, O) states."""
        samples, batch, action_dim = actions.shape
        repeated = obs.expand(samples, batch, obs.shape[-1]).reshape(samples * batch, -1)
        values: Tensor = self(repeated, actions.reshape(samples * batch, action_dim))
        return values.view(-1, samples, batch)


class ActionValueCritic(nn.Module):
    """Q_i(s, a) of Discrete actions: one output per action, for all members at once.

    With `masked`, actions that the observation forbids are worth `IMPOSSIBLE`.
    """

    def __init__(
        self,
        num_critics: int,
        obs_dim: int,
        num_actions: int,
        hidden_sizes: Sequence[int],
        layer_norm: bool = False,
        masked: bool = False,
    ) -> None:
        super().__init__()
        self.masked = masked
        self.net = EnsembleMLP(num_critics, obs_dim, hidden_sizes, num_actions, layer_norm)

    def ask(self, obs: Tensor, action: Tensor) -> Question[Tensor]:
        return Question(self.net, obs, lambda out: _of_action(out, action))

    def forward(self, obs: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """(members, B) values of (B,) actions."""
        return _of_action(self.net(obs, members), action)

    def of_all(self, obs: Tensor, members: Tensor | None = None) -> Tensor:
        """(members, B, actions), of all members or of those whose numbers are in `members`."""
        out: Tensor = self.net(obs, members)
        return only_allowed(out, obs) if self.masked else out


def _of_action(values: Tensor, action: Tensor) -> Tensor:
    index = action.view(1, -1, 1).expand(values.shape[0], -1, 1)
    return values.gather(-1, index).squeeze(-1)


Critics = EnsembleCritic | ActionValueCritic
"""Critics of either kind of actions."""


def critics_for(
    action_kind: str,
    num_critics: int,
    obs_dim: int,
    action_dim: int,
    hidden_sizes: Sequence[int],
    layer_norm: bool = False,
    masked: bool = False,
) -> Critics:
    """The critics that fit the action space."""
    shape = (num_critics, obs_dim, action_dim, hidden_sizes, layer_norm)
    if action_kind == "discrete":
        return ActionValueCritic(*shape, masked)
    return EnsembleCritic(*shape)


def policy_for(
    obs_dim: int,
    action_kind: str,
    action_dim: int,
    hidden_sizes: Sequence[int],
    distribution: ActionDistribution = "gaussian",
    state_dependent_std: bool = True,
    masked: bool = False,
) -> Policy:
    """The stochastic policy that fits the action space."""
    if action_kind == "discrete":
        return CategoricalPolicy(obs_dim, action_dim, hidden_sizes, masked)
    return box_policy(obs_dim, action_dim, hidden_sizes, distribution, state_dependent_std)


def box_policy(
    obs_dim: int,
    action_dim: int,
    hidden_sizes: Sequence[int],
    distribution: ActionDistribution,
    state_dependent_std: bool = True,
) -> BoxPolicy:
    """A policy of the named kind; `state_dependent_std` is for the tanh of a Gaussian.

    The bounded one has a single learned deviation, as in the authors' code of IQL and AWAC.
    """
    if distribution == "gaussian":
        return BoundedGaussianPolicy(obs_dim, action_dim, hidden_sizes, state_dependent_std=False)
    return TanhGaussianPolicy(obs_dim, action_dim, hidden_sizes, state_dependent_std)


class MLPIQLModel(nn.Module):
    """A policy and a state value, on networks of their own."""

    def __init__(
        self,
        obs_dim: int,
        action_kind: str,
        action_dim: int,
        hidden_sizes: Sequence[int],
        distribution: ActionDistribution = "gaussian",
        state_dependent_std: bool = True,
        masked: bool = False,
    ) -> None:
        super().__init__()
        shape = (obs_dim, action_kind, action_dim, hidden_sizes)
        self.policy = policy_for(*shape, distribution, state_dependent_std, masked)
        self.value = ValueNetwork(obs_dim, hidden_sizes)


class MLPSACModel(nn.Module):
    """A policy and an ensemble of critics, which alone may have LayerNorm."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        num_critics: int = 2,
        layer_norm: bool = False,
        distribution: ActionDistribution = "tanh_gaussian",
        action_kind: str = "box",
        masked: bool = False,
    ) -> None:
        super().__init__()
        self.policy = policy_for(
            obs_dim, action_kind, action_dim, hidden_sizes, distribution, masked=masked
        )
        self.critics = critics_for(
            action_kind, num_critics, obs_dim, action_dim, hidden_sizes, layer_norm, masked
        )


def frozen_copy(module: ModuleT) -> ModuleT:
    """A target network: the same weights, never trained."""
    return copy.deepcopy(module).requires_grad_(False)
