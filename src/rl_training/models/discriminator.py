"""The discriminator, which separates demonstrations from a policy's own steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.mlp import MLP
from rl_training.models.normalizer import ObservationNormalizer

POWER_ITERATIONS_AT_START = 20


class MLPGAILDiscriminator(nn.Module):
    """Logits (B,) of the probability that an (observation, inner action) pair is the expert's.

    Discrete actions are one-hot. Observations of expert and policy are standardised with the same
    running statistics, which `observe` updates, so that their scale alone does not separate them.
    Box actions are clipped to [-1, 1], as in the environment.

    With `spectral_norm` every weight matrix is divided by an estimate of its largest singular
    value, updated by one power iteration per `refresh` (Miyato et al. 2018), so that logits
    have a Lipschitz constant of about 1 in the standardised inputs.
    """

    def __init__(
        self,
        obs_dim: int,
        action_kind: str,
        action_dim: int,
        hidden_sizes: Sequence[int],
        spectral_norm: bool = False,
    ) -> None:
        super().__init__()
        self.discrete, self.action_dim = action_kind == "discrete", action_dim
        self.normalizer = ObservationNormalizer(obs_dim, active=True)
        self.net = MLP(obs_dim + action_dim, hidden_sizes, 1)
        self.spectral_norm = spectral_norm
        if spectral_norm:
            for i, layer in enumerate(self._layers):
                for name, width in (("left", layer.out_features), ("right", layer.in_features)):
                    start = F.normalize(torch.randn(width), dim=0)
                    self.register_buffer(f"{name}{i}", start)
            for _ in range(POWER_ITERATIONS_AT_START):
                self.refresh()

    @property
    def _layers(self) -> list[nn.Linear]:
        return cast("list[nn.Linear]", list(self.net.layers))

    @torch.no_grad()
    def observe(self, obs: Tensor) -> None:
        """Update the statistics with (B, O) observations of expert and policy."""
        self.normalizer.observe(obs)

    @torch.no_grad()
    def refresh(self) -> None:
        """Run one power iteration per layer; a no-op without `spectral_norm`."""
        if self.spectral_norm:
            for i, layer in enumerate(self._layers):
                left, right = self.get_buffer(f"left{i}"), self.get_buffer(f"right{i}")
                right.copy_(F.normalize(layer.weight.t() @ left, dim=0))
                left.copy_(F.normalize(layer.weight @ right, dim=0))

    def inputs(self, obs: Tensor, action: Tensor) -> Tensor:
        """The (B, O + A) inputs of the network."""
        if self.discrete:
            places = torch.arange(self.action_dim, device=action.device)
            seen = (action.unsqueeze(-1) == places).to(obs.dtype)
        else:
            seen = action.clamp(-1.0, 1.0)
        return torch.cat([self.normalizer(obs), seen], dim=-1)

    def logits(self, inputs: Tensor) -> Tensor:
        """(B,) logits for the result of `inputs`."""
        if not self.spectral_norm:
            return cast(Tensor, self.net(inputs)).squeeze(-1)
        x = inputs
        for i, layer in enumerate(self._layers):
            left, right = self.get_buffer(f"left{i}"), self.get_buffer(f"right{i}")
            size = torch.dot(left, layer.weight @ right)
            x = F.linear(F.relu(x) if i else x, layer.weight / size, layer.bias)
        return x.squeeze(-1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.logits(self.inputs(obs, action))
