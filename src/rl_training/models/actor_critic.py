"""Values, critics, and the containers that hold them beside a policy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.architecture import Architecture, Layers
from rl_training.models.choices import CategoricalPolicy, MultiCategoricalPolicy
from rl_training.models.encoders import Encoder, Observed
from rl_training.models.masks import only_allowed
from rl_training.models.policies import (
    ActionDistribution,
    BoundedGaussianPolicy,
    Policy,
    TanhGaussianPolicy,
)
from rl_training.models.stacked import DeferredForward

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class ValueNetwork(nn.Module):
    """V(s), shape (B,)."""

    def __init__(self, observed: Observed, hidden_sizes: Layers) -> None:
        super().__init__()
        self.net = Architecture.of(hidden_sizes).net(observed, 1)

    def deferred(self, obs: Tensor) -> DeferredForward[Tensor]:
        return DeferredForward(self.net, obs, lambda out: out.squeeze(-1))

    def forward(self, obs: Tensor) -> Tensor:
        return self.deferred(obs).compute()


class EnsembleCritic(nn.Module):
    """Q_i(s, a) for all members at once, shape (members, B)."""

    outputs: ClassVar[int] = 1
    """Of the network, per member."""

    def __init__(
        self,
        num_critics: int,
        observed: Observed,
        action_dim: int,
        hidden_sizes: Layers,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, width = encoder_and_width(observed)
        layers = Architecture.of(hidden_sizes, layer_norm)
        self.net = layers.ensemble(num_critics, width + action_dim, self.outputs)

    def value(self, out: Tensor) -> Tensor:
        """(members, B) values from (members, B, outputs) of the network."""
        return out.squeeze(-1)

    def deferred(self, obs: Tensor, action: Tensor) -> DeferredForward[Tensor]:
        return DeferredForward(self.net, self._inputs(obs, action), self.value)

    def forward(self, obs: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Values of all members, or of those in `members`."""
        return self.value(self.net(self._inputs(obs, action), members))

    def _inputs(self, obs: Tensor, action: Tensor) -> Tensor:
        return torch.cat([self._features(obs), action], dim=-1)

    def _features(self, obs: Tensor) -> Tensor:
        return obs if self.encoder is None else self.encoder(obs)

    def of_samples(self, obs: Tensor, actions: Tensor) -> Tensor:
        """(members, S, B) values of (S, B, A) actions, S samples for each of (B, O) states."""
        samples, batch, action_dim = actions.shape
        features = self._features(obs)  # once, whatever the number of samples
        repeated = features.expand(samples, batch, features.shape[-1]).reshape(samples * batch, -1)
        inputs = torch.cat([repeated, actions.reshape(samples * batch, action_dim)], dim=-1)
        return self.value(self.net(inputs, None)).view(-1, samples, batch)


class CategoricalCritic(EnsembleCritic):
    """Distributions of the return over fixed atoms; values are their means.

    Bellemare, Dabney and Munos 2017, arXiv:1707.06887, with the atoms of SimbaV2, whose rewards are
    divided so that returns stay between them.
    """

    outputs: ClassVar[int] = 101
    largest: ClassVar[float] = 5.0
    """The atoms reach from minus this value to it."""

    atoms: Tensor

    def __init__(
        self,
        num_critics: int,
        observed: Observed,
        action_dim: int,
        hidden_sizes: Layers,
        layer_norm: bool = False,
    ) -> None:
        super().__init__(num_critics, observed, action_dim, hidden_sizes, layer_norm)
        atoms = torch.linspace(-self.largest, self.largest, self.outputs)
        self.register_buffer("atoms", atoms, persistent=False)

    def value(self, out: Tensor) -> Tensor:
        return (out.softmax(-1) * self.atoms).sum(-1)

    def log_probs(self, obs: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """(members, B, atoms), of all members or of those in `members`."""
        return F.log_softmax(self.net(self._inputs(obs, action), members), dim=-1)


class ActionValueCritic(nn.Module):
    """Q_i(s, a) of Discrete actions: one output per action, for all members at once.

    With `masked`, actions that the observation forbids are worth `IMPOSSIBLE`.
    """

    def __init__(
        self,
        num_critics: int,
        observed: Observed,
        num_actions: int,
        hidden_sizes: Layers,
        layer_norm: bool = False,
        masked: bool = False,
    ) -> None:
        super().__init__()
        self.masked = masked
        self.encoder, width = encoder_and_width(observed)
        layers = Architecture.of(hidden_sizes, layer_norm)
        self.net = layers.ensemble(num_critics, width, num_actions)

    def deferred(self, obs: Tensor, action: Tensor) -> DeferredForward[Tensor]:
        return DeferredForward(self.net, self._features(obs), lambda out: _of_action(out, action))

    def forward(self, obs: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """(members, B) values of (B,) actions."""
        return _of_action(self.net(self._features(obs), members), action)

    def of_all(self, obs: Tensor, members: Tensor | None = None) -> Tensor:
        """(members, B, actions), of all members or of those whose numbers are in `members`."""
        out: Tensor = self.net(self._features(obs), members)
        return only_allowed(out, obs) if self.masked else out

    def _features(self, obs: Tensor) -> Tensor:
        return obs if self.encoder is None else self.encoder(obs)


def encoder_and_width(observed: Observed) -> tuple[Encoder | None, int]:
    """The encoder of observations, if there is one, and the number of features."""
    return (None, observed) if isinstance(observed, int) else (observed, observed.out_dim)


def _of_action(values: Tensor, action: Tensor) -> Tensor:
    index = action.view(1, -1, 1).expand(values.shape[0], -1, 1)
    return values.gather(-1, index).squeeze(-1)


Critics = EnsembleCritic | ActionValueCritic
"""Critics of either kind of actions."""


def critics_for(
    action_kind: str,
    num_critics: int,
    observed: Observed,
    action_dim: int,
    hidden_sizes: Layers,
    layer_norm: bool = False,
    masked: bool = False,
) -> Critics:
    """The critics that fit the action space."""
    shape = (num_critics, observed, action_dim, hidden_sizes, layer_norm)
    if action_kind == "discrete":
        return ActionValueCritic(*shape, masked)
    categorical = Architecture.of(hidden_sizes).kind == "simbav2"
    return CategoricalCritic(*shape) if categorical else EnsembleCritic(*shape)


def policy_for(
    observed: Observed,
    action_kind: str,
    action_dim: int,
    hidden_sizes: Layers,
    distribution: ActionDistribution = "gaussian",
    state_dependent_std: bool = True,
    masked: bool = False,
    choices: Sequence[int] = (),
) -> Policy:
    """The stochastic policy that fits the action space.

    `choices` are those of each part of MultiDiscrete actions.

    For Box actions it is of the kind `distribution`; `state_dependent_std` is for the tanh of a
    Gaussian. The bounded Gaussian has a single learned standard deviation, as in the authors'
    code of IQL and AWAC.
    """
    if action_kind == "discrete":
        return CategoricalPolicy(observed, action_dim, hidden_sizes, masked)
    if action_kind == "multi_discrete":
        return MultiCategoricalPolicy(observed, choices, hidden_sizes)
    if distribution == "gaussian":
        return BoundedGaussianPolicy(observed, action_dim, hidden_sizes, state_dependent_std=False)
    return TanhGaussianPolicy(observed, action_dim, hidden_sizes, state_dependent_std)


class ActorValue(nn.Module):
    """A policy and a state value, on networks of their own."""

    def __init__(self, policy: Policy, value: ValueNetwork) -> None:
        super().__init__()
        self.policy, self.value = policy, value


class ActorCritics(nn.Module):
    """A policy and an ensemble of critics."""

    def __init__(self, policy: Policy, critics: Critics) -> None:
        super().__init__()
        self.policy, self.critics = policy, critics


class MLPIQLModel(ActorValue):
    """A policy and a state value with the same hidden layers, for a training loop of your own."""

    def __init__(
        self,
        obs_dim: int,
        action_kind: str,
        action_dim: int,
        hidden_sizes: Layers,
        distribution: ActionDistribution = "gaussian",
        state_dependent_std: bool = True,
        masked: bool = False,
    ) -> None:
        shape = (obs_dim, action_kind, action_dim, hidden_sizes)
        policy = policy_for(*shape, distribution, state_dependent_std, masked)
        super().__init__(policy, ValueNetwork(obs_dim, hidden_sizes))


class MLPSACModel(ActorCritics):
    """A policy and an ensemble of critics with the same hidden layers, for a training loop of
    your own; the critics alone may have LayerNorm."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Layers,
        num_critics: int = 2,
        layer_norm: bool = False,
        distribution: ActionDistribution = "tanh_gaussian",
        action_kind: str = "box",
        masked: bool = False,
    ) -> None:
        policy = policy_for(
            obs_dim, action_kind, action_dim, hidden_sizes, distribution, masked=masked
        )
        critics = critics_for(
            action_kind, num_critics, obs_dim, action_dim, hidden_sizes, layer_norm, masked
        )
        super().__init__(policy, critics)


def frozen_copy(module: ModuleT) -> ModuleT:
    """A target network: the same weights, never trained."""
    return copy.deepcopy(module).requires_grad_(False)
