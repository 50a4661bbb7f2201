"""Quantile-regression DQN.

Dabney, Rowland, Bellemare and Munos 2018, arXiv:1710.10044.

Kept: quantiles at the midpoints of equal fractions, the quantile Huber loss (summed over
the learned quantiles, averaged over the target's), greedy actions by their mean, a target
network copied every so many updates. Added as options: double, dueling (per quantile),
prioritised and n-step replay.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl_training.algorithms.base import Act, Algorithm
from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.value_based import (
    ValueParams,
    epsilon,
    epsilon_greedy,
    keep_td_errors,
    of_action,
    quantile_huber_loss,
    td_target,
    update_target,
)
from rl_training.data.batch import Batch
from rl_training.data.spaces import Spaces
from rl_training.experiment.config import Count
from rl_training.models import Policy, frozen_copy
from rl_training.models.value_networks import QuantileNetwork


class QRDQNParams(ValueParams):
    n_quantiles: Count = 200
    """Quantiles of the return per action."""


class QRDQNAlgorithm(Algorithm):
    """Quantile-regression DQN."""

    Params: ClassVar[Any] = QRDQNParams
    loop: ClassVar[str] = "off_policy"
    paper: ClassVar[str] = "Dabney et al. 2018"
    summary: ClassVar[str] = "Q-learning of the return's distribution at fixed quantiles"
    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete"})
    losses: ClassVar[tuple[str, ...]] = ("quantile_loss",)

    last_td_errors: Tensor

    def __init__(
        self, spaces: Spaces, params: QRDQNParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.network = QuantileNetwork(
            spaces.obs_dim,
            spaces.action_dim,
            params.n_quantiles,
            params.hidden_sizes,
            params.dueling,
        )
        self.target_network = frozen_copy(self.network)
        self.add_optimizer("quantiles", self.network.parameters(), params.lr)
        self.register_buffer("last_td_errors", torch.zeros(params.batch_size), persistent=False)

    @property
    def policy(self) -> Policy:
        return self.network

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool, carry: Any = None) -> Act:
        action = self.network.mode(self.normalizer(obs))
        if explore:
            share = epsilon(self.fraction, self.params)
            action = epsilon_greedy(action, self.spaces.action_dim, share)
        return Act(action, carry)

    def update(self, batch: Batch) -> Metrics:
        p: QRDQNParams = self.params
        with torch.no_grad():
            next_quantiles = self.target_network(batch.next_obs)
            judge = self.network(batch.next_obs) if p.double else next_quantiles
            target = td_target(batch, of_action(next_quantiles, judge.mean(-2).argmax(-1)))

        def loss() -> Loss:
            quantiles = of_action(self.network(batch.obs), batch.action)
            total, metrics = quantile_huber_loss(
                quantiles, target, self.network.tau_hats, batch.weight, kappa=p.kappa
            )
            return Loss(total, {**metrics, "q_mean": quantiles.mean()})

        metrics = keep_td_errors(self.last_td_errors, self.minimize(loss, "quantiles"))
        due = self.update_count % p.target_update_interval == 0
        update_target(self.target_network, self.network, due)
        return metrics
