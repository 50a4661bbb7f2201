"""The architecture of an algorithm's networks: hidden layers by knobs, or the user's modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_training.experiment.errors import ConfigError, describe_exception
from rl_training.models.crossq import CrossQNet
from rl_training.models.encoders import (
    ChoiceEncoder,
    EncodedMLP,
    Encoder,
    ImageEncoder,
    Observed,
    PartsEncoder,
)
from rl_training.models.members import LoneNet, MemberNet
from rl_training.models.mlp import MLP, Activation, EnsembleMLP
from rl_training.models.simba import ResidualShape, SimbaNet, SphereNet

Role = Literal["encoder", "policy", "critic", "value"]
"""What a network is for."""
NetworkKind = Literal["mlp", "crossq", "simba", "simbav2"]
"""How the layers of a network are made; see `crossq.py` and `simba.py`."""


@dataclass(frozen=True)
class NetworkRequest:
    """A network that an algorithm needs; the argument of a user's factory."""

    role: Role
    """encoder: observations to features; policy, critic and value: features to outputs. The
    features that a critic of Box actions gets end with the action."""
    in_shape: tuple[int, ...]
    """Shape of one input; inputs come as (B, *in_shape), images as uint8."""
    out_dim: int | None
    """Outputs per row, as (B, out_dim); None for an encoder, whose features may have any width."""
    spaces: Any
    """Observations and actions of the task."""
    params: Any
    """Knobs of the algorithm."""


NetworkFactory = Callable[[NetworkRequest], nn.Module | None]
"""Makes a new module for every request, or returns None where the usual network will do."""


class OwnNetwork(Encoder):
    """A module of the user: (..., *in_shape) to (..., out_dim)."""

    def __init__(self, module: nn.Module, in_shape: Sequence[int], out_dim: int) -> None:
        super().__init__()
        self.module, self.in_shape, self.out_dim = module, tuple(in_shape), out_dim

    is_initialized = True
    """Its weights are as the user wants them."""

    def forward(self, x: Tensor) -> Tensor:
        leading = x.shape[: x.dim() - len(self.in_shape)]
        rows = x if len(leading) == 1 else x.reshape(-1, *self.in_shape)
        out: Tensor = self.module(rows)
        return out if len(leading) == 1 else out.reshape(*leading, self.out_dim)


class EncodedNetwork(nn.Module):
    """A module of the user, or a network of another kind than MLPs, on features of an encoder."""

    def __init__(self, encoder: Encoder, head: OwnNetwork | LoneNet) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, obs: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(obs))
        return out


class OwnEnsemble(nn.Module):
    """Modules of the user as the members of an ensemble: (B, in) to (members, B, out)."""

    def __init__(self, members: Sequence[OwnNetwork]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Outputs of all members, or of those in `members`, in that order."""
        out = torch.stack([member(x) for member in self.members])
        return out if members is None else out.index_select(0, members)


Ensemble = EnsembleMLP | OwnEnsemble | MemberNet
"""Several networks from vectors to outputs."""
Net = MLP | OwnNetwork | EncodedNetwork | LoneNet
"""A network from observations to outputs."""
NetMaker = Callable[[tuple[int, ...], int | None], OwnNetwork | None]
"""(in_shape, out_dim) to the user's network, or None where the user has none."""


@dataclass(frozen=True)
class Architecture:
    """Hidden layers of one network, and the user's own where there is one."""

    hidden_sizes: tuple[int, ...]
    activation: Activation = "relu"
    layer_norm: bool = False
    own: NetMaker | None = None
    kind: NetworkKind = "mlp"

    @classmethod
    def of(cls, layers: Layers, layer_norm: bool = False) -> Architecture:
        """Plain widths mean ReLU layers of these widths."""
        if isinstance(layers, Architecture):
            return layers
        return cls(tuple(layers), layer_norm=layer_norm)

    def with_sizes(self, hidden_sizes: Sequence[int]) -> Architecture:
        return replace(self, hidden_sizes=tuple(hidden_sizes))

    def net(self, observed: Observed, out_dim: int) -> Net:
        """A network for such observations."""
        width = observed if isinstance(observed, int) else observed.out_dim
        if self.kind != "mlp":
            lone = LoneNet(self._members(1, width, out_dim))
            return lone if isinstance(observed, int) else EncodedNetwork(observed, lone)
        own = None if self.own is None else self.own((width,), out_dim)
        if own is not None:
            return own if isinstance(observed, int) else EncodedNetwork(observed, own)
        if isinstance(observed, int):
            return MLP(observed, self.hidden_sizes, out_dim, self.activation, self.layer_norm)
        return EncodedMLP(observed, self.hidden_sizes, out_dim, self.activation, self.layer_norm)

    def ensemble(self, num_members: int, in_dim: int, out_dim: int) -> Ensemble:
        """Several networks on vectors, evaluated together."""
        if self.kind != "mlp":
            return self._members(num_members, in_dim, out_dim)
        first = None if self.own is None else self.own((in_dim,), out_dim)
        if first is None or self.own is None:
            return EnsembleMLP(
                num_members, in_dim, self.hidden_sizes, out_dim, self.layer_norm, self.activation
            )
        members = [first, *(self.own((in_dim,), out_dim) for _ in range(num_members - 1))]
        if None in members:
            raise ConfigError(
                "algo_kwargs.networks: returned a module for one critic and None for another; "
                "return one for each of them"
            )
        return OwnEnsemble([member for member in members if member is not None])

    def _members(self, num_members: int, in_dim: int, out_dim: int) -> MemberNet:
        sizes = self.hidden_sizes
        if self.kind == "crossq":
            return CrossQNet(num_members, in_dim, sizes, out_dim, self.activation)
        shape = ResidualShape(num_members, in_dim, sizes[0], len(sizes), out_dim, self.activation)
        return SimbaNet(shape) if self.kind == "simba" else SphereNet(shape)


Layers = Sequence[int] | Architecture
"""How a network is described: the widths of its ReLU layers, or an architecture."""


class OwnNetworks:
    """The user's factory; every module that it makes is checked."""

    def __init__(self, name: str, spaces: Any, params: Any) -> None:
        self.name, self._spaces, self._params = name, spaces, params
        self._factory = factory_named(name)
        self._seen: set[int] = set()

    def __call__(
        self, role: Role, in_shape: tuple[int, ...], out_dim: int | None, images: bool = False
    ) -> OwnNetwork | None:
        """The user's network, tried on two rows of zeros; `images` are uint8."""
        request = NetworkRequest(role, in_shape, out_dim, self._spaces, self._params)
        try:
            module = self._factory(request)
        except Exception as error:
            raise ConfigError(
                f"algo_kwargs.networks: '{self.name}' fails when it is asked for the {role} "
                f"({describe_exception(error)}); correct it (--debug shows where it fails)"
            ) from error
        if module is None:
            return None
        what = f"algo_kwargs.networks: what '{self.name}' returned for the {role}"
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"{what} is of the type {type(module).__name__}; return a torch.nn.Module, or None "
                "for the usual network"
            )
        self._refuse_shared(module, what)
        refuse_unfit_layers(module, what)
        dtype = torch.uint8 if images else torch.get_default_dtype()
        found = _tried(module, torch.zeros(2, *in_shape, dtype=dtype), what)
        width = found[1] if len(found) == 2 else 0
        if found != (2, out_dim or width) or not width:
            wanted = "(2, any width)" if out_dim is None else str((2, out_dim))
            raise ConfigError(
                f"{what} makes the shape {found} of inputs {(2, *in_shape)}, expected {wanted}; "
                "correct its last layer"
            )
        return OwnNetwork(module, in_shape, width)

    def _refuse_shared(self, module: nn.Module, what: str) -> None:
        weights = {id(parameter) for parameter in module.parameters()}
        if weights & self._seen:
            raise ConfigError(
                f"{what} has weights that another network has already; make a new module for "
                "every request"
            )
        self._seen |= weights


def _tried(module: nn.Module, x: Tensor, what: str) -> tuple[int, ...]:
    """The shape of a module's output at `x`."""
    try:
        with torch.no_grad():
            out = module(x)
    except Exception as error:
        raise ConfigError(
            f"{what} fails on inputs of the shape {tuple(x.shape)} "
            f"({describe_exception(error)}); correct it"
        ) from error
    if not (isinstance(out, Tensor) and out.is_floating_point()):
        kind = str(out.dtype) if isinstance(out, Tensor) else type(out).__name__
        raise ConfigError(f"{what} makes {kind}, expected a tensor of floats; correct its forward")
    return tuple(out.shape)


def factory_named(name: str) -> NetworkFactory:
    """The function that a config names as package.module:function."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"algo_kwargs.networks: '{name}' cannot be imported "
            f"({describe_exception(error)}); install its package, or start Python in "
            "the folder that holds it"
        ) from None
    if not callable(found):
        raise ConfigError(
            f"algo_kwargs.networks: '{name}' is of the type {type(found).__name__}, expected a "
            "function that takes a rl_training.NetworkRequest and returns a torch.nn.Module or None"
        )
    factory: NetworkFactory = found
    return factory


def refuse_unfit_layers(module: nn.Module, what: str) -> None:
    """Refuse layers with state or randomness: updates would not be reproducible."""
    for layer in module.modules():
        kind = type(layer).__name__
        if "BatchNorm" in kind or "Dropout" in kind or "InstanceNorm" in kind:
            why = "draws random numbers" if "Dropout" in kind else "keeps statistics of batches"
            raise ConfigError(
                f"{what} has a layer {kind}, which {why} outside the run's state; use LayerNorm, "
                "or leave it out"
            )


def encoder_of(spaces: Any) -> Observed:
    """The usual encoder of a task: convolutions for images, learned vectors for choices that are
    to be embedded; else the width of the vectors."""
    if not spaces.is_image:
        places = [] if spaces.layout is None else spaces.layout.embeddings
        width: int = spaces.obs_dim
        return ChoiceEncoder(width, places) if places else width
    if spaces.packing is not None:
        return PartsEncoder(spaces.packing.pixels, spaces.packing.numbers, spaces.frame_stack)
    return ImageEncoder(spaces.image_shape, spaces.frame_stack)
