"""Sizes and layers of the world model's networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rl_training.models.architecture import OwnNetwork

NORM_EPS = 1e-4


class DreamerSize(NamedTuple):
    """Widths of a world model."""

    deter: int  # deterministic state
    hidden: int  # layers around it
    classes: int  # of each categorical
    depth: int  # of the convolutions
    units: int  # layers of the heads
    latents: int = 32
    blocks: int = 8


SIZES = {
    "tiny": DreamerSize(256, 48, 4, 4, 48, latents=16),
    "1m": DreamerSize(512, 64, 4, 4, 64),
    "12m": DreamerSize(2048, 256, 16, 16, 256),
    "25m": DreamerSize(3072, 384, 24, 24, 384),
    "50m": DreamerSize(4096, 512, 32, 32, 512),
    "100m": DreamerSize(6144, 768, 48, 48, 768),
    "200m": DreamerSize(8192, 1024, 64, 64, 1024),
}


def trunc_normal_(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Normal truncated at two standard deviations, with a final std of `scale`/sqrt(fan_in)."""
    std = 1.1368 * scale / math.sqrt(fan_in)  # truncation reduces the standard deviation by 12%
    if scale == 0.0:
        nn.init.zeros_(weight)
    else:
        nn.init.trunc_normal_(weight, std=std, a=-2.0 * std, b=2.0 * std)


class RMSNorm(nn.Module):
    """x / rms(x), times a learned scale, without centring or shift, in the scale's precision."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.to(self.scale.dtype), self.scale.shape, self.scale, NORM_EPS)


def product(layer: nn.Linear | nn.Conv2d, x: Tensor) -> Tensor:
    """The layer's output for an input of another precision, in that of the layer."""
    out: Tensor = layer(x.to(layer.weight.dtype))
    return out


def widened(x: Tensor) -> Tensor:
    """At least float32, in which losses and distributions are computed."""
    return x.float() if x.dtype == torch.bfloat16 else x


class Dense(nn.Module):
    """Linear layer, RMS norm and SiLU."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
        trunc_normal_(self.linear.weight, in_dim)
        nn.init.zeros_(self.linear.bias)
        self.norm = RMSNorm(out_dim)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(product(self.linear, x)))


class Head(nn.Module):
    """Dense layers and a linear output, initialised with `out_scale` times the usual std."""

    def __init__(
        self, in_dim: int, units: int, layers: int, out_dim: int, out_scale: float = 1.0
    ) -> None:
        super().__init__()
        widths = [in_dim] + [units] * layers
        pairs = itertools.pairwise(widths)
        self.layers = nn.Sequential(*(Dense(*pair) for pair in pairs))
        self.out = nn.Linear(widths[-1], out_dim)
        trunc_normal_(self.out.weight, widths[-1], out_scale)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        return product(self.out, self.layers(x))


class BlockLinear(nn.Module):
    """Weights of a separate linear map per block: (blocks, rows, in) to (blocks, rows, out)."""

    def __init__(self, blocks: int, in_dim: int, out_dim: int, fan_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(blocks, 1, out_dim))
        trunc_normal_(self.weight, fan_in)


def product_weights(module: nn.Module) -> list[nn.Parameter]:
    """The weights of matrix products and convolutions, with their biases, that may be rounded.

    Not those of norms, and of networks of the user's own, which decide about their precision
    themselves. Not the outputs of heads: a logit of 16 in bfloat16 is a multiple of 1/8, so
    probabilities would be off by several percent, and values with them.
    """
    if isinstance(module, OwnNetwork):
        return []
    if isinstance(module, Head):
        return product_weights(module.layers)
    found = [w for part in module.children() for w in product_weights(part)]
    if isinstance(module, nn.Linear | nn.Conv2d):
        found += module.parameters(recurse=False)
    elif isinstance(module, BlockLinear):
        found.append(module.weight)
    return found


class RoundedCopies(torch.autograd.Function):
    """Copies of float32 tensors in another precision; their gradients become float32 again."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _converted(tensors, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, *_converted(gradients, torch.float32)


def in_bfloat16(weights: Iterable[nn.Parameter]) -> list[Tensor]:
    """Rounded copies, which pass their gradients on to the weights."""
    copies: Any = RoundedCopies.apply
    return list(copies(torch.bfloat16, *weights))


def _converted(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = tuple(torch.empty_like(x, dtype=dtype) for x in tensors)
    torch._foreach_copy_(copies, tensors)
    return copies
