"""A linear layer of several networks at once, with a gradient that is fast on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

TALL = 1024
"""Rows from which the matrix product of the weights' gradient is split into pieces."""
PIECE = 256


def batched_linear(x: Tensor, weight: Tensor, bias: Tensor, trained: int) -> Tensor:
    """x @ weight + bias for all members, with gradients for the first `trained` ones only.

    `x` is (members, B, in), `weight` (members, in, out) and `bias` (members, 1, out).
    """
    out: Tensor = _BatchedLinear.apply(x, weight, bias, trained)  # type: ignore[no-untyped-call]
    return out


def member_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same for all members, in the form that is fastest where it runs."""
    if x.is_cuda and x.shape[1] >= TALL and torch.is_grad_enabled():
        return batched_linear(x, weight, bias, x.shape[0])
    if weight.shape[-1] == 1 and not x.is_cuda:
        # A batched product with a single column takes three to seven times as long on a CPU:
        # for CQL's critics as long as half of all the other products.
        return (x * weight.transpose(-2, -1)).sum(-1, keepdim=True) + bias
    return torch.baddbmm(bias, x, weight)


class _BatchedLinear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, trained: int) -> Tensor:
        return torch.bmm(x, weight) + bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.trained = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        k, frozen = ctx.trained, x.shape[0] - ctx.trained
        gradient = gradient[:k]

        def full(part: Tensor) -> Tensor:
            return F.pad(part, (0, 0, 0, 0, 0, frozen)) if frozen else part

        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = full(torch.bmm(gradient, weight[:k].transpose(1, 2)))
        return (
            to_x,
            full(product_over_rows(x[:k], gradient)),
            full(gradient.sum(1, keepdim=True)),
            None,
        )


def product_over_rows(x: Tensor, y: Tensor) -> Tensor:
    """(members, in, out): x^T y of (members, B, in) and (members, B, out).

    A batched product does not parallelise over the rows of one sum, so a sum over thousands of
    rows into a small matrix leaves most of a GPU idle. It is computed in pieces, then added.
    """
    members, rows = x.shape[:2]
    if rows < TALL or rows % PIECE:
        return torch.bmm(x.transpose(1, 2), y)
    pieces = members * rows // PIECE
    parts = torch.bmm(
        x.reshape(pieces, PIECE, x.shape[2]).transpose(1, 2), y.reshape(pieces, PIECE, y.shape[2])
    )
    return parts.reshape(members, -1, x.shape[2], y.shape[2]).sum(1)
