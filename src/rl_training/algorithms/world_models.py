"""The mathematics of learning a world model and a policy inside it; DreamerV3, arXiv:2301.04104.

Pure functions. Time is the first axis where there is one.
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
    """How far the prior is from the posterior, twice: to move the prior, to move the posterior.

    Each is at least `free_nats`, at which it has no gradient. Inputs are log-probabilities.
    """
    dynamics = kl_divergence(posterior.detach(), prior)
    representation = kl_divergence(posterior, prior.detach())
    return dynamics.clamp(min=free_nats), representation.clamp(min=free_nats)


def lambda_return(reward: Tensor, value: Tensor, continues: Tensor, lam: float | Tensor) -> Tensor:
    """(H, ...) returns of the first H of H + 1 states.

    ret_t = r_{t+1} + c_{t+1} ((1 - lam) v_{t+1} + lam ret_{t+1}), and ret_H = v_H. `reward[t]` is
    what arriving at state t gave, `continues[t]` the discount if the episode goes on from it,
    so the first entries of `reward` and `continues` are never read. A tensor `lam` is one per
    state: with 0 the return trusts the value there.
    """
    near, share = reward + continues * (1.0 - lam) * value, continues * lam
    following = value[-1]
    returns = []
    for t in range(value.shape[0] - 1, 0, -1):
        following = torch.addcmul(near[t], share[t], following)
        returns.append(following)
    return torch.stack(returns[::-1])


def imagination_weights(continues: Tensor) -> Tensor:
    """How probable it is that state t of (H + 1, ...) is reached, its own continuation included.

    The state an imagination starts from counts, too: nothing is learned from what would follow
    a terminal one.
    """
    return continues.cumprod(0).detach()


class ReturnScale(NamedTuple):
    """What returns are divided by, and the range it follows."""

    scale: Tensor
    range: Tensor


def return_scale(returns: Tensor, before: Tensor, rate: float) -> ReturnScale:
    """A moving average, from 0, of the 5% to 95% range of returns; the scale is at least 1."""
    ordered = returns.detach().flatten().sort().values
    moved = before + rate * (_quantile(ordered, 0.95) - _quantile(ordered, 0.05) - before)
    return ReturnScale(moved.clamp(min=1.0), moved)


def _quantile(ordered: Tensor, share: float) -> Tensor:
    """Linear between neighbours; torch.quantile would ask the host."""
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
