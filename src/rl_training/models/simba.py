"""Residual networks for reinforcement learning: SimBa and SimbaV2.

Lee et al. 2024, arXiv:2410.09754, and Lee et al. 2025, arXiv:2502.15280. Observations are
standardised by running statistics before they get here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.members import (
    MemberLinear,
    MemberNet,
    MemberNorm,
    chosen,
    he_normal_,
)
from rl_training.models.mlp import Activation, activated

EXPANSION = 4
"""Units between the two layers of a block, per unit of the stream."""
SHIFT = 3.0
"""The constant that SimbaV2 appends to the inputs, so that their length survives."""


class _Block(nn.Module):
    """x + W2 f(W1 LN(x))."""

    def __init__(self, num_members: int, width: int, activation: Activation) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.norm = MemberNorm(num_members, width)
        self.up = MemberLinear(num_members, width, EXPANSION * width, he_normal_)
        self.down = MemberLinear(num_members, EXPANSION * width, width, he_normal_)

    def forward(self, x: Tensor, members: Tensor | None) -> Tensor:
        inner = activated(self.up(self.norm(x, members), members), self.activation)
        out: Tensor = x + self.down(inner, members)
        return out


class ResidualShape(NamedTuple):
    """What a residual network is made from."""

    num_members: int
    in_dim: int
    width: int
    num_blocks: int
    out_dim: int
    activation: Activation


class SimbaNet(MemberNet):
    """A linear embedding, blocks with LayerNorm before them, LayerNorm, a linear output."""

    def __init__(self, shape: ResidualShape) -> None:
        num_members, in_dim, width, num_blocks, out_dim, activation = shape
        super().__init__(num_members)
        self.embedding = MemberLinear(num_members, in_dim, width, nn.init.orthogonal_)
        self.blocks = nn.ModuleList(
            _Block(num_members, width, activation) for _ in range(num_blocks)
        )
        self.norm = MemberNorm(num_members, width)
        self.output = MemberLinear(num_members, width, out_dim, nn.init.orthogonal_)

    def of_members(self, x: Tensor, members: Tensor | None) -> Tensor:
        x = self.embedding(x, members)
        for block in self.blocks:
            x = block(x, members)
        out: Tensor = self.output(self.norm(x, members), members)
        return out


def on_sphere(x: Tensor, dim: int = -1) -> Tensor:
    """x / |x|."""
    length: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return x / length.clamp(min=1e-8)


class Scaler(nn.Module):
    """A learned factor per unit that starts at `start`; its parameter starts at `size`, so that a
    step of the optimiser moves the factor by `start / size` times its own length."""

    def __init__(self, num_members: int, width: int, start: float, size: float) -> None:
        super().__init__()
        self.factor = start / size
        self.scale = nn.Parameter(torch.full((num_members, 1, width), size))

    def forward(self, members: Tensor | None) -> Tensor:
        return chosen(self.scale, members) * self.factor


class SphereLinear(MemberLinear):
    """x W_i, where the weights of every output have length 1: after every step of the optimiser
    they are projected back."""

    def __init__(self, num_members: int, fan_in: int, fan_out: int) -> None:
        super().__init__(num_members, fan_in, fan_out, nn.init.orthogonal_, bias=False)
        self.weight.data = on_sphere(self.weight.data, 1)


class _SphereBlock(nn.Module):
    """The normalised interpolation from x to the normalised W2 f(s * W1 x)."""

    def __init__(
        self, num_members: int, width: int, num_blocks: int, activation: Activation
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        inner, size = EXPANSION * width, math.sqrt(2.0 / width) / math.sqrt(EXPANSION)
        self.up = SphereLinear(num_members, width, inner)
        self.scaler = Scaler(num_members, inner, size, size)
        self.down = SphereLinear(num_members, inner, width)
        self.share = Scaler(num_members, width, 1.0 / (num_blocks + 1), 1.0 / math.sqrt(width))

    def forward(self, x: Tensor, members: Tensor | None) -> Tensor:
        inner = activated(self.up(x, members) * self.scaler(members), self.activation)
        towards = on_sphere(self.down(inner, members))
        out: Tensor = x + self.share(members) * (towards - x)
        return on_sphere(out)


class SphereNet(MemberNet):
    """SimbaV2: features and the weights of every unit have length 1."""

    def __init__(self, shape: ResidualShape) -> None:
        num_members, in_dim, width, num_blocks, out_dim, activation = shape
        super().__init__(num_members)
        size = math.sqrt(2.0 / width)
        self.embedding = SphereLinear(num_members, in_dim + 1, width)
        self.embedding_scaler = Scaler(num_members, width, size, size)
        self.blocks = nn.ModuleList(
            _SphereBlock(num_members, width, num_blocks, activation) for _ in range(num_blocks)
        )
        self.hidden = SphereLinear(num_members, width, width)
        self.hidden_scaler = Scaler(num_members, width, 1.0, 1.0)
        self.output = SphereLinear(num_members, width, out_dim)
        self.bias = nn.Parameter(torch.zeros(num_members, 1, out_dim))

    def of_members(self, x: Tensor, members: Tensor | None) -> Tensor:
        x = on_sphere(F.pad(x, (0, 1), value=SHIFT))
        x = on_sphere(self.embedding(x, members) * self.embedding_scaler(members))
        for block in self.blocks:
            x = block(x, members)
        x = self.hidden(x, members) * self.hidden_scaler(members)
        out: Tensor = self.output(x, members) + chosen(self.bias, members)
        return out


def weights_on_sphere(module: nn.Module) -> list[nn.Parameter]:
    """The weights that keep the length 1."""
    return [layer.weight for layer in module.modules() if isinstance(layer, SphereLinear)]
