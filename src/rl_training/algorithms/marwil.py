"""Monotonic advantage re-weighted imitation learning.

Wang, Xiong, Han, Sun, Liu and Zhang, NeurIPS 2018.

Kept: advantages divided by the root of a moving average of their squares, weights
exp(beta * A / c), joint policy and value loss, beta = 0 is behaviour cloning to the last
bit. Changed: the average starts from the first batch and moves at a real rate (the
customary start of 100 and rate of 1e-8 freeze c at 10, so that the reward scale decides
the weights), and the exponent is clamped. Left: RLlib's `bc_logstd_coeff`.
Because Adam cancels a constant factor on the loss of a separate network, `value_coef` also
scales the value network's learning rate.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.functional import (
    Loss,
    Metrics,
    bootstrapped_returns,
    weight_metrics,
    weighted_likelihood_loss,
)
from rl_training.algorithms.params import LearningRate
from rl_training.algorithms.regression import ValueRegression, ValueRegressionParams
from rl_training.experiment.config import NonNegative, Positive, Rate
from rl_training.experiment.ranges import Log
from rl_training.experiment.renames import Renamed
from rl_training.models import Moments
from rl_training.replay.batch import Batch


class MARWILParams(ValueRegressionParams):
    renamed = {"beta": Renamed("inverse_temperature")}

    inverse_temperature: Annotated[NonNegative, Log(0.1, 30.0)] = 1.0
    """Weights are exp(inverse_temperature * normalised advantage); 0 is cloning."""
    max_weight: Annotated[
        float, Field(ge=1.0, allow_inf_nan=False), Log(5.0, 200.0, by_default=False)
    ] = 20.0
    """Cap of the weights, applied to the exponent."""
    advantage_norm_rate: Rate = 0.01
    """How fast the moving average of squared advantages follows the batches."""
    value_coef: Annotated[Positive, Log(0.1, 2.0)] = 1.0
    """Weight of the value loss, and factor of the value network's learning rate."""
    lr: LearningRate = 3e-4
    """Learning rate of the policy; value_coef scales that of the value network."""


def marwil_loss(
    log_prob: Tensor,
    value: Tensor,
    returns: Tensor,
    squared_advantage_norm: Tensor | float,
    *,
    beta: float,
    max_weight: float,
    value_coef: float,
) -> Loss:
    """-mean(exp(beta A / c) log pi) + value_coef * mean(A^2) / 2 with A = R - V, inputs (B,).

    c is the root of `squared_advantage_norm`, plus 1e-8; the exponent is at most log(max_weight).
    """
    advantage = returns.detach() - value
    c = torch.as_tensor(squared_advantage_norm).sqrt() + 1e-8
    exponent = (beta * (advantage.detach() / c)).clamp(max=math.log(max_weight))
    weight = exponent.exp()
    policy_loss = weighted_likelihood_loss(log_prob, weight)
    value_loss = 0.5 * advantage.square().mean()
    return Loss(
        policy_loss + value_coef * value_loss,
        {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "value_mean": value.mean(),
            **weight_metrics(weight, max_weight * (1.0 - 1e-6)),
        },
    )


class MARWILAlgorithm(ValueRegression[MARWILParams]):
    """Monotonic advantage re-weighted imitation learning."""

    Params = MARWILParams
    paper: ClassVar[str] = "Wang et al. 2018"
    summary: ClassVar[str] = "clone good actions more, by self-scaled advantage"
    softer_weights: ClassVar[str] = "lower algo_kwargs.inverse_temperature"

    @property
    def learning_rates(self) -> tuple[float, float]:
        return self.params.lr, self.params.lr * self.params.value_coef

    def update(self, batch: Batch) -> Metrics:
        p = self.params
        returns = bootstrapped_returns(batch, self.model.value)

        def loss() -> Loss:
            log_prob, value = self.log_prob_and_value(batch)
            moments = self.advantages.after(returns - value.detach())
            total, metrics = marwil_loss(
                log_prob,
                value,
                returns,
                moments.mean_square,
                beta=p.inverse_temperature,
                max_weight=p.max_weight,
                value_coef=p.value_coef,
            )
            return Loss(total, metrics | moments._asdict())

        metrics = self.minimize(loss, "policy", "value")
        moments = Moments(metrics.pop("mean"), metrics.pop("mean_square"))
        self.advantages.set(moments)
        return metrics | {"advantage_norm": moments.mean_square.sqrt()}
