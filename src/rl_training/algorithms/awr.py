"""Advantage-weighted regression.

Peng, Kumar, Zhang and Levine 2019, arXiv:1910.00177.

Kept: value regression on returns, advantages standardised over the data (by moving
averages, since a pass over the whole set per update is not affordable), weights
exp(A / beta) capped at 20, returns that continue with V at a time limit, evaluation by
the mode. Left: the paper's online loop with a replay of 50k steps, TD(lambda) (returns
here are lambda = 1), momentum SGD, the fixed action std and the action-bound
penalty (the mean is bounded instead). An update takes its advantages from the value
network as the previous update left it, which is the paper's critic-first order.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rl_training.algorithms.base import Algorithm, Networks
from rl_training.algorithms.functional import (
    Loss,
    Metrics,
    bootstrapped_returns,
    capped_exp,
    weight_metrics,
    weighted_likelihood_loss,
)
from rl_training.algorithms.params import ActorCriticParams, CloningParams, DiscountedParams
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Positive, Rate
from rl_training.experiment.renames import Renamed
from rl_training.models import Moments, MovingMoments, Policy, stacked_forward
from rl_training.replay.batch import Batch


class AWRParams(CloningParams, DiscountedParams, ActorCriticParams):
    renamed = {"beta": Renamed("temperature")}

    temperature: Positive = 1.0
    """Weights are exp(advantage / temperature); smaller is greedier."""
    max_weight: Positive = 20.0
    """Cap of the weights."""
    normalize_advantages: bool = True
    """Standardise advantages, so that the temperature means the same on every reward scale."""
    advantage_norm_rate: Rate = 0.01
    """Rate of the moving mean and standard deviation of the advantages."""
    policy_lr: Positive = 3e-4
    """Learning rate of the policy."""
    value_lr: Positive = 1e-3
    """Learning rate of the value network."""


def awr_loss(
    log_prob: Tensor,
    value: Tensor,
    returns: Tensor,
    *,
    beta: float,
    max_weight: float,
    advantage_mean: Tensor | float = 0.0,
    advantage_std: Tensor | float = 1.0,
) -> Loss:
    """-mean(min(exp(A / beta), max_weight) log pi) + mean((R - V)^2) / 2, all inputs (B,).

    A = (R - V - advantage_mean) / advantage_std, without gradient.
    """
    error = returns.detach() - value
    advantage = (error.detach() - advantage_mean) / advantage_std
    weight = capped_exp(advantage / beta, max_weight)
    policy_loss = weighted_likelihood_loss(log_prob, weight)
    value_loss = 0.5 * error.square().mean()
    return Loss(
        policy_loss + value_loss,
        {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "value_mean": value.mean(),
            **weight_metrics(weight, max_weight),
        },
    )


class AWRAlgorithm(Algorithm[AWRParams, Batch]):
    """Advantage-weighted regression."""

    Params = AWRParams
    loop: ClassVar[str] = "offline"
    paper: ClassVar[str] = "Peng et al. 2019"
    summary: ClassVar[str] = "clone good actions more, by return above the value"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss", "value_loss")
    softer_weights: ClassVar[str] = "raise algo_kwargs.temperature"
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete", "multi_discrete"})
    box_knobs: ClassVar[tuple[str, ...]] = ("action_distribution",)
    needs_returns: ClassVar[bool] = True

    def __init__(
        self, spaces: Spaces, params: AWRParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.model = self.actor_and_value(params.action_distribution)
        self.advantages = MovingMoments(params.advantage_norm_rate)
        self.add_optimizer("policy", self.model.policy.parameters(), params.policy_lr)
        self.add_optimizer("value", self.model.value.parameters(), params.value_lr)

    @property
    def policy(self) -> Policy:
        return self.model.policy

    def other_networks(self) -> Networks:
        return {"value": self.model.value}

    def update(self, batch: Batch) -> Metrics:
        p = self.params
        policy, value = self.model.policy, self.model.value
        returns = bootstrapped_returns(batch, value)

        def loss() -> Loss:
            distribution, value_now = stacked_forward(
                policy.deferred(batch.obs), value.deferred(batch.obs)
            )
            statistics: dict[str, Tensor] = {}
            if p.normalize_advantages:
                moments = self.advantages.after(returns - value_now.detach())
                statistics = {"advantage_mean": moments.mean, "advantage_std": moments.std + 1e-5}
            total, metrics = awr_loss(
                policy.log_prob_under(distribution, batch.action),
                value_now,
                returns,
                beta=p.temperature,
                max_weight=p.max_weight,
                **statistics,
            )
            if p.normalize_advantages:
                statistics["mean_square"] = moments.mean_square
            return Loss(total, metrics | statistics)

        metrics = self.minimize(loss, "policy", "value")
        if p.normalize_advantages:
            self.advantages.set(Moments(metrics["advantage_mean"], metrics.pop("mean_square")))
        return metrics
