"""Revisited behaviour-regularised actor-critic.

Tarasov, Kurenkov, Nikulin and Kolesnikov 2023, arXiv:2305.09836.

Kept: TD3's delays and smoothed targets, LayerNorm critics, three hidden layers, large batches,
separate penalties on the policy and on the target's action, Q scaled by 1 / mean |Q| in the
policy's objective. Changed: one pair of weights for all data, where the paper chooses a pair per
data set; rows of better episodes are drawn more often (Hong et al. 2023, arXiv:2306.13085), and the
policy learns at a tenth of the paper's rate, because it would overfit those fewer rows. Where the
data do not show the next action, as at a time limit, the target has no penalty.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from rl_training.algorithms.critics import td_loss
from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.params import (
    BY_RETURN,
    BatchSize,
    LearningRate,
    OfflinePolicyParams,
    ReturnTemperature,
    Widths,
)
from rl_training.algorithms.td3 import DeterministicActorCritic, DeterministicParams
from rl_training.experiment.config import NonNegative
from rl_training.experiment.ranges import Log
from rl_training.replay.batch import Batch


class ReBRACParams(DeterministicParams, OfflinePolicyParams):
    batch_size: BatchSize = 1024
    """Transitions per update."""
    layer_norm: bool = True
    """LayerNorm before the activations of the critics."""
    hidden_sizes: Widths = (256, 256, 256)
    """Widths of the hidden layers of every network."""
    policy_lr: LearningRate = 1e-4
    """Learning rate of the policy."""
    critic_lr: LearningRate = 1e-3
    """Learning rate of the critics."""
    return_temperature: ReturnTemperature = None
    """Sample rows by exp(episode return / this); 0: uniform; default 0.1, without episodes 0."""
    policy_penalty: Annotated[NonNegative, Log(1e-3, 1.0)] = 0.3
    """Weight of the distance from the policy's action to the data's."""
    critic_penalty: Annotated[NonNegative, Log(1e-3, 1.0)] = 0.3
    """Weight of the distance from the target's action to the data's next action."""


def rebrac_policy_loss(q: Tensor, action: Tensor, data_action: Tensor, *, penalty: float) -> Loss:
    """mean(penalty * |pi(s) - a|^2 - Q(s, pi(s)) / mean|Q|); ReBRAC, eq. 3.

    `q` is (B,), the actions (B, A); no gradient flows through the scale of Q.
    """
    distance = (action - data_action).square().sum(-1)
    assert distance.shape == q.shape, (distance.shape, q.shape)
    scale = q.detach().abs().mean().clamp(min=1e-8)
    loss = (penalty * distance - q / scale).mean()
    return Loss(loss, {"policy_loss": loss, "cloning_error": distance.mean()})


def penalised_next_value(
    next_q: Tensor, next_action: Tensor, data_next_action: Tensor, known: Tensor, penalty: float
) -> Tensor:
    """min_i Q_i(s', a') - penalty * |a' - a'_data|^2, (B,), from (members, B); ReBRAC, eq. 4.

    `known`, (B,), is 0 where the data do not show their next action.
    """
    distance = (next_action - data_next_action).square().sum(-1)
    return next_q.amin(0) - penalty * known * distance


class ReBRACAlgorithm(DeterministicActorCritic[ReBRACParams]):
    """Revisited behaviour-regularised actor-critic."""

    Params = ReBRACParams
    loop: ClassVar[str] = "offline"
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})
    paper: ClassVar[str] = "Tarasov et al. 2023"
    summary: ClassVar[str] = "deterministic actor-critic with penalties on policy and target"
    needs_next_actions: ClassVar[bool] = True
    own_temperature = BY_RETURN

    def policy_loss(self, batch: Batch) -> Loss:
        action = self.actor.mode(batch.obs)
        q: Tensor = self.critics(batch.obs, action)
        return rebrac_policy_loss(
            q.amin(0), action, batch.action, penalty=self.params.policy_penalty
        )

    def critic_step(self, batch: Batch, next_action: Tensor) -> Metrics:
        assert self.target_critics is not None
        assert batch.next_action is not None
        assert batch.has_next_action is not None
        with torch.no_grad():
            next_value = penalised_next_value(
                self.target_critics(batch.next_obs, next_action),
                next_action,
                batch.next_action,
                batch.has_next_action,
                self.params.critic_penalty,
            )
            target = batch.reward + batch.discount * next_value
        return self.minimize(lambda: td_loss(self.critics, batch, target)[0], "critics")
