"""Steps that the critic-based algorithms share, as functions of modules and a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.functional import Loss, critic_loss
from rl_training.data.batch import Batch
from rl_training.models import EnsembleCritic, MLPSACModel, TanhGaussianPolicy


@torch.no_grad()
def policy_td_target(
    policy: TanhGaussianPolicy, target_critics: EnsembleCritic, batch: Batch, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """r + discount * min_i Q_i(s', a') with a' from the policy at s', and log pi(a'|s').

    `noise` is (B, A) standard normal.
    """
    next_action, next_log_prob = policy.rsample(batch.next_obs, noise)
    next_q = target_critics(batch.next_obs, next_action).amin(0)
    return batch.reward + batch.discount * next_q, next_log_prob


def td_loss(critics: EnsembleCritic, batch: Batch, target: Tensor) -> Loss:
    """Squared error of every critic to one (B,) target."""
    q = critics(batch.obs, batch.action)
    loss = critic_loss(q, target)
    return Loss(loss, {"critic_loss": loss, "q_mean": q.mean()})


@torch.no_grad()
def data_and_policy_values(
    model: MLPSACModel, batch: Batch, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Minimum over critics of the data's actions, (B,), and of policy samples, (S, B).

    `noise` is (S, B, A); one pass of the critics serves both.
    """
    samples, _ = model.policy.rsample(batch.obs, noise)
    actions = torch.cat([batch.action.unsqueeze(0), samples])
    values = model.critics.of_samples(batch.obs, actions).amin(0)
    return values[0], values[1:]
