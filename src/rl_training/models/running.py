"""Running statistics of a scalar stream, on the device and in the checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Moments(NamedTuple):
    """Mean and mean square."""

    mean: Tensor
    mean_square: Tensor

    @property
    def std(self) -> Tensor:
        return (self.mean_square - self.mean.square()).clamp(min=0.0).sqrt()


class MovingMoments(nn.Module):
    """Exponential moving averages of a batch's mean and mean square.

    The first batch sets them; each later batch updates them with `rate`, without a host sync.
    """

    mean: Tensor
    mean_square: Tensor
    started: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("mean_square", torch.ones(()))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def after(self, x: Tensor) -> Moments:
        """Return the moments after `x` is included; `set` stores them."""
        rate = torch.where(self.started, self.rate, 1.0)
        return Moments(
            self.mean + rate * (x.mean() - self.mean),
            self.mean_square + rate * (x.square().mean() - self.mean_square),
        )

    @property
    def now(self) -> Moments:
        return Moments(self.mean, self.mean_square)

    def set(self, moments: Moments) -> None:
        self.mean.copy_(moments.mean)
        self.mean_square.copy_(moments.mean_square)
        self.started.fill_(True)
