"""Implicit Q-learning.

Kostrikov, Nair and Levine 2021, arXiv:2110.06169.

Kept from the authors' code: expectile value on the target critics' minimum, weights
exp(beta * A) capped at 100 (beta multiplies), orthogonal initialisation, one learned
std for all states around a mean inside the box. Changed: the three losses are taken
at the same networks, in one pass, where the authors' policy and critics see the value
network one step later. The authors' cosine decay of the policy's learning rate alone is
`lr_schedule: {kind: cosine, optimizers: [policy]}`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Networks
from rl_training.algorithms.functional import (
    Loss,
    Metrics,
    capped_exp,
    critic_loss,
    expectile_loss,
    soft_update,
    weight_metrics,
    weighted_likelihood_loss,
)
from rl_training.algorithms.params import (
    CloningParams,
    LearningRate,
    OfflineToOnlineParams,
    TargetNetworkParams,
    WeightLimit,
)
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import NonNegative
from rl_training.experiment.ranges import Linear, Log
from rl_training.experiment.renames import Renamed
from rl_training.models import (
    Policy,
    frozen_copy,
    orthogonal_init_,
    stacked_forward,
)
from rl_training.replay.batch import Batch


class IQLParams(CloningParams, TargetNetworkParams, OfflineToOnlineParams):
    renamed = {"beta": Renamed("inverse_temperature")}

    expectile: Annotated[float, Field(gt=0.0, lt=1.0), Linear(0.5, 0.95)] = 0.7
    """Which expectile of Q over the data's actions V estimates; towards 1 is towards the max."""
    inverse_temperature: Annotated[NonNegative, Log(0.1, 30.0)] = 3.0
    """Weights are exp(inverse_temperature * advantage); larger is greedier."""
    max_weight: WeightLimit = 100.0
    """Cap of the weights."""
    value_lr: LearningRate = 3e-4
    """Learning rate of the value network."""


class IQLLosses(NamedTuple):
    """The three objectives, each for its own network."""

    value: Loss
    policy: Loss
    critics: Loss


def iql_value_loss(q: Tensor, value: Tensor, *, expectile: float) -> Loss:
    """Expectile regression of V on Q at the data's actions, eq. 5; inputs (B,)."""
    assert q.shape == value.shape, (q.shape, value.shape)
    loss = expectile_loss(q.detach() - value, expectile)
    return Loss(loss, {"value_loss": loss, "value_mean": value.mean()})


def iql_policy_loss(
    log_prob: Tensor, q: Tensor, value: Tensor, *, beta: float, max_weight: float
) -> Loss:
    """-mean(min(exp(beta (Q - V)), max_weight) log pi), eq. 7; inputs (B,)."""
    advantage = (q - value).detach()
    weight = capped_exp(beta * advantage, max_weight)
    loss = weighted_likelihood_loss(log_prob, weight)
    return Loss(
        loss,
        {
            "policy_loss": loss,
            "advantage_mean": advantage.mean(),
            **weight_metrics(weight, max_weight),
        },
    )


def iql_loss(
    log_prob: Tensor,
    q_target: Tensor,
    value: Tensor,
    q: Tensor,
    td_target: Tensor,
    *,
    expectile: float,
    beta: float,
    max_weight: float,
) -> IQLLosses:
    """The three IQL objectives at one set of inputs.

    `q_target` is the target critics' minimum at the data's actions, (B,); `q` the online
    critics, (members, B); `td_target` is r + discount * V(s'), (B,).
    """
    td = critic_loss(q, td_target.detach())
    return IQLLosses(
        iql_value_loss(q_target, value, expectile=expectile),
        iql_policy_loss(log_prob, q_target, value, beta=beta, max_weight=max_weight),
        Loss(td, {"critic_loss": td, "q_mean": q.mean()}),
    )


class IQLAlgorithm(Algorithm[IQLParams, Batch]):
    """Implicit Q-learning."""

    Params = IQLParams
    loop: ClassVar[str] = "offline"
    online_loop: ClassVar[str | None] = "offline_to_online"
    paper: ClassVar[str] = "Kostrikov et al. 2021"
    summary: ClassVar[str] = "TD learning that never asks for an unseen action"
    losses: ClassVar[tuple[str, ...]] = ("value_loss", "policy_loss", "critic_loss")
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})
    box_knobs: ClassVar[tuple[str, ...]] = ("action_distribution",)
    softer_weights: ClassVar[str] = "lower algo_kwargs.inverse_temperature or dataset.rewards.scale"

    def __init__(
        self, spaces: Spaces, params: IQLParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.model = self.actor_and_value(params.action_distribution, state_dependent_std=False)
        # masks are the policy's alone: values are asked for at the data's actions
        self.critics = self.make_critics(masked=False)
        orthogonal_init_(self)
        self.target_critics = frozen_copy(self.critics)
        self.add_optimizer("value", self.model.value.parameters(), params.value_lr)
        self.add_optimizer("policy", self.model.policy.parameters(), params.policy_lr)
        self.add_optimizer("critics", self.critics.parameters(), params.critic_lr)

    @property
    def policy(self) -> Policy:
        return self.model.policy

    def other_networks(self) -> Networks:
        return {
            "critics": self.critics,
            "target critics": self.target_critics,
            "value": self.model.value,
        }

    def update(self, batch: Batch) -> Metrics:
        p = self.params
        policy, value = self.model.policy, self.model.value

        def loss() -> Loss:
            distribution, value_now, q, q_targets, next_value = stacked_forward(
                policy.deferred(batch.obs),
                value.deferred(batch.obs),
                self.critics.deferred(batch.obs, batch.action),
                self.target_critics.deferred(batch.obs, batch.action).frozen(),
                value.deferred(batch.next_obs).frozen(),
            )
            losses = iql_loss(
                policy.log_prob_under(distribution, batch.action),
                q_targets.amin(0),
                value_now,
                q,
                batch.reward + batch.discount * next_value,
                expectile=p.expectile,
                beta=p.inverse_temperature,
                max_weight=p.max_weight,
            )
            metrics = losses.value.metrics | losses.policy.metrics | losses.critics.metrics
            return Loss(losses.value.total + losses.policy.total + losses.critics.total, metrics)

        metrics = self.minimize(loss, "value", "policy", "critics")
        soft_update(self.target_critics, self.critics, p.tau)
        return metrics
