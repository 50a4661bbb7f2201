"""Cloning with weights from a critic: what AWAC and CRR share.

A TD loss for the critics, whose target action comes from the policy, and a weighted regression for
the policy, in one step. The two algorithms differ in the weights: see `regression`.
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
from rl_training.algorithms.params import CloningParams, TargetNetworkParams
from rl_training.envs.spaces import Spaces
from rl_training.models import Policy, frozen_copy
from rl_training.replay.batch import Batch


class RegressionParams(CloningParams, TargetNetworkParams):
    """Knobs of a policy that is cloned and of critics with a target network."""


R = TypeVar("R", bound=RegressionParams)


class CriticRegression(Algorithm[R, Batch]):
    """A policy that clones the data's actions, weighted by what critics say of them."""

    loop: ClassVar[str] = "offline"
    losses: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
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
