"""Normalisers whose statistics are stored with the policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

UNCOUNTED = 10_000.0
"""The number of observations that uncounted statistics (of a data set, or the defaults) stand for
when more are added."""


class ObservationNormalizer(nn.Module):
    """(obs - mean) / std with statistics that are part of the checkpoint.

    They are set once from a data set, or updated by `observe`. If inactive, it is the identity
    and costs nothing.
    """

    mean: Tensor
    std: Tensor
    count: Tensor

    def __init__(self, obs_dim: int, active: bool, kept: int = 0) -> None:
        """The last `kept` components, an action mask, are not normalised."""
        super().__init__()
        self.active, self.normalized = active, slice(obs_dim - kept)
        self.register_buffer("mean", torch.zeros(obs_dim))
        self.register_buffer("std", torch.ones(obs_dim))
        self.register_buffer("count", torch.zeros(()))

    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        self.mean[self.normalized].copy_(mean[self.normalized])
        self.std[self.normalized].copy_(std[self.normalized])

    def continue_from(self, other: ObservationNormalizer) -> None:
        """Copy statistics; uncounted ones get the weight of `UNCOUNTED` observations."""
        self.set_statistics(other.mean, other.std)
        self.count.fill_(UNCOUNTED if other.count == 0 else other.count)

    @torch.no_grad()
    def observe(self, obs: Tensor) -> None:
        """Update the statistics with (B, O) observations; a no-op while inactive."""
        if self.active:
            mean, variance, count = merged_moments(self.mean, self.std.square(), self.count, obs)
            # in place, so that an update with it can be captured
            self.set_statistics(mean, variance.clamp(min=1e-8).sqrt())
            self.count.copy_(count)

    def forward(self, obs: Tensor) -> Tensor:
        if not self.active:
            return obs
        own: Any = self._buffers  # asking the module for them takes longer
        seen: Tensor = ((obs - own["mean"]) / own["std"]).clamp(-10.0, 10.0)
        return seen


class Standardizer(nn.Module):
    """(x - mean) / std with the statistics of given data per column, and its inverse."""

    mean: Tensor
    std: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))

    @torch.no_grad()
    def set_from(self, x: Tensor) -> None:
        """Set the statistics from (N, width) rows; a constant column keeps its scale."""
        mean, std = x.double().mean(0), x.double().std(0, correction=0)
        varies = std > 1e-7 * mean.abs().clamp(min=1.0)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(varies, std, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def inverse(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean


class RewardScale(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return."""

    returns: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, num_envs: int, gamma: float, *runs: int) -> None:
        """`runs` are further axes, after that of environments, with scales of their own."""
        super().__init__()
        self.gamma = gamma
        self.register_buffer("returns", torch.zeros(num_envs, *runs))
        for name, value in (("mean", 0.0), ("variance", 1.0), ("count", 0.0)):
            self.register_buffer(name, torch.full(runs, value))

    @torch.no_grad()
    def scaled(self, reward: Tensor, ended: Tensor) -> Tensor:
        """Update the scale with the (E, ...) rewards of one vector step and return them scaled."""
        self.returns = self.returns * self.gamma + reward
        self.mean, self.variance, self.count = merged_moments(
            self.mean, self.variance, self.count, self.returns
        )
        self.returns = torch.where(ended, 0.0, self.returns)
        return (reward / (self.variance + 1e-8).sqrt()).clamp(-10.0, 10.0)


class ReturnScale(nn.Module):
    """The divisor of rewards that keeps returns between -`most` and `most`.

    The larger of the discounted return's standard deviation and its largest size over `most`;
    SimbaV2, eq. 14.
    """

    returns: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor
    largest: Tensor

    def __init__(self, num_envs: int, gamma: float, most: float) -> None:
        super().__init__()
        self.gamma, self.most = gamma, most
        self.register_buffer("returns", torch.zeros(num_envs))
        for name, value in (("mean", 0.0), ("variance", 1.0), ("count", 0.0), ("largest", 0.0)):
            self.register_buffer(name, torch.tensor(value))

    @torch.no_grad()
    def after(self, reward: Tensor, ended: Tensor) -> Tensor:
        """The divisor after the (E,) rewards of one vector step."""
        self.returns = self.returns * self.gamma + reward
        self.mean, self.variance, self.count = merged_moments(
            self.mean, self.variance, self.count, self.returns
        )
        self.largest = torch.maximum(self.largest, self.returns.abs().max())
        self.returns = torch.where(ended, 0.0, self.returns)
        return torch.maximum((self.variance + 1e-8).sqrt(), self.largest / self.most)


def merged_moments(
    mean: Tensor, variance: Tensor, count: Tensor, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and count after adding the rows of `x` (Chan, Golub and LeVeque 1979)."""
    size = x.shape[0]
    total = count + size
    delta = x.mean(0) - mean
    squares = variance * count + x.var(0, correction=0) * size
    squares = squares + delta.square() * count * size / total
    return mean + delta * size / total, squares / total, total
