"""Layers with learned noise on their weights (Fortunato et al. 2018, arXiv:1706.10295)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.experiment.errors import ConfigError
from rl_training.models.architecture import Architecture
from rl_training.models.mlp import MLP, activated


class NoisyMLP(MLP):
    """An MLP whose layers are y = (w + s f(e_out) f(e_in)^T) x + b + t f(e_out).

    The noise is factorised: e_in and e_out are standard normal numbers, one per input and
    output of a layer, and f(e) = sign(e) sqrt(|e|). The scales s and t are learned and start at
    `sigma` / sqrt(inputs). Without noise the network is the MLP of the weights w and b.
    """

    def __init__(self, layers: Architecture, sigma: float, in_dim: int, out_dim: int) -> None:
        if layers.own is not None or layers.kind != "mlp":
            raise ConfigError(
                "algo_kwargs.noisy: only the package's own layers can be noisy; remove this key, "
                "or remove networks and architecture"
            )
        super().__init__(in_dim, layers.hidden_sizes, out_dim, layers.activation, layers.layer_norm)
        self.scales, self.noise_size = nn.ModuleList(), 0
        for layer in self._linear():
            scale = nn.Linear(layer.in_features, layer.out_features)
            for parameter in scale.parameters():
                nn.init.constant_(parameter, sigma / math.sqrt(layer.in_features))
            self.scales.append(scale)
            self.noise_size += layer.in_features + layer.out_features

    def _linear(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """The output under (noise_size,) standard normal numbers, or without noise."""
        if noise is None:
            return super().forward(x)
        factors = torch.sign(noise) * noise.abs().sqrt()
        begin, last = 0, len(self.layers) - 1
        for i, (layer, scale) in enumerate(zip(self._linear(), self.scales, strict=True)):
            middle = begin + layer.in_features
            end = middle + layer.out_features
            into, out_of = factors[begin:middle], factors[middle:end]
            # Two products with x in place of one with a noisy copy of the weights.
            x = F.linear(x, layer.weight, layer.bias) + out_of * scale(x * into)
            begin = end
            if i < last:
                if self.is_normed:
                    x = self.norms[i](x)
                x = activated(x, self.activation)
        return x
