"""Networks with batch renormalisation, for critics without target networks.

Bhatt, Palenicek et al. 2024, arXiv:1902.05605, with the layer of Ioffe 2017, arXiv:1702.03275.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rl_training.models.members import MemberLinear, MemberNet, chosen, uniform_
from rl_training.models.mlp import Activation, activated

RATE, EPS = 0.01, 1e-3
LARGEST_R, LARGEST_D = 3.0, 5.0
"""Bounds of the corrections towards the running statistics; Ioffe 2017, section 3."""
WARM_UP = 100_000
"""Batches for which a layer normalises by the batch alone."""

Statistics = dict[str, Tensor]
"""What layers have seen of a batch, by the names of `batch_statistics`."""


class BatchRenorm(nn.Module):
    """Standardises every unit over the batch, corrected towards running statistics.

    In `batch_statistics` it uses and records those of the batch; outside, and for acting, the
    running ones, which `absorb` moves.
    """

    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(self, num_members: int, width: int, warm_up: int = WARM_UP) -> None:
        super().__init__()
        self.warm_up = warm_up
        self.scale = nn.Parameter(torch.ones(num_members, 1, width))
        self.shift = nn.Parameter(torch.zeros(num_members, 1, width))
        self.register_buffer("mean", torch.zeros(num_members, 1, width))
        self.register_buffer("variance", torch.ones(num_members, 1, width))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self._record: tuple[Statistics, str] | None = None

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        mean, variance = chosen(self.mean, members), chosen(self.variance, members)
        std = (variance + EPS).sqrt()
        if self._record is None:
            x = (x - mean) / std
        else:
            assert members is None, "statistics are of all members"
            x = self._by_batch(x, mean, std)
        return x * chosen(self.scale, members) + chosen(self.shift, members)

    def _by_batch(self, x: Tensor, running_mean: Tensor, running_std: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).square().mean(1, keepdim=True)
        std = (variance + EPS).sqrt()
        assert self._record is not None
        found, name = self._record
        found[f"{name}.mean"], found[f"{name}.variance"] = mean.detach(), variance.detach()
        r = (std.detach() / running_std).clamp(1.0 / LARGEST_R, LARGEST_R)
        d = ((mean.detach() - running_mean) / running_std).clamp(-LARGEST_D, LARGEST_D)
        warm = self.batches >= self.warm_up
        return (x - mean) / std * torch.where(warm, r, 1.0) + torch.where(warm, d, 0.0)

    @torch.no_grad()
    def absorb(self, found: Statistics, name: str, due: Tensor | None = None) -> None:
        """Remove the batch's statistics from `found`; if `due`, they update the running ones."""
        mean, variance = found.pop(f"{name}.mean"), found.pop(f"{name}.variance")
        rate: float | Tensor = RATE if due is None else RATE * due.to(mean.dtype)
        self.mean.add_(rate * (mean - self.mean))
        self.variance.add_(rate * (variance - self.variance))
        self.batches.add_(1 if due is None else due.to(self.batches.dtype))


def _layers(net: nn.Module) -> Iterator[tuple[str, BatchRenorm]]:
    layers = (layer for layer in net.modules() if isinstance(layer, BatchRenorm))
    for i, layer in enumerate(layers):
        yield f"statistics of layer {i}", layer


@contextmanager
def batch_statistics(net: nn.Module) -> Iterator[Statistics]:
    """While active, the layers of `net` normalise by the batch and record its statistics.

    They have to see one batch only. What is recorded may be computed within a transform of
    functions and is therefore absorbed outside, by `absorb_statistics`.
    """
    found: Statistics = {}
    layers = list(_layers(net))
    for name, layer in layers:
        layer._record = (found, name)
    try:
        yield found
    finally:
        for _, layer in layers:
            layer._record = None


def absorb_statistics(net: nn.Module, found: Statistics, due: Tensor | None = None) -> None:
    """Update running statistics with the recorded ones, which are removed from `found`."""
    for name, layer in _layers(net):
        layer.absorb(found, name, due)


class CrossQNet(MemberNet):
    """Batch renormalisation of the inputs and after every activation, and a linear output."""

    def __init__(
        self,
        num_members: int,
        in_dim: int,
        hidden_sizes: Sequence[int],
        out_dim: int,
        activation: Activation = "relu",
    ) -> None:
        super().__init__(num_members)
        self.activation: Activation = activation
        pairs = itertools.pairwise([in_dim, *hidden_sizes, out_dim])
        self.layers = nn.ModuleList(MemberLinear(num_members, *pair, uniform_) for pair in pairs)
        self.norms = nn.ModuleList(BatchRenorm(num_members, w) for w in (in_dim, *hidden_sizes))

    def of_members(self, x: Tensor, members: Tensor | None) -> Tensor:
        last = len(self.layers) - 1
        for i, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            x = layer(norm(x, members), members)
            if i < last:
                x = activated(x, self.activation)
        return x
