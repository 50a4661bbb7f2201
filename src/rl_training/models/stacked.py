"""Forward passes of several networks at once, stacked into one where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.execution import is_traced, num_agents, without_gradients
from rl_training.models.linear import batched_linear
from rl_training.models.mlp import MLP, EnsembleMLP, activated, output

A = TypeVar("A")


class DeferredForward(Generic[A]):
    """A forward pass that is computed later: `read` of the output of `net` at `x`.

    The result of a frozen one is a constant: no gradient reaches the network or `x`.
    """

    def __init__(
        self, net: nn.Module, x: Tensor, read: Callable[[Tensor], A], frozen: bool = False
    ) -> None:
        self.net, self.x, self.read, self.is_frozen = net, x, read, frozen

    def frozen(self) -> DeferredForward[A]:
        return DeferredForward(self.net, self.x, self.read, frozen=True)

    def compute(self) -> A:
        return self._frozen_result() if self.is_frozen else self.read(output(self.net, self.x))

    @without_gradients
    def _frozen_result(self) -> A:
        return self.read(output(self.net, self.x))


def stacked_forward(*calls: DeferredForward[Any]) -> tuple[Any, ...]:
    """Compute several forward passes, of which the frozen ones come last.

    In a graph or a compiled update on a GPU, where a small product leaves most of the device
    idle, networks with equal hidden layers are stacked and take one batched product per layer;
    the first and the last layers are filled up with zeros to equal widths. Their own weights
    stay where they are.
    """
    nets = [call.net for call in calls]
    if not (stacking_pays(calls[0].x) and _stackable(nets)):
        return tuple(call.compute() for call in calls)
    num_trained = sum(not call.is_frozen for call in calls)
    assert not any(call.is_frozen for call in calls[:num_trained])
    # One agent alone gains from a single stack; several fill the device with either half.
    halves = [calls] if num_agents() == 1 else [calls[:num_trained], calls[num_trained:]]
    outputs = [out for half in halves if half for out in _stacked_outputs(half)]
    return tuple(q.read(out) for q, out in zip(calls, outputs, strict=True))


MOST_AGENTS = 16
"""With more agents at once, single networks fill the device, and stacking only copies weights."""


def stacking_pays(x: Tensor) -> bool:
    # Operation by operation the copies into a stack cost more than its fewer products save.
    if not x.is_cuda or num_agents() > MOST_AGENTS:
        return False
    return is_traced() or torch.cuda.is_current_stream_capturing()


def _stackable(nets: Sequence[nn.Module]) -> bool:
    """Whether all are plain networks with the same hidden layers, none of them normalised."""
    plain = [net for net in nets if type(net) is MLP or type(net) is EnsembleMLP]
    if any(len(net.norms if isinstance(net, MLP) else net.norm_scales) for net in plain):
        return False
    kinds = {(tuple(net.hidden_sizes), net.activation) for net in plain}
    return len(plain) == len(nets) and len(kinds) == 1


class _Layer(NamedTuple):
    weight: Tensor  # (members, in, out)
    bias: Tensor  # (members, 1, out)


def _layers(net: Any) -> list[_Layer]:
    if isinstance(net, EnsembleMLP):
        pairs = zip(net.weights, net.biases, strict=True)
        return [_Layer(weight, bias) for weight, bias in pairs]
    return [_Layer(layer.weight.t().unsqueeze(0), layer.bias[None, None]) for layer in net.layers]


def _stacked_outputs(calls: Sequence[DeferredForward[Any]]) -> list[Tensor]:
    inputs = [call.x for call in calls]
    stacks = [_layers(call.net) for call in calls]
    members = [stack[0].weight.shape[0] for stack in stacks]
    trained = sum(n for n, q in zip(members, calls, strict=True) if not q.is_frozen)
    width = max(x.shape[-1] for x in inputs)
    out = max(stack[-1].bias.shape[-1] for stack in stacks)
    x = torch.cat(
        [
            F.pad(x, (0, width - x.shape[-1])).expand(count, -1, -1)
            for x, count in zip(inputs, members, strict=True)
        ]
    )
    last = len(stacks[0]) - 1
    for i, layers in enumerate(zip(*stacks, strict=True)):
        rows = width if i == 0 else layers[0].weight.shape[1]
        columns = out if i == last else layers[0].weight.shape[2]
        weight = torch.cat([_filled(layer.weight, rows, columns) for layer in layers])
        bias = torch.cat([_filled(layer.bias, 1, columns) for layer in layers])
        x = batched_linear(x, weight, bias, trained)
        if i < last:
            x = activated(x, calls[0].net.activation)  # type: ignore[arg-type]
    parts = []
    for call, stack, part in zip(calls, stacks, torch.split(x, members), strict=True):
        part = part[..., : stack[-1].bias.shape[-1]]
        part = part if isinstance(call.net, EnsembleMLP) else part[0]
        parts.append(part.detach() if call.is_frozen else part)
    return parts


def _filled(x: Tensor, rows: int, columns: int) -> Tensor:
    return F.pad(x, (0, columns - x.shape[2], 0, rows - x.shape[1]))
