"""Two-hot value heads and the policy on a world model's features."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.dreamer.coders import symexp
from rl_training.models.dreamer.latents import mixed_with_uniform, one_hot, sample_one_hot
from rl_training.models.dreamer.layers import Head
from rl_training.models.dreamer.rssm import exponential_noise
from rl_training.models.policies import Policy

BINS = 255
"""Values over which a number is a distribution."""


def two_hot_bins(count: int = BINS, limit: float = 20.0) -> Tensor:
    """(count,) values spaced evenly in symlog space and symmetric about 0."""
    if count % 2 == 0:
        raise ValueError(f"the number of bins must be odd, so that one is at zero, got {count}")
    below = symexp(torch.linspace(-limit, 0.0, count // 2 + 1, dtype=torch.float64))
    return torch.cat([below, -below[:-1].flip(0)]).float()


class TwoHotHead(nn.Module):
    """Predicts a scalar as a distribution over fixed bins; predicts exactly 0 when new, unless the
    user's own `head` does otherwise."""

    bins: Tensor

    def __init__(self, in_dim: int, units: int, layers: int, head: nn.Module | None = None) -> None:
        super().__init__()
        self.register_buffer("bins", two_hot_bins(), persistent=False)
        self.head = head or Head(in_dim, units, layers, BINS, out_scale=0.0)

    def forward(self, features: Tensor) -> Tensor:
        """(..., bins) log-probabilities."""
        return F.log_softmax(self.head(features), -1)

    def mean(self, log_probs: Tensor) -> Tensor:
        """The expected value, summed in pairs so that a uniform distribution gives exactly 0."""
        terms = log_probs.exp() * self.bins
        middle = self.bins.shape[0] // 2
        pairs = terms[..., :middle] + terms[..., middle + 1 :].flip(-1)
        return pairs.sum(-1) + terms[..., middle]

    def loss(self, log_probs: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy to the two-hot encoding of each target."""
        return -(two_hot(target, self.bins) * log_probs).sum(-1)


def two_hot(x: Tensor, bins: Tensor) -> Tensor:
    """Encode numbers as (..., bins) weights on the two nearest bins, whose mean is the number.

    Numbers outside the range of the bins are clipped.
    """
    x = torch.minimum(torch.maximum(x, bins[0]), bins[-1]).contiguous()
    above = torch.searchsorted(bins, x, right=True).clamp(1, bins.shape[0] - 1)
    low, high = bins[above - 1], bins[above]
    share = (x - low) / (high - low)
    place = torch.arange(bins.shape[0], device=x.device)
    above, share = above.unsqueeze(-1), share.unsqueeze(-1)
    weights = torch.where(place == above, share, torch.zeros_like(share))
    return torch.where(place == above - 1, 1.0 - share, weights)


class ImaginedPolicy(Policy):
    """A policy on latent features: categorical with 1% uniform, or Gaussian with a tanh mean.

    Actions have the world model's format: one-hot for Discrete, and unclipped numbers for Box,
    which are clipped to [-1, 1] for the environment.
    """

    LEAST_STD, MOST_STD = 0.1, 1.0

    def __init__(
        self,
        in_dim: int,
        units: int,
        action_dim: int,
        discrete: bool,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.discrete, self.action_dim = discrete, action_dim
        outputs = action_dim if discrete else 2 * action_dim
        self.head = head or Head(in_dim, units, 3, outputs, out_scale=0.01)

    def probs(self, features: Tensor) -> Tensor:
        """(..., actions) probabilities of a Discrete policy."""
        return mixed_with_uniform(torch.softmax(self.head(features), -1))

    def gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of a Box policy."""
        mean, raw = torch.split(self.head(features), self.action_dim, -1)
        std = (self.MOST_STD - self.LEAST_STD) * torch.sigmoid(raw + 2.0) + self.LEAST_STD
        return torch.tanh(mean), std

    def noise(self, source: NoiseSource, *shape: int) -> Tensor:
        """The noise that `draw` needs for (*shape,) actions."""
        draw = source.uniform if self.discrete else source.normal
        return draw(*shape, self.action_dim)

    def draw(self, features: Tensor, noise: Tensor) -> Tensor:
        """Sample actions from given noise, without gradient."""
        with torch.no_grad():
            if self.discrete:
                return sample_one_hot(self.probs(features), exponential_noise(noise))
            mean, std = self.gaussian(features)
            return mean + std * noise

    def sample(self, features: Tensor) -> Tensor:
        shape = *features.shape[:-1], self.action_dim
        rand = torch.rand if self.discrete else torch.randn
        return self.draw(features, rand(shape, device=features.device))

    def mode(self, features: Tensor) -> Tensor:
        if self.discrete:
            best = self.probs(features).argmax(-1)
            return one_hot(best, self.action_dim).to(features.dtype)
        return self.gaussian(features)[0]

    def log_prob_and_entropy(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        if self.discrete:
            log_probs = self.probs(features).log()
            return (log_probs * action).sum(-1), -(log_probs.exp() * log_probs).sum(-1)
        mean, std = self.gaussian(features)
        z = (action - mean) / std
        constant = 0.5 * math.log(2.0 * math.pi)
        log_prob = (-0.5 * z.square() - std.log() - constant).sum(-1)
        return log_prob, (std.log() + constant + 0.5).sum(-1)


class NoiseSource(Protocol):
    """A source of random numbers."""

    def normal(self, *shape: int) -> Tensor: ...
    def uniform(self, *shape: int) -> Tensor: ...
