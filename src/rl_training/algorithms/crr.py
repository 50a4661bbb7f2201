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

from rl_training.algorithms.critics import Compared, policy_mean
from rl_training.algorithms.functional import (
    Loss,
    capped_exp,
    weight_metrics,
    weighted_likelihood_loss,
)
from rl_training.algorithms.params import Temperature, WeightLimit
from rl_training.algorithms.regression import CriticRegression, RegressionParams
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Count
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.renames import Renamed


class CRRParams(RegressionParams):
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
    temperature: Temperature = 1.0
    """Temperature of the exp weights; smaller is greedier."""
    max_weight: WeightLimit = 20.0
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


class CRRAlgorithm(CriticRegression[CRRParams]):
    """Critic-regularized regression."""

    Params = CRRParams
    paper: ClassVar[str] = "Wang et al. 2020"
    summary: ClassVar[str] = "clone actions that a critic rates above the policy's own"
    box_knobs: ClassVar[tuple[str, ...]] = ("action_distribution", "num_action_samples")

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

    @property
    def num_samples(self) -> int:
        return self.params.num_action_samples

    def regression(self, own: Compared, q_data: Tensor) -> Loss:
        p = self.params
        return crr_loss(
            own.log_prob,
            q_data,
            own.q,
            own.share,
            advantage_type=p.advantage_type,
            weight_type=p.weight_type,
            beta=p.temperature,
            max_weight=p.max_weight,
        )
