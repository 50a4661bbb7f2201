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

from rl_training.algorithms.functional import (
    Loss,
    Metrics,
    bootstrapped_returns,
    capped_exp,
    weight_metrics,
    weighted_likelihood_loss,
)
from rl_training.algorithms.params import LearningRate, Temperature, WeightLimit
from rl_training.algorithms.regression import ValueRegression, ValueRegressionParams
from rl_training.experiment.renames import Renamed
from rl_training.models import Moments
from rl_training.replay.batch import Batch


class AWRParams(ValueRegressionParams):
    renamed = {"beta": Renamed("temperature")}

    temperature: Temperature = 1.0
    """Weights are exp(advantage / temperature); smaller is greedier."""
    max_weight: WeightLimit = 20.0
    """Cap of the weights."""
    normalize_advantages: bool = True
    """Standardise advantages, so that the temperature means the same on every reward scale."""
    policy_lr: LearningRate = 3e-4
    """Learning rate of the policy."""
    value_lr: LearningRate = 1e-3
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


class AWRAlgorithm(ValueRegression[AWRParams]):
    """Advantage-weighted regression."""

    Params = AWRParams
    paper: ClassVar[str] = "Peng et al. 2019"
    summary: ClassVar[str] = "clone good actions more, by return above the value"
    softer_weights: ClassVar[str] = "raise algo_kwargs.temperature"

    @property
    def learning_rates(self) -> tuple[float, float]:
        return self.params.policy_lr, self.params.value_lr

    def update(self, batch: Batch) -> Metrics:
        p = self.params
        returns = bootstrapped_returns(batch, self.model.value)

        def loss() -> Loss:
            log_prob, value = self.log_prob_and_value(batch)
            statistics: dict[str, Tensor] = {}
            if p.normalize_advantages:
                moments = self.advantages.after(returns - value.detach())
                statistics = {"advantage_mean": moments.mean, "advantage_std": moments.std + 1e-5}
            total, metrics = awr_loss(
                log_prob,
                value,
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
