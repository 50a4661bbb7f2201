"""Observation standardisation that travels with the policy."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ObservationNormalizer(nn.Module):
    """(obs - mean) / std with statistics that are part of the checkpoint.

    Inactive, it is the identity and costs nothing.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, obs_dim: int, active: bool) -> None:
        super().__init__()
        self.active = active
        self.register_buffer("mean", torch.zeros(obs_dim))
        self.register_buffer("std", torch.ones(obs_dim))

    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        self.mean.copy_(mean)
        self.std.copy_(std)

    def forward(self, obs: Tensor) -> Tensor:
        return (obs - self.mean) / self.std if self.active else obs
