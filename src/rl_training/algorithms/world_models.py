"""Losses and returns of a world model and its policy; DreamerV3, arXiv:2301.04104.

Pure functions. If there is a time axis, it is the first one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.functional import Loss


def kl_divergence(p_log: Tensor, q_log: Tensor) -> Tensor:
    """KL(p || q) of (..., latents, classes) log-probabilities, summed over both axes."""
    return (p_log.exp() * (p_log - q_log)).sum((-2, -1))


def kl_balance(posterior: Tensor, prior: Tensor, free_nats: float) -> tuple[Tensor, Tensor]:
    """The KL divergence of posterior and prior, twice: to train the prior and the posterior.

    Each is clipped from below at `free_nats`, without gradient there. Inputs are log-probabilities.
    """
    dynamics = kl_divergence(posterior.detach(), prior)
    representation = kl_divergence(posterior, prior.detach())
    return dynamics.clamp(min=free_nats), representation.clamp(min=free_nats)


def lambda_return(reward: Tensor, value: Tensor, continues: Tensor, lam: float | Tensor) -> Tensor:
    """(H, ...) returns of the first H of H + 1 states.

    ret_t = r_{t+1} + c_{t+1} ((1 - lam) v_{t+1} + lam ret_{t+1}), and ret_H = v_H. `reward[t]` is
    the reward for arriving at state t and `continues[t]` its discount, 0 if it is terminal, so the
    first entries of `reward` and `continues` are never read. A tensor `lam` holds one value per
    state: with 0 the return bootstraps with the value there.
    """
    near, share = reward + continues * (1.0 - lam) * value, continues * lam
    following = value[-1]
    returns = []
    for t in range(value.shape[0] - 1, 0, -1):
        following = torch.addcmul(near[t], share[t], following)
        returns.append(following)
    return torch.stack(returns[::-1])


def imagination_weights(continues: Tensor) -> Tensor:
    """The probability of reaching state t of (H + 1, ...), its own continuation included.

    The start state counts as well: nothing is learned from steps after a terminal start state.
    """
    return continues.cumprod(0).detach()


class ReturnScale(NamedTuple):
    """The scale that returns are divided by, and its moving range."""

    scale: Tensor
    range: Tensor


def return_scale(returns: Tensor, before: Tensor, rate: float) -> ReturnScale:
    """A moving average, from 0, of the 5% to 95% range of returns; the scale is at least 1."""
    ordered = returns.detach().flatten().sort().values
    moved = before + rate * (_quantile(ordered, 0.95) - _quantile(ordered, 0.05) - before)
    return ReturnScale(moved.clamp(min=1.0), moved)


def _quantile(ordered: Tensor, share: float) -> Tensor:
    """A quantile with linear interpolation; torch.quantile would need a host sync."""
    position = share * (ordered.shape[0] - 1)
    below = int(position)
    above = min(below + 1, ordered.shape[0] - 1)
    return torch.lerp(ordered[below], ordered[above], position - below)


def imagined_policy_loss(
    log_prob: Tensor,
    entropy: Tensor,
    returns: Tensor,
    value: Tensor,
    weight: Tensor,
    *,
    scale: Tensor,
    entropy_scale: float,
) -> Loss:
    """-mean w (log pi(a_t|s_t) sg((ret_t - v_t) / scale) + entropy_scale H_t), all (H, ...)."""
    assert log_prob.shape == entropy.shape == returns.shape == value.shape == weight.shape
    advantage = ((returns - value) / scale).detach()
    loss = -(weight * (log_prob * advantage + entropy_scale * entropy)).mean()
    return Loss(
        loss,
        {
            "policy_loss": loss,
            "entropy": entropy.mean(),
            "advantage_mean": advantage.mean(),
            "advantage_std": advantage.std(),
        },
    )
