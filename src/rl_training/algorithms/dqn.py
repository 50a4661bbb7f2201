"""Deep Q-learning, with double, dueling, prioritised and n-step variants as options.

Mnih et al. 2015, doi:10.1038/nature14236; double: van Hasselt et al. 2016,
arXiv:1509.06461; dueling: Wang et al. 2016, arXiv:1511.06581; prioritised: Schaul et al.
2016, arXiv:1511.05952.

Kept: target network copied at a fixed interval of updates, errors clipped by a Huber loss,
epsilon-greedy actions with a linear decay, proportional priorities with annealed
correction. Changed: Adam instead of RMSProp; vector observations as well as images. With
`memory` a GRU or LSTM remembers earlier observations and learns from sequences that start from
stored states and a burn-in (Kapturowski et al. 2019, R2D2).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.value_based import (
    HuberParams,
    ValueAlgorithm,
    of_action,
    td_target,
    weighted_mean,
)
from rl_training.execution import without_gradients
from rl_training.models.value_networks import QNetwork, ValueLayers
from rl_training.replay.batch import Batch


class DQNParams(HuberParams):
    pass


def dqn_loss(q: Tensor, td_target: Tensor, weight: Tensor | None = None, *, kappa: float) -> Loss:
    """mean(weight * Huber(target - Q(s, a))); inputs (B,), `weight` that of prioritised replay.

    `td_errors`, (B,), is |target - Q(s, a)|.
    """
    assert q.dim() == 1, q.shape
    assert q.shape == td_target.shape, (q.shape, td_target.shape)
    target = td_target.detach()
    # one operation of PyTorch in place of four, and of four in the backward pass
    loss = weighted_mean(torch.ops.aten.huber_loss(q, target, 0, kappa), weight)
    known = q.detach()
    metrics = {"q_mean": known.mean(), "td_errors": (target - known).abs()}
    return Loss(loss, {"td_loss": loss, **metrics})


class DQNAlgorithm(ValueAlgorithm[DQNParams]):
    """Deep Q-learning."""

    Params = DQNParams
    paper: ClassVar[str] = "Mnih et al. 2015"
    summary: ClassVar[str] = "Q-learning with replay and a target network"
    losses: ClassVar[tuple[str, ...]] = ("td_loss",)
    optimizer_name: ClassVar[str] = "q"

    network: QNetwork
    target_network: QNetwork

    def make_network(self, layers: ValueLayers) -> QNetwork:
        return QNetwork(layers)

    @without_gradients
    def _desired(self, batch: Batch) -> Tensor:
        """(B,) what the values of the batch's actions should be."""
        following = self.next_states(self.target_network, batch)
        judge = next_q = self.target_network(following, self.noise())
        if self.params.double:
            judge = self.network(self.next_states(self.network, batch), self.noise())
        return td_target(batch, of_action(next_q, self.network.best(judge, following)))

    def learn(self, batch: Batch) -> Metrics:
        p, target, noise = self.params, self._desired(batch), self.noise()

        def loss() -> Loss:
            q = of_action(self.network(self.states(self.network, batch), noise), batch.action)
            return dqn_loss(q, target, batch.weight, kappa=p.kappa)

        return self.minimize(loss, "q")
