"""Categorical DQN (C51), and with all options of this family switched on Rainbow.

Bellemare, Dabney and Munos 2017, arXiv:1707.06887; Rainbow: Hessel et al. 2018,
arXiv:1710.02298; noisy networks: Fortunato et al. 2018, arXiv:1706.10295.

Kept: probabilities of returns at fixed, equally spaced atoms, the target distribution projected
onto the atoms, cross-entropy as the loss, greedy actions by the mean. Rainbow is `double`,
`dueling` (per atom), `prioritized` (by the Kullback-Leibler divergence, as there), `n_step` and
`noisy` together. Changed: the target network is copied after a number of updates, not frames.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.params import ValueRange
from rl_training.algorithms.value_based import (
    ValueAlgorithm,
    ValueParams,
    of_action,
    td_target,
    weighted_mean,
)
from rl_training.experiment.config import Whole
from rl_training.models.value_networks import CategoricalNetwork, ValueLayers
from rl_training.replay.batch import Batch


class C51Params(ValueParams):
    num_atoms: Annotated[Whole, Field(ge=2)] = 51
    """Returns whose probabilities are learned, per action."""
    value_range: ValueRange = (-10.0, 10.0)
    """Smallest and largest of these returns; what lies outside counts as the nearer one."""


def c51_projection(returns: Tensor, probabilities: Tensor, atoms: Tensor) -> Tensor:
    """(B, N) probabilities at the N `atoms` of a distribution with `probabilities`, (B, N), at
    `returns`, (B, N).

    A return between two atoms gives each a share, the nearer one the larger; one outside all
    counts as the outermost atom; C51, eq. 7.
    """
    assert returns.shape == probabilities.shape, (returns.shape, probabilities.shape)
    width = (atoms[-1] - atoms[0]) / (atoms.shape[0] - 1)
    inside = torch.minimum(torch.maximum(returns, atoms[0]), atoms[-1])
    distance = (inside.unsqueeze(-2) - atoms.unsqueeze(-1)).abs() / width  # (B, N atoms, N)
    share = (1.0 - distance).clamp(min=0.0)
    return (share * probabilities.unsqueeze(-2)).sum(-1)


def c51_loss(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Loss:
    """mean(weight * cross-entropy) of softmax(`logits`), (B, N), to `target`, (B, N).

    `td_errors`, (B,), is the Kullback-Leibler divergence of the target from the prediction.
    """
    assert logits.shape == target.shape, (logits.shape, target.shape)
    target = target.detach()
    cross_entropy = -(target * logits.log_softmax(-1)).sum(-1)
    loss = weighted_mean(cross_entropy, weight)
    with torch.no_grad():
        entropy = -torch.special.xlogy(target, target).sum(-1)
        divergence = (cross_entropy - entropy).clamp(min=0.0)
    return Loss(loss, {"categorical_loss": loss, "td_errors": divergence})


class C51Algorithm(ValueAlgorithm[C51Params]):
    """Categorical DQN."""

    Params = C51Params
    paper: ClassVar[str] = "Bellemare et al. 2017"
    summary: ClassVar[str] = "Q-learning of the return's distribution over fixed values; Rainbow"
    losses: ClassVar[tuple[str, ...]] = ("categorical_loss",)
    optimizer_name: ClassVar[str] = "atoms"

    network: CategoricalNetwork
    target_network: CategoricalNetwork

    def make_network(self, layers: ValueLayers) -> CategoricalNetwork:
        return CategoricalNetwork(layers, self.params.num_atoms, *self.params.value_range)

    def learn(self, batch: Batch) -> Metrics:
        network, target_network, p = self.network, self.target_network, self.params
        with torch.no_grad():
            following = self.next_states(target_network, batch)
            judge = logits = target_network(following, self.noise())
            if p.double:
                judge = network(self.next_states(network, batch), self.noise())
            best = network.best(network.q_of(judge), following)
            probabilities = of_action(logits, best).softmax(-1)
            returns = td_target(batch, network.atoms.expand_as(probabilities))
            target = c51_projection(returns, probabilities, network.atoms)
        noise = self.noise()

        def loss() -> Loss:
            taken = of_action(network(self.states(network, batch), noise), batch.action)
            total, metrics = c51_loss(taken, target, batch.weight)
            with torch.no_grad():
                q = (taken.softmax(-1) * network.atoms).sum(-1)
            return Loss(total, {**metrics, "q_mean": q.mean()})

        return self.minimize(loss, "atoms")
