"""Implicit quantile networks.

Dabney, Ostrovski, Silver and Munos 2018, arXiv:1806.06923.

Kept: cosine embedding of the fraction times the state's features, fresh uniform fractions
for the learned and for the target quantiles, the quantile Huber loss. Changed: actions
(also the target's) are chosen by the mean over the midpoints of equal fractions instead of
sampled ones: the same integral without noise, so that the policy is deterministic; cosines
start at i = 1, as in the published code, because i = 0 is a constant.
The paper's risk-sensitive distortions are left out. Added as options: double, dueling
(per quantile), prioritised and n-step replay.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.value_based import (
    HuberParams,
    ValueAlgorithm,
    of_action,
    quantile_huber_loss,
    td_target,
)
from rl_training.experiment.config import Count
from rl_training.experiment.renames import Renamed
from rl_training.models.value_networks import ImplicitQuantileNetwork, ValueLayers
from rl_training.replay.batch import Batch


class IQNParams(HuberParams):
    renamed = {
        f"n_{name}": Renamed(f"num_{name}")
        for name in ("quantiles", "target_quantiles", "action_quantiles")
    }

    num_quantiles: Count = 64
    """Fractions sampled per state at which quantiles are learned."""
    num_target_quantiles: Count = 64
    """Fractions sampled per next state for the target."""
    num_action_quantiles: Count = 32
    """Equal fractions over which the mean is taken to choose an action."""
    num_cosines: Count = 64
    """Cosines that embed a fraction."""


class IQNAlgorithm(ValueAlgorithm[IQNParams]):
    """Implicit quantile networks."""

    Params = IQNParams
    paper: ClassVar[str] = "Dabney et al. 2018"
    summary: ClassVar[str] = "Q-learning of the return's whole quantile function"
    losses: ClassVar[tuple[str, ...]] = ("quantile_loss",)

    network: ImplicitQuantileNetwork
    target_network: ImplicitQuantileNetwork

    def make_network(self, layers: ValueLayers) -> ImplicitQuantileNetwork:
        p = self.params
        return ImplicitQuantileNetwork(layers, p.num_action_quantiles, p.num_cosines)

    def learn(self, batch: Batch) -> Metrics:
        p = self.params
        network, target_network, size = self.network, self.target_network, batch.reward.shape[0]
        taus = self.uniform(size, p.num_quantiles)
        next_taus = self.uniform(size, p.num_target_quantiles)
        with torch.no_grad():
            following = self.next_states(target_network, batch)
            features, noise = target_network.features(following), self.noise()
            if p.double:
                next_q = network.q_values(self.next_states(network, batch), self.noise())
            else:
                next_q = target_network.q_of(features, noise)
            next_quantiles = target_network.quantiles(features, next_taus, noise)
            best = network.best(next_q, following)
            target = td_target(batch, of_action(next_quantiles, best))

        own_noise = self.noise()

        def loss() -> Loss:
            seen = self.states(network, batch)
            quantiles = of_action(network(seen, taus, own_noise), batch.action)
            total, metrics = quantile_huber_loss(
                quantiles, target, taus, batch.weight, kappa=p.kappa
            )
            return Loss(total, {**metrics, "q_mean": quantiles.mean()})

        return self.minimize(loss, "quantiles")
