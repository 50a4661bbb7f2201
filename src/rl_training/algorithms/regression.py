"""Weighted cloning: what AWR and MARWIL share, whose weights come from a state value, and what AWAC
and CRR share, whose weights come from critics.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, TypeVar

from torch import Tensor

from rl_training.algorithms.base import Algorithm, Networks
from rl_training.algorithms.critics import (
    Compared,
    action_noise,
    data_and_policy,
    policy_td_target,
    td_loss,
)
from rl_training.algorithms.functional import Loss, Metrics, soft_update
from rl_training.algorithms.params import (
    ActorCriticParams,
    CloningParams,
    DiscountedParams,
    TargetNetworkParams,
)
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Rate
from rl_training.models import MovingMoments, Policy, frozen_copy, stacked_forward
from rl_training.replay.batch import Batch


class ValueRegressionParams(CloningParams, DiscountedParams, ActorCriticParams):
    """Knobs of a cloned policy and of a state value."""

    advantage_norm_rate: Rate = 0.01
    """Rate of the moving mean and standard deviation of the advantages."""


V = TypeVar("V", bound=ValueRegressionParams)


class ValueRegression(Algorithm[V, Batch]):
    """A policy that clones the data's actions, weighted by their return above a state value."""

    loop: ClassVar[str] = "offline"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss", "value_loss")
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete", "multi_discrete"})
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})
    box_knobs: ClassVar[tuple[str, ...]] = ("action_distribution",)
    needs_returns: ClassVar[bool] = True

    def __init__(self, spaces: Spaces, params: V, normalize_observations: bool = False) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.model = self.actor_and_value(params.action_distribution)
        self.advantages = MovingMoments(params.advantage_norm_rate)
        policy_lr, value_lr = self.learning_rates
        self.add_optimizer("policy", self.model.policy.parameters(), policy_lr)
        self.add_optimizer("value", self.model.value.parameters(), value_lr)

    @property
    @abstractmethod
    def learning_rates(self) -> tuple[float, float]:
        """Of the policy and of the state value."""

    @property
    def policy(self) -> Policy:
        return self.model.policy

    def other_networks(self) -> Networks:
        return {"value": self.model.value}

    def log_prob_and_value(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B,) log-probabilities of the data's actions and (B,) values, from one pass."""
        policy = self.model.policy
        distribution, value = stacked_forward(
            policy.deferred(batch.obs), self.model.value.deferred(batch.obs)
        )
        return policy.log_prob_under(distribution, batch.action), value


class RegressionParams(CloningParams, TargetNetworkParams):
    """Knobs of a cloned policy and of critics with target networks."""


R = TypeVar("R", bound=RegressionParams)


class CriticRegression(Algorithm[R, Batch]):
    """A policy that clones the data's actions, weighted by the values of critics.

    One step has a TD loss for the critics, whose target action comes from the policy, and a
    weighted regression for the policy.
    """

    loop: ClassVar[str] = "offline"
    losses: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})
    softer_weights: ClassVar[str] = "raise algo_kwargs.temperature, or lower dataset.rewards.scale"

    def __init__(self, spaces: Spaces, params: R, normalize_observations: bool = False) -> None:
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

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Box actions of the policy that the data's action is compared with."""

    @abstractmethod
    def regression(self, own: Compared, q_data: Tensor) -> Loss:
        """The policy's loss; `q_data`, (B,), are the critics' values of the data's actions."""

    def update(self, batch: Batch) -> Metrics:
        policy, critics = self.model.policy, self.model.critics
        rows = batch.reward.shape[0]
        target, _ = policy_td_target(policy, self.target_critics, batch, action_noise(self, rows))
        noise = action_noise(self, rows, self.num_samples)

        def loss() -> Loss:
            td, q = td_loss(critics, batch, target)
            regression = self.regression(data_and_policy(policy, critics, batch, noise), q.amin(0))
            return Loss(td.total + regression.total, td.metrics | regression.metrics)

        metrics = self.minimize(loss, "critics", "policy")
        soft_update(self.target_critics, critics, self.params.tau)
        return metrics
