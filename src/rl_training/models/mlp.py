"""Multi-layer perceptrons, alone or several of one shape evaluated together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.linear import member_linear

Activation = Literal["relu", "silu", "gelu", "elu", "tanh"]
"""Functions between two layers."""


def activated(x: Tensor, activation: Activation) -> Tensor:
    """Apply the activation to `x`, possibly in place."""
    if activation == "relu":
        return torch.relu_(x)
    if activation == "silu":
        return F.silu(x)
    if activation == "gelu":
        return F.gelu(x)
    return F.elu(x) if activation == "elu" else torch.tanh(x)


def output(net: nn.Module, x: Tensor) -> Any:
    """`net(x)` without PyTorch's call, where nothing is hooked into the network.

    On small batches the call takes a tenth of what a network computes. Hooks of one module are
    called; those for all modules at once are not.
    """
    if net._forward_hooks or net._forward_pre_hooks or net._backward_hooks:
        return net(x)
    return net.forward(x)


class PlainLayers:
    """Linear layers of MLPs that follow one another, with a ReLU between any two.

    Calling the modules of a small network one by one takes as long as its products.
    """

    def __init__(self, nets: Sequence[MLP], inside: Iterable[nn.Module]) -> None:
        """`inside` are further modules whose calls are left out."""
        self._first, *self._others = (table for net in nets for table in net.tables)
        self._hooks = [hooks for module in (*nets, *inside) for hooks in hooks_of(module)]

    @property
    def is_hooked(self) -> bool:
        """Whether something is hooked into a module, which then has to be called."""
        return any(self._hooks)

    def __call__(self, x: Tensor) -> Tensor:
        own = self._first
        x = F.linear(x, own["weight"], own["bias"])
        for own in self._others:
            x = F.linear(torch.relu_(x), own["weight"], own["bias"])
        return x


def hooks_of(module: nn.Module) -> tuple[Mapping[Any, Any], ...]:
    """What is hooked into a module, and what will be."""
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks


class Tables(tuple[dict[str, Any], ...]):
    """Tables of parameters that belong to modules.

    A type of its own, which PyTorch's export takes for one value: of plain lists and dictionaries
    it would leave copies in the module, with the stand-ins of its parameters.
    """


class MLP(nn.Module):
    """Hidden layers of `hidden_sizes`, with ReLU by default, and a linear output.

    With `layer_norm` every hidden layer is standardised over its units before the activation.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_sizes: Sequence[int],
        out_dim: int,
        activation: Activation = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.hidden_sizes = tuple(hidden_sizes)
        self.activation: Activation = activation
        sizes = [in_dim, *hidden_sizes, out_dim]
        self.layers = nn.ModuleList(
            nn.Linear(fan_in, fan_out) for fan_in, fan_out in itertools.pairwise(sizes)
        )
        self.tables = Tables(layer._parameters for layer in self.layers)
        """The parameters of each layer by name."""
        self._first, self._others = Tables(self.tables[:1]), Tables(self.tables[1:])
        normed = hidden_sizes if layer_norm else ()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in normed)
        self.is_normed = bool(normed)  # looking into the list costs more
        self.is_plain = activation == "relu" and not normed
        self._known: tuple[Tensor, Tensor] | None = None  # an input and what is hidden of it

    def forward(self, x: Tensor) -> Tensor:
        if self._known is not None:
            own = self.tables[-1]
            return F.linear(self.hidden(x), own["weight"], own["bias"])
        # By function and from the layers' own tables: on small batches calling a layer, and
        # asking a module for a parameter, cost a fifth of what is computed.
        (own,), others = self._first, self._others
        x = F.linear(x, own["weight"], own["bias"])
        if self.is_plain:
            for own in others:
                x = F.linear(torch.relu_(x), own["weight"], own["bias"])
            return x
        for i, own in enumerate(others):
            if self.is_normed:
                x = self.norms[i](x)
            x = F.linear(activated(x, self.activation), own["weight"], own["bias"])
        return x

    @contextmanager
    def hidden_once(self, x: Tensor) -> Iterator[None]:
        """While active, `hidden` of this input is computed once, for all who ask for it."""
        self._known = (x, self.hidden(x))
        try:
            yield
        finally:
            self._known = None

    def hidden(self, x: Tensor) -> Tensor:
        """What the last layer takes."""
        known = self._known
        return self._hidden(x) if known is None or known[0] is not x else known[1]

    def _hidden(self, x: Tensor) -> Tensor:
        for i, own in enumerate(self.tables[:-1]):
            x = F.linear(x, own["weight"], own["bias"])
            x = activated(self.norms[i](x) if self.is_normed else x, self.activation)
        return x


class EnsembleMLP(nn.Module):
    """`num_members` MLPs of one shape, computed with one batched product per layer.

    Takes (B, in) or (members, B, in) and gives (members, B, out). Each member is
    initialised as `torch.nn.Linear` would be. With `layer_norm` every hidden layer is
    standardised over its units before the activation, with a scale and a shift per member.
    """

    def __init__(
        self,
        num_members: int,
        in_dim: int,
        hidden_sizes: Sequence[int],
        out_dim: int,
        layer_norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.num_members = num_members
        self.activation: Activation = activation
        self.hidden_sizes = tuple(hidden_sizes)
        sizes = [in_dim, *hidden_sizes, out_dim]
        pairs = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(num_members, fan_in, fan_out)) for fan_in, fan_out in pairs
        )
        self.biases = nn.ParameterList(
            nn.Parameter(torch.empty(num_members, 1, fan_out)) for _, fan_out in pairs
        )
        for (fan_in, _), weight, bias in zip(pairs, self.weights, self.biases, strict=True):
            bound = 1.0 / math.sqrt(fan_in)
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
        normed = hidden_sizes if layer_norm else ()
        self.norm_scales = nn.ParameterList(
            nn.Parameter(torch.ones(num_members, 1, width)) for width in normed
        )
        self.norm_shifts = nn.ParameterList(
            nn.Parameter(torch.zeros(num_members, 1, width)) for width in normed
        )
        self.is_normed = bool(normed)

    def forward(
        self, x: Tensor, members: Tensor | None = None, only_hidden: bool = False
    ) -> Tensor:
        """Outputs of all members, or of those in `members`, in that order; with `only_hidden`
        what the last layer would take."""

        def chosen(parameter: Tensor) -> Tensor:
            return parameter if members is None else parameter.index_select(0, members)

        if x.dim() == 2:
            x = x.expand(self.num_members if members is None else members.shape[0], *x.shape)
        parts: Any = self._modules  # from their tables, as above
        weights, biases = parts["weights"]._parameters, parts["biases"]._parameters
        last = len(weights) - 1
        for i, (weight, bias) in enumerate(zip(weights.values(), biases.values(), strict=True)):
            if only_hidden and i == last:
                break
            x = member_linear(x, chosen(weight), chosen(bias))
            if i < last:
                if self.is_normed:
                    x = F.layer_norm(x, x.shape[-1:]) * chosen(self.norm_scales[i])
                    x = x.add_(chosen(self.norm_shifts[i]))
                x = activated(x, self.activation)
        return x


@torch.no_grad()
def restate_inputs_(net: MLP | EnsembleMLP, scale: Tensor, shift: Tensor) -> None:
    """Change the first layer so that the output at v is the former output at v * scale + shift.

    `scale` and `shift` are (n,) float64. Without rounding the outputs stay the same.
    """
    n = len(scale)
    if isinstance(net, MLP):
        first = cast(nn.Linear, net.layers[0])
        weight, bias = first.weight.T, first.bias
    else:
        weight, bias = net.weights[0], net.biases[0]
    read = weight[..., :n, :].double()
    bias.copy_(bias.double() + (read * shift[:, None]).sum(-2, keepdim=bias.dim() > 1))
    weight[..., :n, :] = read * scale[:, None]


def orthogonal_init_(module: nn.Module, gain: float = math.sqrt(2.0)) -> None:
    """Initialise every layer with orthogonal weights of one gain and zero biases, per member.

    Modules with a true attribute `is_initialized` are left as they are.
    """
    for layer in _to_initialize(module):
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, EnsembleMLP):
            for weight, bias in zip(layer.weights, layer.biases, strict=True):
                for member in weight.data:
                    nn.init.orthogonal_(member, gain)
                nn.init.zeros_(bias)


def _to_initialize(module: nn.Module) -> Iterator[nn.Module]:
    if not getattr(module, "is_initialized", False):
        yield module
        for child in module.children():
            yield from _to_initialize(child)


@torch.no_grad()
def truncated_normal_init_(net: EnsembleMLP) -> None:
    """Sample weights with std 1 / (2 sqrt(fan in)), truncated at two std; biases are 0."""
    for weight, bias in zip(net.weights, net.biases, strict=True):
        std = 0.5 / math.sqrt(weight.shape[1])
        nn.init.trunc_normal_(weight, std=std, a=-2.0 * std, b=2.0 * std)
        nn.init.zeros_(bias)
