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

from rl_training.algorithms.critics import Compared, policy_mean
from rl_training.algorithms.functional import (
    Loss,
    capped_exp,
    weight_metrics,
    weighted_likelihood_loss,
)
from rl_training.algorithms.params import OfflineToOnlineParams, Temperature, WeightLimit
from rl_training.algorithms.regression import CriticRegression, RegressionParams
from rl_training.experiment.renames import Renamed


class AWACParams(RegressionParams, OfflineToOnlineParams):
    renamed = {"beta": Renamed("temperature")}

    temperature: Temperature = 1.0
    """Weights grow with exp(advantage / temperature); smaller is greedier."""
    weight_type: Literal["exp", "softmax"] = "exp"
    """Capped exponential, or a softmax over the batch times the batch size."""
    max_weight: WeightLimit = 100.0
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


class AWACAlgorithm(CriticRegression[AWACParams]):
    """Advantage-weighted actor-critic."""

    Params = AWACParams
    online_loop: ClassVar[str | None] = "offline_to_online"
    paper: ClassVar[str] = "Nair et al. 2020"
    summary: ClassVar[str] = "clone good actions more, by a critic's advantage"
    box_knobs: ClassVar[tuple[str, ...]] = ("action_distribution",)
    num_samples = 1

    def regression(self, own: Compared, q_data: Tensor) -> Loss:
        p = self.params
        return awac_loss(
            own.log_prob,
            q_data,
            policy_mean(own.q, own.share),
            beta=p.temperature,
            weight_type=p.weight_type,
            max_weight=p.max_weight,
        )
