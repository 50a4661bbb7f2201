"""Steps that the critic-based algorithms share, as functions of modules and a batch."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Networks
from rl_training.algorithms.functional import Loss, critic_loss
from rl_training.models import BoxPolicy, EnsembleCritic
from rl_training.replay.batch import Batch


@torch.no_grad()
def policy_td_target(
    policy: BoxPolicy, target_critics: EnsembleCritic, batch: Batch, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """r + discount * min_i Q_i(s', a') with a' from the policy at s', and log pi(a'|s').

    `noise` is (B, A) standard normal.
    """
    next_action, next_log_prob = policy.rsample(batch.next_obs, noise)
    return td_target(target_critics, batch, next_action), next_log_prob


@torch.no_grad()
def td_target(
    target_critics: EnsembleCritic,
    batch: Batch,
    next_action: Tensor,
    members: Tensor | None = None,
) -> Tensor:
    """r + discount * min_i Q_i(s', a'), (B,), over all critics or over those in `members`."""
    next_q: Tensor = target_critics(batch.next_obs, next_action, members)
    return batch.reward + batch.discount * next_q.amin(0)


def td_loss(critics: EnsembleCritic, batch: Batch, target: Tensor) -> tuple[Loss, Tensor]:
    """Squared error of every critic to one (B,) target, and the critics' values, (members, B)."""
    q = critics(batch.obs, batch.action)
    loss = critic_loss(q, target)
    return Loss(loss, {"critic_loss": loss, "q_mean": q.mean()}), q


def soft_policy_loss(
    policy: BoxPolicy,
    critics: EnsembleCritic,
    obs: Tensor,
    noise: Tensor,
    temperature: Tensor | float,
    over_critics: Literal["min", "mean"] = "min",
) -> Loss:
    """mean(temperature log pi(a|s) - min_i Q_i(s, a)) at the policy's own actions; SAC, eq. 7.

    `noise` is (B, A); `over_critics` may be their mean instead. The metric `entropy` is the
    policy's, estimated by the same actions.
    """
    action, log_prob = policy.rsample(obs, noise)
    q: Tensor = critics(obs, action)
    loss = (temperature * log_prob - (q.amin(0) if over_critics == "min" else q.mean(0))).mean()
    return Loss(loss, {"policy_loss": loss, "entropy": -log_prob.mean()})


def temperature_loss(log_temperature: Tensor, entropy: Tensor, target_entropy: float) -> Loss:
    """log temperature * (entropy - target): falls while the policy is more random than asked."""
    loss = log_temperature * (entropy.detach() - target_entropy)
    return Loss(loss, {"temperature_loss": loss})


def soft_networks(
    critics: EnsembleCritic, target_critics: EnsembleCritic, log_temperature: nn.Parameter
) -> Networks:
    """`other_networks` of a soft actor-critic; a fixed temperature is a knob, not learned."""
    tuned = {"temperature": log_temperature} if log_temperature.requires_grad else {}
    return {"critics": critics, "target critics": target_critics, **tuned}


class SoftLosses(NamedTuple):
    """The three objectives of a soft actor-critic, each for its own parameters."""

    critics: Loss
    policy: Loss
    temperature: Loss


def soft_losses(
    q: Tensor,
    reward: Tensor,
    discount: Tensor,
    next_value: Tensor,
    log_prob: Tensor,
    policy_value: Tensor,
    log_temperature: Tensor,
    target_entropy: float,
) -> SoftLosses:
    """The objectives from what an algorithm makes of its ensemble; `q` (members, B), else (B,)."""
    td = critic_loss(q, (reward + discount * next_value).detach())
    policy = (log_temperature.detach().exp() * log_prob - policy_value).mean()
    return SoftLosses(
        Loss(td, {"critic_loss": td}),
        Loss(policy, {"policy_loss": policy}),
        temperature_loss(log_temperature, -log_prob.mean(), target_entropy),
    )


def data_and_policy(
    policy: BoxPolicy, critics: EnsembleCritic, batch: Batch, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """log pi of the data's actions, (B,), and the critics' minimum at policy samples, (S, B).

    `noise` is (S, B, A). One pass of the policy serves both; no gradient flows through the
    samples or their values.
    """
    distribution = policy(batch.obs)
    log_prob = policy.log_prob_under(distribution, batch.action)
    with torch.no_grad():
        samples, _ = policy.rsample_from(distribution, noise)
        return log_prob, critics.of_samples(batch.obs, samples).amin(0)
