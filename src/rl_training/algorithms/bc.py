"""Behaviour cloning: imitate the actions of the data.

Pomerleau, "ALVINN", 1989; the baseline that every offline method has to beat.

Kept: maximum likelihood of the data's actions under a Gaussian (Box) or categorical
(Discrete, and each part of MultiDiscrete) policy. Option: a deterministic policy with
squared error, the form of most published continuous-control baselines.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.params import CloningParams, LearningRate
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ConfigError
from rl_training.models import DeterministicPolicy, Policy, Role
from rl_training.replay.batch import Batch


class BCParams(CloningParams):
    loss: Literal["likelihood", "mse"] = "likelihood"
    """Maximise the likelihood of the data's actions, or fit a deterministic policy to them."""
    lr: LearningRate = 3e-4
    """Learning rate."""
    layer_norm: bool = False
    """LayerNorm before the activations of the policy."""

    normed_roles: ClassVar[tuple[Role, ...]] = ("policy",)


def bc_loss(log_prob: Tensor) -> Loss:
    """Negative mean log-likelihood of the data's actions, (B,)."""
    loss = -log_prob.mean()
    return Loss(loss, {"policy_loss": loss})


def bc_mse_loss(predicted: Tensor, action: Tensor) -> Loss:
    """Mean squared error between predicted and data actions, both (B, A)."""
    assert predicted.shape == action.shape, (predicted.shape, action.shape)
    loss = (predicted - action).square().mean()
    return Loss(loss, {"policy_loss": loss})


class BCAlgorithm(Algorithm[BCParams, Batch]):
    """Behaviour cloning."""

    Params = BCParams
    loop: ClassVar[str] = "offline"
    paper: ClassVar[str] = "Pomerleau 1989"
    summary: ClassVar[str] = "clone the behaviour in the data"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss",)
    needs_rewards: ClassVar[bool] = False
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete", "multi_discrete"})
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})
    box_knobs: ClassVar[tuple[str, ...]] = ("action_distribution",)

    def __init__(
        self, spaces: Spaces, params: BCParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.actor: Policy
        if params.loss == "likelihood":
            self.actor = self.make_policy(params.action_distribution)
        elif not spaces.is_box:
            raise ConfigError(
                "algo_kwargs.loss: 'mse' needs Box actions; use 'likelihood' for Discrete ones"
            )
        else:
            layers = self.layers("policy")
            self.actor = DeterministicPolicy(self.observed(), spaces.action_dim, layers)
        self.add_optimizer("policy", self.actor.parameters(), params.lr)

    @property
    def policy(self) -> Policy:
        return self.actor

    def update(self, batch: Batch) -> Metrics:
        def loss() -> Loss:
            if self.params.loss == "mse":
                return bc_mse_loss(self.actor.mode(batch.obs), batch.action)
            return bc_loss(self.actor.log_prob(batch.obs, batch.action))

        return self.minimize(loss, "policy")
