"""Steps that the critic-based algorithms share, as functions of modules and a batch."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, Networks
from rl_training.algorithms.functional import Loss, critic_loss
from rl_training.envs.spaces import Spaces
from rl_training.execution import without_gradients
from rl_training.experiment.errors import ConfigError
from rl_training.models import (
    ActionValueCritic,
    BoxPolicy,
    CategoricalPolicy,
    Critics,
    EnsembleCritic,
    Policy,
)
from rl_training.models.masks import allowed
from rl_training.replay.batch import Batch


def action_noise(algorithm: Algorithm, rows: int, *samples: int) -> Tensor | None:
    """Standard normal noise of Box actions; None for Discrete ones, whose sums are exact."""
    spaces = algorithm.spaces
    return None if spaces.is_discrete else algorithm.normal(*samples, rows, spaces.action_dim)


def action_values(policy: Policy, critics: Critics, obs: Tensor) -> tuple[Tensor, Tensor]:
    """log pi, (B, actions), and the critics' values, (members, B, actions), of Discrete actions."""
    assert isinstance(policy, CategoricalPolicy)
    assert isinstance(critics, ActionValueCritic)
    return policy(obs), critics.of_all(obs)


def policy_choice(policy: Policy, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Box actions of the policy, (..., B, A), and their log-densities, (..., B).

    Without noise, for Discrete actions, their probabilities, (B, actions), and the expected
    log-probability, (B,).
    """
    if noise is None:
        assert isinstance(policy, CategoricalPolicy)
        log_probs = policy(obs)
        probs = log_probs.exp()
        return probs, (probs * log_probs).sum(-1)
    assert isinstance(policy, BoxPolicy)
    return policy.rsample(obs, noise)


def mode_choice(policy: Policy, obs: Tensor) -> Tensor:
    """The most likely action in the format of `policy_choice`, with probability 1."""
    if not isinstance(policy, CategoricalPolicy):
        return policy.mode(obs)
    log_probs: Tensor = policy(obs)
    return torch.zeros_like(log_probs).scatter(-1, log_probs.argmax(-1, keepdim=True), 1.0)


@without_gradients
def policy_td_target(
    policy: Policy,
    target_critics: Critics,
    batch: Batch,
    noise: Tensor | None,
    members: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """r + discount * min_i Q_i(s', a') with a' from the policy at s', and log pi(a'|s').

    `noise` is (B, A) standard normal. Without it, for Discrete actions, both are expectations
    over the policy. The minimum is over all critics or over those in `members`.
    """
    chosen, next_log_prob = policy_choice(policy, batch.next_obs, noise)
    return td_target(target_critics, batch, chosen, members), next_log_prob


@without_gradients
def td_target(
    target_critics: Critics,
    batch: Batch,
    chosen: Tensor,
    members: Tensor | None = None,
) -> Tensor:
    """r + discount * min_i Q_i(s', a'), (B,), over all critics or over those in `members`.

    `chosen`, (B, A), are Box actions a', or probabilities of the Discrete actions.
    """
    if isinstance(target_critics, ActionValueCritic):
        next_q = (chosen * target_critics.of_all(batch.next_obs, members).amin(0)).sum(-1)
    else:
        next_q = target_critics(batch.next_obs, chosen, members).amin(0)
    return batch.reward + batch.discount * next_q


def td_loss(critics: Critics, batch: Batch, target: Tensor) -> tuple[Loss, Tensor]:
    """Squared error of every critic to one (B,) target, and the critics' values, (members, B)."""
    q = critics(batch.obs, batch.action)
    loss = critic_loss(q, target)
    return Loss(loss, {"critic_loss": loss, "q_mean": q.mean()}), q


def soft_policy_loss(
    policy: Policy,
    critics: Critics,
    obs: Tensor,
    noise: Tensor | None,
    temperature: Tensor | float,
    over_critics: Literal["min", "mean"] = "min",
    relative: bool = False,
) -> Loss:
    """mean(temperature log pi(a|s) - min_i Q_i(s, a)) at the policy's own actions; SAC, eq. 7.

    `noise` is (B, A); `over_critics` may be their mean instead. The metric `entropy` is the
    policy's, estimated by the same actions. Without noise, for Discrete actions, loss and
    entropy are expectations over the policy, the latter `as_if_all_were_allowed` where there are
    masks. A `relative` loss is divided by the mean size of Q, without gradient, so that other
    terms can stand beside it whatever the rewards are.
    """
    if noise is None:
        assert isinstance(critics, ActionValueCritic)
        probs, log_prob = policy_choice(policy, obs, None)
        value = (probs * _over_critics(critics.of_all(obs).detach(), over_critics)).sum(-1)
    else:
        action, log_prob = policy_choice(policy, obs, noise)
        value = _over_critics(critics(obs, action), over_critics)
    loss = (temperature * log_prob - value).mean()
    if relative:
        loss = loss / value.detach().abs().mean().clamp(min=1e-8)
    entropy = -log_prob.mean()
    if isinstance(policy, CategoricalPolicy) and policy.masked:
        entropy = as_if_all_were_allowed(entropy, allowed(obs, probs.shape[-1]))
    return Loss(loss, {"policy_loss": loss, "entropy": entropy})


def as_if_all_were_allowed(entropy: Tensor, mask: Tensor) -> Tensor:
    """The entropy at the same share of the uniform policy's, had all actions been allowed.

    `entropy` is the mean over states whose (B, actions) masks are given. Where they allow few
    actions it cannot reach a target that was set for all of them, and a temperature that aims at
    it would grow without limit.
    """
    most = mask.sum(-1).log().mean()
    return entropy * (math.log(mask.shape[-1]) / most.clamp(min=1e-8))


def distance_to_data(policy: Policy, batch: Batch) -> Tensor:
    """(B,): |mode - a|^2 for Box actions, -log pi(a|s) for Discrete ones."""
    if isinstance(policy, CategoricalPolicy):
        return -policy.log_prob(batch.obs, batch.action)
    return (policy.mode(batch.obs) - batch.action).square().sum(-1)


def _over_critics(q: Tensor, how: Literal["min", "mean"]) -> Tensor:
    return q.amin(0) if how == "min" else q.mean(0)


def entropy_target(
    spaces: Spaces, given: float | None, per_component: float, share: float
) -> float:
    """The entropy that a temperature aims at.

    The `given` one, or `per_component` times the number of components of Box actions, or
    `share` of the entropy that the uniform policy over Discrete actions has.
    """
    if not spaces.is_discrete:
        return per_component * spaces.action_dim if given is None else given
    most = math.log(spaces.action_dim)
    if given is not None and not 0.0 <= given <= most:
        raise ConfigError(
            f"algo_kwargs.target_entropy: policies over {spaces.action_dim} actions have entropies "
            f"from 0 to {most:.3g}, got {given:g}; set a number between, or remove this key"
        )
    return share * most if given is None else given


def temperature_loss(log_temperature: Tensor, entropy: Tensor, target_entropy: float) -> Loss:
    """log temperature * (entropy - target): falls while the policy is more random than asked."""
    loss = log_temperature * (entropy.detach() - target_entropy)
    return Loss(loss, {"temperature_loss": loss})


def soft_networks(
    critics: Critics, target_critics: Critics | None, log_temperature: nn.Parameter
) -> Networks:
    """`other_networks` of a soft actor-critic; a fixed temperature is a knob, not learned."""
    tuned = {"temperature": log_temperature} if log_temperature.requires_grad else {}
    targets = {} if target_critics is None else {"target critics": target_critics}
    return {"critics": critics, **targets, **tuned}


class Compared(NamedTuple):
    """The data's action in the policy's eyes, and the critics' values of the policy's own."""

    log_prob: Tensor
    """(B,), of the data's actions; the only part with a gradient."""
    q: Tensor
    """(S, B), the critics' minimum at S actions."""
    share: Tensor | None
    """(S, B), the policy's probabilities of these actions; None where all count alike."""


def policy_mean(q: Tensor, share: Tensor | None) -> Tensor:
    """(B,) mean over the policy's actions of (S, B) values, see `Compared`."""
    return q.mean(0) if share is None else (share * q).sum(0)


def data_and_policy(
    policy: Policy, critics: Critics, batch: Batch, noise: Tensor | None
) -> Compared:
    """`noise`, (S, B, A), draws Box actions; without it all Discrete actions are compared with.

    One pass of the policy serves the data's actions and its own.
    """
    if noise is None:
        log_probs, values = action_values(policy, critics, batch.obs)
        log_prob = policy.log_prob_under(log_probs, batch.action)
        return Compared(log_prob, values.detach().amin(0).T, log_probs.detach().exp().T)
    assert isinstance(policy, BoxPolicy)
    assert isinstance(critics, EnsembleCritic)
    distribution = policy(batch.obs)
    log_prob = policy.log_prob_under(distribution, batch.action)
    with torch.no_grad():
        samples, _ = policy.rsample_from(distribution, noise)
        return Compared(log_prob, critics.of_samples(batch.obs, samples).amin(0), None)
