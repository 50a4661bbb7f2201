"""Quantile-regression DQN.

Dabney, Rowland, Bellemare and Munos 2018, arXiv:1710.10044.

Kept: quantiles at the midpoints of equal fractions, the quantile Huber loss (summed over
the learned quantiles, averaged over the target's), greedy actions by their mean, a target
network copied at a fixed interval. Added as options: double, dueling (per quantile),
prioritised and n-step replay.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.value_based import (
    HuberParams,
    ValueAlgorithm,
    of_action,
    quantile_huber_loss,
    td_target,
)
from rl_training.execution import without_gradients
from rl_training.experiment.config import Count
from rl_training.experiment.renames import Renamed
from rl_training.models.value_networks import QuantileNetwork, ValueLayers
from rl_training.replay.batch import Batch


class QRDQNParams(HuberParams):
    renamed = {"n_quantiles": Renamed("num_quantiles")}

    num_quantiles: Count = 200
    """Quantiles of the return per action."""


class QRDQNAlgorithm(ValueAlgorithm[QRDQNParams]):
    """Quantile-regression DQN."""

    Params = QRDQNParams
    paper: ClassVar[str] = "Dabney et al. 2018"
    summary: ClassVar[str] = "Q-learning of the return's distribution at fixed quantiles"
    losses: ClassVar[tuple[str, ...]] = ("quantile_loss",)

    network: QuantileNetwork
    target_network: QuantileNetwork

    def make_network(self, layers: ValueLayers) -> QuantileNetwork:
        return QuantileNetwork(layers, self.params.num_quantiles)

    @without_gradients
    def _desired(self, batch: Batch) -> Tensor:
        """(B, N) samples of the returns of the batch's actions."""
        following = self.next_states(self.target_network, batch)
        judge = next_quantiles = self.target_network(following, self.noise())
        if self.params.double:
            judge = self.network(self.next_states(self.network, batch), self.noise())
        best = self.network.best(judge.mean(-2), following)
        return td_target(batch, of_action(next_quantiles, best))

    def learn(self, batch: Batch) -> Metrics:
        p, target, noise = self.params, self._desired(batch), self.noise()

        def loss() -> Loss:
            seen = self.states(self.network, batch)
            quantiles = of_action(self.network(seen, noise), batch.action)
            total, metrics = quantile_huber_loss(
                quantiles, target, self.network.tau_hats, batch.weight, kappa=p.kappa
            )
            return Loss(total, {**metrics, "q_mean": quantiles.detach().mean()})

        return self.minimize(loss, "quantiles")
