"""Critic-regularized regression.

Wang, Novikov, Zolna et al. 2020, arXiv:2006.15134.

Kept: a TD critic whose target action comes from the policy at the next state, the
advantage over a few policy samples (mean or max), binary or capped exponential weights,
weighted likelihood of the data's actions. Left: the distributional critic and the LSTM,
critic-weighted resampling at evaluation (the mode acts). Changed: the target action
comes from the current policy and not from a slow copy, which is one network less, twin
critics with a minimum, and soft instead of periodic target updates.
"""

from __future__ import annotations

from typing import ClassVar, Literal

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
from rl_training.algorithms.params import CloningParams, TargetNetworkParams
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Count, Positive
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.renames import Renamed
from rl_training.models import Policy, frozen_copy
from rl_training.replay.batch import Batch


class CRRParams(CloningParams, TargetNetworkParams):
    renamed = {
        "beta": Renamed("temperature"),
        "n_action_samples": Renamed("num_action_samples"),
    }

    num_action_samples: Count = 4
    """Policy actions per state against which the data's action is compared."""
    advantage_type: Literal["mean", "max"] = "mean"
    """Compare with the mean or with the best of the sampled actions."""
    weight_type: Literal["binary", "exp"] = "exp"
    """Weight 1 for positive advantages and 0 else, or exp(advantage / temperature)."""
    temperature: Positive = 1.0
    """Temperature of the exp weights; smaller is greedier."""
    max_weight: Positive = 20.0
    """Cap of the exp weights."""


def crr_loss(
    log_prob: Tensor,
    q_data: Tensor,
    q_samples: Tensor,
    share: Tensor | None = None,
    *,
    advantage_type: str,
    weight_type: str,
    beta: float,
    max_weight: float,
) -> Loss:
    """-mean(w log pi) with A = q_data - mean or max over samples of q_samples.

    `log_prob` and `q_data` are (B,), `q_samples` is (samples, B); w is 1{A > 0} or
    min(exp(A / beta), max_weight), without gradient. For Discrete actions the samples are all
    actions, and `share`, of their shape, has the policy's probabilities for the mean.
    """
    assert log_prob.shape == q_data.shape == q_samples.shape[1:], (
        log_prob.shape,
        q_data.shape,
        q_samples.shape,
    )
    if advantage_type not in ("mean", "max") or weight_type not in ("binary", "exp"):
        raise ValueError(f"unknown advantage_type {advantage_type} or weight_type {weight_type}")
    baseline = policy_mean(q_samples, share) if advantage_type == "mean" else q_samples.amax(0)
    advantage = (q_data - baseline).detach()
    if weight_type == "binary":
        weight = (advantage > 0).to(log_prob.dtype)
    else:
        weight = capped_exp(advantage / beta, max_weight)
    loss = weighted_likelihood_loss(log_prob, weight)
    return Loss(
        loss,
        {
            "policy_loss": loss,
            "advantage_mean": advantage.mean(),
            **weight_metrics(weight, max_weight),
        },
    )


class CRRAlgorithm(Algorithm[CRRParams, Batch]):
    """Critic-regularized regression."""

    Params = CRRParams
    loop: ClassVar[str] = "offline"
    paper: ClassVar[str] = "Wang et al. 2020"
    summary: ClassVar[str] = "clone actions that a critic rates above the policy's own"
    losses: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
    box_knobs: ClassVar[tuple[str, ...]] = ("action_distribution", "num_action_samples")
    softer_weights: ClassVar[str] = "raise algo_kwargs.temperature, or lower dataset.rewards.scale"

    def __init__(
        self, spaces: Spaces, params: CRRParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        if spaces.is_discrete and (params.advantage_type, params.weight_type) == ("max", "binary"):
            raise ConfigError(
                "algo_kwargs.weight_type: no Discrete action is above the best of all, so that "
                "binary weights with advantage_type max keep nothing; use exp, or "
                "advantage_type: mean"
            )
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
        noise = action_noise(self, rows, p.num_action_samples)

        def loss() -> Loss:
            td, q = td_loss(critics, batch, target)
            own = data_and_policy(policy, critics, batch, noise)
            regression = crr_loss(
                own.log_prob,
                q.amin(0),
                own.q,
                own.share,
                advantage_type=p.advantage_type,
                weight_type=p.weight_type,
                beta=p.temperature,
                max_weight=p.max_weight,
            )
            return Loss(td.total + regression.total, td.metrics | regression.metrics)

        metrics = self.minimize(loss, "critics", "policy")
        soft_update(self.target_critics, critics, p.tau)
        return metrics
