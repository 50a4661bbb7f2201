"""Pure mathematics that several algorithms share: tensors in, tensors out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.algorithms.optim import move_towards
from rl_training.execution import can_branch_on, is_batched, without_gradients
from rl_training.replay.batch import Batch

Metrics = dict[str, Tensor]


class Loss(NamedTuple):
    """The result of a loss function: the number to minimise and its metrics."""

    total: Tensor
    metrics: Metrics


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Mean of |expectile - 1{error < 0}| * error^2; IQL, eq. 5."""
    weight = torch.where(error < 0, 1.0 - expectile, expectile)
    return (weight * error.square()).mean()


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Squared TD error, summed over the members of (members, B) and averaged over the batch."""
    assert q.dim() == 2, q.shape
    assert q.shape[1:] == target.shape, (q.shape, target.shape)
    return (q - target).square().mean(-1).sum(0)


@without_gradients
def bootstrapped_returns(batch: Batch, value: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns-to-go that continue with the value of the final state where a time limit cut."""
    assert batch.returns_to_go is not None
    if batch.final_obs is None or batch.bootstrap_discount is None:
        return batch.returns_to_go
    return batch.returns_to_go + batch.bootstrap_discount * value(batch.final_obs)


def capped_exp(exponent: Tensor, cap: float) -> Tensor:
    """min(exp(exponent), cap), finite for every finite exponent."""
    # exp of a large exponent would be inf, and inf capped has no defined product with 0
    return exponent.clamp(max=80.0).exp().clamp(max=cap)


def weighted_likelihood_loss(log_prob: Tensor, weight: Tensor) -> Tensor:
    """-mean(weight * log pi), the regression all advantage-weighted methods end in."""
    assert log_prob.shape == weight.shape, (log_prob.shape, weight.shape)
    return -(weight.detach() * log_prob).mean()


def weight_metrics(weight: Tensor, cap: float) -> Metrics:
    """How the weights are spread: all equal means cloning, many at the cap means too cold."""
    return {
        "weight_mean": weight.mean(),
        "weight_capped": (weight >= cap).float().mean(),
        # share of the batch that carries the update (Kish's effective sample size)
        "weight_effective": weight.sum().square()
        / (weight.square().sum() * weight.shape[0]).clamp(min=1e-12),
    }


LEAST_EFFECTIVE, MOST_CAPPED = 0.03, 0.1
"""Shares of the batch beyond which `weight_metrics` show that the weights have collapsed."""


def collapsed_weights(metrics: Mapping[str, float]) -> str | None:
    """How the weights of a logged update have collapsed, in words; None if they have not."""
    effective, capped = metrics.get("weight_effective", 1.0), metrics.get("weight_capped", 0.0)
    if capped > MOST_CAPPED:
        return f"{capped:.0%} of the advantage weights are at algo_kwargs.max_weight"
    if effective < LEAST_EFFECTIVE:
        return f"{effective:.1%} of the batch carry nearly all of the advantage weight"
    return None


@without_gradients
def soft_update(
    target: nn.Module, online: nn.Module, tau: float, due: Tensor | bool | None = None
) -> None:
    """target <- target + tau * (online - target), for every parameter at once, where `due`."""
    if due is not False:
        mask = due if isinstance(due, Tensor) else None
        move_towards(_parameters_of(target), _parameters_of(online), tau, mask)


def _parameters_of(module: nn.Module) -> list[Tensor]:
    """The parameters, listed once: looking for them takes as long as moving them."""
    if is_batched():  # several agents at once hold other tensors
        return list(module.parameters())
    kept = vars(module)
    if "_listed" not in kept:
        kept["_listed"] = list(module.parameters())
    listed: list[Tensor] = kept["_listed"]
    return listed


def gradients_of(total: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of a 0-d number, in the order of the parameters."""
    if not can_branch_on(total):
        return list(torch.autograd.grad(total, parameters))
    # The engine itself: on the host the function around it takes as long as a small layer.
    engine: Any = torch.autograd.Variable._execution_engine
    return list(
        engine.run_backward(
            (total,), (torch.ones_like(total),), False, False, tuple(parameters), False, False
        )
    )


def clipped_gradients(gradients: list[Tensor], max_norm: float) -> list[Tensor]:
    """Gradients scaled so that their joint norm is at most `max_norm`; no host sync."""
    if is_batched():
        norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    else:
        norms = list(torch._foreach_norm(gradients))
    if can_branch_on(gradients[0]):
        share = max_norm / (math.hypot(*(float(norm) for norm in norms)) + 1e-6)
        if not share >= 1.0:  # also where a norm is NaN
            torch._foreach_mul_(gradients, share)
        return gradients
    norm = torch.linalg.vector_norm(torch.stack(norms))
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if is_batched():
        return [gradient * factor for gradient in gradients]
    torch._foreach_mul_(gradients, factor)
    return gradients
