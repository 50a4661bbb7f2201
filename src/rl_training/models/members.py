"""Layers of several networks of one shape, evaluated together, and the networks made of them.

Tensors are (members, B, units). A layer is asked for all members or for those in `members`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.linear import member_linear


def chosen(parameter: Tensor, members: Tensor | None) -> Tensor:
    """The rows of a (members, ...) parameter for some members."""
    return parameter if members is None else parameter.index_select(0, members)


class MemberLinear(nn.Module):
    """x W_i + b_i, or x W_i without `bias`; weights as `initialize` fills (in, out) matrices."""

    bias: nn.Parameter | None

    def __init__(
        self,
        num_members: int,
        fan_in: int,
        fan_out: int,
        initialize: Callable[[Tensor], object],
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_members, fan_in, fan_out))
        for matrix in self.weight.data:
            initialize(matrix)
        self.bias = nn.Parameter(torch.zeros(num_members, 1, fan_out)) if bias else None

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        weight = chosen(self.weight, members)
        if self.bias is None:
            return torch.bmm(x, weight)
        return member_linear(x, weight, chosen(self.bias, members))


class MemberNorm(nn.Module):
    """LayerNorm with a scale and a shift per member."""

    def __init__(self, num_members: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_members, 1, width))
        self.shift = nn.Parameter(torch.zeros(num_members, 1, width))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        x = F.layer_norm(x, x.shape[-1:])
        return x * chosen(self.scale, members) + chosen(self.shift, members)


class MemberNet(nn.Module):
    """Several networks: (B, in) or (members, B, in) to (members, B, out).

    Its weights are as its authors start them: `is_initialized`.
    """

    is_initialized = True

    def __init__(self, num_members: int) -> None:
        super().__init__()
        self.num_members = num_members

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Outputs of all members, or of those in `members`, in that order."""
        if x.dim() == 2:
            x = x.expand(self.num_members if members is None else members.shape[0], *x.shape)
        return self.of_members(x, members)

    def of_members(self, x: Tensor, members: Tensor | None) -> Tensor:
        """(members, B, out) of (members, B, in)."""
        raise NotImplementedError


class LoneNet(nn.Module):
    """The only member of a `MemberNet`: (..., in) to (..., out)."""

    is_initialized = True

    def __init__(self, net: MemberNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]))
        return out[0] if x.dim() == 2 else out[0].reshape(*x.shape[:-1], out.shape[-1])


def uniform_(matrix: Tensor) -> None:
    """Initialise as `torch.nn.Linear` does."""
    bound = 1.0 / math.sqrt(matrix.shape[0])
    nn.init.uniform_(matrix, -bound, bound)


def he_normal_(matrix: Tensor) -> None:
    """Initialise as He et al. 2015 do for layers before a ReLU."""
    nn.init.normal_(matrix, std=math.sqrt(2.0 / matrix.shape[0]))
