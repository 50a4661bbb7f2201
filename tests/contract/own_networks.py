"""Networks of a user, by import path: small, right and wrong ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rl_training import NetworkRequest


class Encoder(nn.Module):
    """Any observation to five features."""

    def __init__(self, in_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(in_shape), 5)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, obs: Tensor) -> Tensor:
        return torch.sin(self.linear(obs.to(self.scale.dtype).flatten(1))) * self.scale


def all_of_them(request: NetworkRequest) -> nn.Module:
    """A module of one's own for every request."""
    if request.role == "encoder":
        return Encoder(request.in_shape)
    assert request.out_dim is not None
    (width,) = request.in_shape
    return nn.Sequential(nn.Linear(width, 7), nn.Tanh(), nn.Linear(7, request.out_dim))


def encoder_alone(request: NetworkRequest) -> nn.Module | None:
    return Encoder(request.in_shape) if request.role == "encoder" else None


def too_wide(request: NetworkRequest) -> nn.Module | None:
    if request.out_dim is None:
        return None
    return nn.Linear(request.in_shape[0], request.out_dim + 1)


def flat(request: NetworkRequest) -> nn.Module:
    return nn.Sequential(nn.Flatten(0), nn.Linear(2 * math.prod(request.in_shape), 4))


def no_module(request: NetworkRequest) -> list[int]:
    return [256, 256]


def fails(request: NetworkRequest) -> nn.Module:
    return nn.Linear(1234, 1)


def whole_numbers(request: NetworkRequest) -> nn.Module:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).long()

    return Rounded()


def with_dropout(request: NetworkRequest) -> nn.Module:
    return nn.Sequential(all_of_them(request), nn.Dropout())


def with_batch_norm(request: NetworkRequest) -> nn.Module:
    return nn.Sequential(nn.Flatten(1), nn.BatchNorm1d(math.prod(request.in_shape)))


def raises(request: NetworkRequest) -> nn.Module:
    raise ValueError("no such\nrole")


def without_a_request() -> None:
    return None


_shared: dict[tuple[int, ...], nn.Module] = {}


def shared(request: NetworkRequest) -> nn.Module | None:
    if request.role != "encoder":
        return None
    return _shared.setdefault(request.in_shape, Encoder(request.in_shape))


NOT_A_FUNCTION = 3
