"""Advantage-weighted actor-critic.

Nair, Gupta, Dalal and Levine 2020, arXiv:2006.09359.

Kept: a TD critic on policy actions, A = Q(s, a) - Q(s, a') with one fresh policy
action, minimum of twin critics, weighted likelihood. `weight_type: exp` is the capped
exponential of the paper's objective; `softmax` is the authors' released form, which
shares the batch's total weight out by a softmax; one learned std for all states.
Left: the policy's weight decay.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Networks
from rl_training.algorithms.critics import (
    action_noise,
    data_and_policy,
    policy_mean,
    policy_td_target,
    td_loss,
)
from rl_training.algorithms.functional import (
    Loss,
    Metrics,
    capped_exp,
    soft_update,
    weight_metrics,
    weighted_likelihood_loss,
)
from rl_training.algorithms.params import CloningParams, OfflineToOnlineParams, TargetNetworkParams
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Positive
from rl_training.experiment.renames import Renamed
from rl_training.models import Policy, frozen_copy
from rl_training.replay.batch import Batch


class AWACParams(CloningParams, TargetNetworkParams, OfflineToOnlineParams):
    renamed = {"beta": Renamed("temperature")}

    temperature: Positive = 1.0
    """Weights grow with exp(advantage / temperature); smaller is greedier."""
    weight_type: Literal["exp", "softmax"] = "exp"
    """Capped exponential, or a softmax over the batch times the batch size."""
    max_weight: Positive = 100.0
    """Cap of the exp weights."""


def awac_loss(
    log_prob: Tensor,
    q_data: Tensor,
    q_policy: Tensor,
    *,
    beta: float,
    weight_type: str,
    max_weight: float,
) -> Loss:
    """-mean(w log pi) with A = q_data - q_policy, all (B,).

    w is min(exp(A / beta), max_weight) or batch_size * softmax(A / beta), without gradient.
    """
    assert log_prob.shape == q_data.shape == q_policy.shape
    advantage = (q_data - q_policy).detach()
    if weight_type == "exp":
        weight, cap = capped_exp(advantage / beta, max_weight), max_weight
    elif weight_type == "softmax":
        weight, cap = torch.softmax(advantage / beta, dim=0) * advantage.shape[0], float("inf")
    else:
        raise ValueError(f"unknown weight_type {weight_type}")
    loss = weighted_likelihood_loss(log_prob, weight)
    return Loss(
        loss,
        {
            "policy_loss": loss,
            "advantage_mean": advantage.mean(),
            **weight_metrics(weight, cap),
        },
    )


class AWACAlgorithm(Algorithm[AWACParams, Batch]):
    """Advantage-weighted actor-critic."""

    Params = AWACParams
    loop: ClassVar[str] = "offline"
    online_loop: ClassVar[str | None] = "offline_to_online"
    paper: ClassVar[str] = "Nair et al. 2020"
    summary: ClassVar[str] = "clone good actions more, by a critic's advantage"
    losses: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
    box_knobs: ClassVar[tuple[str, ...]] = ("action_distribution",)
    softer_weights: ClassVar[str] = "raise algo_kwargs.temperature, or lower dataset.rewards.scale"

    def __init__(
        self, spaces: Spaces, params: AWACParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.model = self.actor_and_critics(distribution=params.action_distribution)
        self.target_critics = frozen_copy(self.model.critics)
        self.add_optimizer("policy", self.model.policy.parameters(), params.policy_lr)
        self.add_optimizer("critics", self.model.critics.parameters(), params.critic_lr)

    @property
    def policy(self) -> Policy:
        return self.model.policy

    def other_networks(self) -> Networks:
        return {"critics": self.model.critics, "target critics": self.target_critics}

    def update(self, batch: Batch) -> Metrics:
        p = self.params
        policy, critics = self.model.policy, self.model.critics
        rows = batch.reward.shape[0]
        target, _ = policy_td_target(policy, self.target_critics, batch, action_noise(self, rows))
        noise = action_noise(self, rows, 1)

        def loss() -> Loss:
            td, q = td_loss(critics, batch, target)
            own = data_and_policy(policy, critics, batch, noise)
            regression = awac_loss(
                own.log_prob,
                q.amin(0),
                policy_mean(own.q, own.share),
                beta=p.temperature,
                weight_type=p.weight_type,
                max_weight=p.max_weight,
            )
            return Loss(td.total + regression.total, td.metrics | regression.metrics)

        metrics = self.minimize(loss, "critics", "policy")
        soft_update(self.target_critics, critics, p.tau)
        return metrics
