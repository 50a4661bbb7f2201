"""Sizes and layers of the world model's networks."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
}


def trunc_normal_(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Normal truncated at two standard deviations, with a final std of `scale`/sqrt(fan_in)."""
    std = 1.1368 * scale / math.sqrt(fan_in)  # truncation reduces the standard deviation by 12%
    if scale == 0.0:
        nn.init.zeros_(weight)
    else:
        nn.init.trunc_normal_(weight, std=std, a=-2.0 * std, b=2.0 * std)


class RMSNorm(nn.Module):
    """x / rms(x), times a learned scale, without centring or shift."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.scale.shape, self.scale, 1e-4)


class Dense(nn.Module):
    """Linear layer, RMS norm and SiLU."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
        trunc_normal_(self.linear.weight, in_dim)
        nn.init.zeros_(self.linear.bias)
        self.norm = RMSNorm(out_dim)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.linear(x)))


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
        out: Tensor = self.out(self.layers(x))
        return out


class BlockLinear(nn.Module):
    """A separate linear map per block: (blocks, rows, in) to (blocks, rows, out)."""

    def __init__(self, blocks: int, in_dim: int, out_dim: int, fan_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(blocks, 1, out_dim))
        trunc_normal_(self.weight, fan_in)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)
