"""The networks of an algorithm, with the user's own in place of some, and their optimisers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from rl_training.algorithms.learner import Learner, P
from rl_training.algorithms.optim import EPS, FusedAdam
from rl_training.envs.spaces import Spaces
from rl_training.models import (
    ActionDistribution,
    ActorCritics,
    ActorValue,
    Architecture,
    Critics,
    NetworkKind,
    Observed,
    OwnNetwork,
    OwnNetworks,
    Policy,
    RecurrentMemory,
    Role,
    ValueNetwork,
    critics_for,
    encoder_of,
    frozen_copy,
    policy_for,
    weights_on_sphere,
)

ADAM: dict[NetworkKind, dict[str, float]] = {"crossq": {"beta1": 0.5}, "simba": {"decay": 0.01}}
"""How Adam differs for a kind of networks, as its authors have it."""


class NetworkMaker(Learner[P]):
    """A learner that makes networks for the spaces of its task."""

    spaces: Spaces
    averaged_policy: Policy | None
    _own_networks: OwnNetworks | None

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The policy that acts."""

    def own_network(
        self, role: Role, in_shape: tuple[int, ...], out_dim: int | None
    ) -> OwnNetwork | None:
        """The network that the user's factory makes, see `NetworkRequest`; None without one."""
        return None if self._own_networks is None else self._own_networks(role, in_shape, out_dim)

    def observed(self) -> Observed:
        """The input of one network: an encoder for images, else the width of observations."""
        if self._own_networks is not None:
            shape, images = self.spaces.obs_shape, self.spaces.is_image
            own = self._own_networks("encoder", shape, None, images)
            if own is not None:
                return own
        return encoder_of(self.spaces)

    def make_memory(self) -> RecurrentMemory:
        """The recurrent layer that the knobs ask for, with an encoder of its own for images."""
        p: Any = self.params
        return RecurrentMemory(self.observed(), p.memory_size, p.memory)

    def layers(self, role: Role) -> Architecture:
        """The layers of one network of this algorithm."""
        layers = self.params.layers(role)
        if self._own_networks is None:
            return layers
        return replace(layers, own=partial(self._own_networks, role))

    def make_policy(
        self,
        distribution: ActionDistribution = "gaussian",
        state_dependent_std: bool = True,
        observed: Observed | None = None,
    ) -> Policy:
        """The stochastic policy that fits the action space; for Box actions see `policy_for`. Of
        observations unless it looks at something else."""
        spaces = self.spaces
        return policy_for(
            self.observed() if observed is None else observed,
            spaces.action_kind,
            spaces.action_dim,
            self.layers("policy"),
            distribution,
            state_dependent_std,
            masked=spaces.has_mask,
            choices=spaces.action_choices,
        )

    def make_critics(self, num_critics: int = 2, masked: bool = True) -> Critics:
        """Critics for the action space; with `masked` they respect the task's action masks."""
        spaces = self.spaces
        return critics_for(
            spaces.action_kind,
            num_critics,
            self.observed(),
            spaces.action_dim,
            self.layers("critic"),
            masked=masked and spaces.has_mask,
        )

    def make_value(self, observed: Observed | None = None) -> ValueNetwork:
        """A state value; of observations unless it looks at something else."""
        seen = self.observed() if observed is None else observed
        return ValueNetwork(seen, self.layers("value"))

    def actor_and_critics(
        self, num_critics: int = 2, distribution: ActionDistribution = "tanh_gaussian"
    ) -> ActorCritics:
        """A policy and critics, on networks of their own."""
        return ActorCritics(self.make_policy(distribution), self.make_critics(num_critics))

    def actor_and_value(
        self, distribution: ActionDistribution, state_dependent_std: bool = True
    ) -> ActorValue:
        """A policy and a state value, on networks of their own."""
        return ActorValue(self.make_policy(distribution, state_dependent_std), self.make_value())

    def add_optimizer(
        self,
        name: str,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float | Sequence[float] = 0.0,
        eps: float = EPS,
        **options: Any,
    ) -> None:
        """An Adam under `name`, on the device its parameters already live on."""
        self.optimizers[name] = FusedAdam(parameters, lr, weight_decay, eps, **options)
        if name == "policy" and self.params.averaging:  # the policy is there now
            self.averaged_policy = frozen_copy(self.policy)

    def add_optimizer_of(self, name: str, network: nn.Module, lr: float) -> None:
        """The Adam of a policy or of critics, as their kind of network wants it."""
        options: dict[str, Any] = dict(ADAM.get(self.params.network_kind, {}))
        if self.params.network_kind == "simbav2":
            options["on_sphere"] = weights_on_sphere(network)
        self.add_optimizer(name, network.parameters(), lr, **options)
