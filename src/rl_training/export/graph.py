"""A trained policy as one ONNX graph: raw observations in, actions in the environment's units out.

What is traced is `Algorithm.act`, so an algorithm is covered without a line of its own.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from rl_training.algorithms.base import Algorithm
from rl_training.envs.layout import Part
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import (
    ConfigError,
    ExportError,
    MissingExtraError,
    describe_exception,
)
from rl_training.export.further import FurtherOutput
from rl_training.runtime.policy import refuse_sampling

OPSET = 20
Drawn = Literal["standard normal", "uniform"]


@dataclass(frozen=True)
class Port:
    """An input or output of the graph beside observation and action."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of one row."""


@dataclass(frozen=True)
class NoisePort(Port):
    distribution: Drawn


@dataclass
class GivenNoise(TorchFunctionMode):
    """Random numbers of a policy out of a list, or drawn and kept where the list has ended."""

    given: Sequence[Tensor] = ()
    drawn: list[tuple[Drawn, Tensor]] = field(default_factory=list)
    used: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.randn_like, torch.rand_like):
            return self._next(RANDOM[func], tuple(args[0].shape), args[0].device)
        if func in (torch.randn, torch.rand):
            shape = args if isinstance(args[0], int | torch.SymInt) else args[0]
            return self._next(RANDOM[func], tuple(shape), (kwargs or {}).get("device"))
        if func is torch.multinomial and args[1:] == (1,):
            # the first action at which the sum of the probabilities is beyond the number
            below, like = args[0].cumsum(-1)[..., :-1], args[0][..., :1]
            noise = self._next("uniform", tuple(like.shape), like.device)
            return (below <= noise).sum(-1, keepdim=True)
        return func(*args, **(kwargs or {}))

    def _next(self, kind: Drawn, shape: tuple[int, ...], device: Any) -> Tensor:
        if self.used == len(self.given):
            make = torch.randn if kind == "standard normal" else torch.rand
            noise = make(shape, device=device)
            self.drawn.append((kind, noise))
            return noise
        self.used += 1
        return self.given[self.used - 1]


RANDOM: dict[Any, Drawn] = {
    torch.randn_like: "standard normal",
    torch.randn: "standard normal",
    torch.rand_like: "uniform",
    torch.rand: "uniform",
}


@dataclass(frozen=True)
class SeenPort(Port):
    """An input that is read from what the caller observes: a part of it, or the mask."""

    part: Part | None = None
    """None for images alone, vectors without parts and masks."""


def seen_ports(spaces: Spaces) -> list[SeenPort]:
    """What the graph takes of an observation; together they are the networks' vector or image."""
    rest = spaces.obs_dim - (spaces.action_dim if spaces.has_mask else 0)
    if spaces.layout is not None:
        frames = (spaces.frame_stack,) if packed_frames(spaces) > 1 else ()
        ports = list[SeenPort]()
        for part in spaces.layout.parts:
            name = f"observation.{part.name}" if part.path else "observation"
            if any(port.name == name for port in ports):  # a name with a dot and a nested one
                name = f"{name}.{len(ports)}"
            kind = "uint8" if part.pixels else "int64" if part.choices else "float32"
            ports.append(SeenPort(name, kind, (*frames, *(part.pixels or part.shape)), part))
    elif spaces.is_image:
        ports = [SeenPort("observation", "uint8", spaces.obs_shape)]
    else:
        ports = [SeenPort("observation", "float32", (rest,))]
    if spaces.has_mask:
        ports.append(SeenPort(MASK, "bool", (spaces.action_dim,)))
    return ports


MASK = "action_mask"


def packed_frames(spaces: Spaces) -> int:
    """Frames of which each part of an observation holds all, where an image is among them."""
    return spaces.frame_stack if spaces.packing is not None else 1


class PolicyGraph(nn.Module):
    """`Algorithm.act` and the map to the environment's units, with everything kept made explicit.

    Called with the parts of the observation, the parts of the carry and, for drawn actions, the
    noise.
    """

    low: Tensor
    high: Tensor
    half_range: Tensor
    starts: Tensor

    def __init__(
        self, algorithm: Algorithm, draws: bool, further: Sequence[FurtherOutput] = ()
    ) -> None:
        super().__init__()
        self.algorithm, self.draws, self.further = algorithm, draws, tuple(further)
        if draws:
            refuse_sampling(algorithm)
        spaces = algorithm.spaces
        self.seen = seen_ports(spaces)
        low, high = (
            torch.tensor(values, dtype=torch.float32)
            for values in (spaces.action_low, spaces.action_high)
        )
        for name, value in (
            ("low", low),
            ("high", high),
            ("half_range", 0.5 * (high - low)),
            ("starts", torch.tensor(spaces.starts, dtype=torch.int64)),
        ):
            self.register_buffer(name, value)
        carry = algorithm.initial_carry(2) if algorithm.recurrent else ()
        flat, self.carry_form = tree_flatten_with_path(carry)
        self.states = [
            Port(f"state_{_word(keystr(path))}", _dtype(part), tuple(part.shape[1:]))
            for path, part in flat
        ]
        if any(bool(part.any()) for _, part in flat):
            raise ExportError("the policy does not begin episodes with a state of zeros")
        self.noises: list[NoisePort] = []
        if draws:
            with GivenNoise() as noise, torch.no_grad():
                algorithm.act(self.observation(self.example_seen(2)), explore=True)
            if any(drawn.shape[:1] != (2,) for _, drawn in noise.drawn):
                raise ExportError(
                    f"algo: {algorithm.name()} draws random numbers that are not one row per "
                    "observation; export it without --stochastic"
                )
            self.noises = [
                NoisePort(f"noise_{i}", "float32", tuple(drawn.shape[1:]), kind)
                for i, (kind, drawn) in enumerate(noise.drawn)
            ]

    def example_seen(self, rows: int) -> list[Tensor]:
        """Zeros, and a mask that allows everything."""
        made = {MASK: torch.ones}
        return [
            made.get(port.name, torch.zeros)((rows, *port.shape), dtype=getattr(torch, port.dtype))
            for port in self.seen
        ]

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs of that many rows."""
        rest = [
            torch.zeros((rows, *port.shape), dtype=getattr(torch, port.dtype))
            for port in (*self.states, *self.noises)
        ]
        return (*self.example_seen(rows), *rest)

    @property
    def input_names(self) -> list[str]:
        return [port.name for port in (*self.seen, *self.states, *self.noises)]

    @property
    def output_names(self) -> list[str]:
        following = [f"next_{port.name}" for port in self.states]
        return ["action", *following, *(output.name for output in self.further)]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        first, second = len(self.seen), len(self.seen) + len(self.states)
        observation = self.observation(inputs[:first])
        states, noise = inputs[first:second], inputs[second:]
        carry = tree_unflatten(states, self.carry_form) if states else None
        with GivenNoise(noise) if self.draws else contextlib.nullcontext():
            action, after = self.algorithm.act(observation, explore=self.draws, carry=carry)
        read = (output.read(self.algorithm, observation, action) for output in self.further)
        further = [values for values in read if values is not None]
        return (self.in_env_units(action), *tree_flatten(after)[0], *further)

    def observation(self, seen: Sequence[Tensor]) -> Tensor:
        """`Layout.named_rows` and the mask or the image behind it, as operations of the graph."""
        if len(seen) == 1 and self.seen[0].part is None:
            return seen[0]
        frames = packed_frames(self.algorithm.spaces)
        pieces: list[Tensor] = []
        images: list[Tensor] = []
        for port, values in zip(self.seen, seen, strict=True):
            part, flat = port.part, values.reshape(values.shape[0], frames, -1)
            if part is None or not part.choices:
                (images if port.dtype == "uint8" else pieces).append(flat.float())
                continue
            starts = part.starts or (0,) * len(part.choices)
            for i, (count, start) in enumerate(zip(part.choices, starts, strict=True)):
                known = torch.arange(start, start + count, device=flat.device)
                pieces.append((flat[..., i : i + 1] == known).float())
        whole = torch.cat([*pieces, *images], -1)
        return whole if frames > 1 else whole.squeeze(1)

    def in_env_units(self, action: Tensor) -> Tensor:
        """`Spaces.to_env` and `Spaces.outside`, operation by operation; that both agree is a part
        of every export."""
        spaces = self.algorithm.spaces
        if spaces.is_discrete:
            return action + spaces.action_start if spaces.action_start else action
        if spaces.is_box:
            result = (action + 1.0) * self.half_range + self.low
            result = torch.minimum(torch.maximum(result, self.low), self.high)
        else:
            result = action + self.starts
        if spaces.action_shape is None:
            return result
        return result.reshape(result.shape[0], *spaces.action_shape)


def _word(path: str) -> str:
    """A place in a tree as a part of a name."""
    return re.sub(r"\W+", "_", path).strip("_") or "0"


def _dtype(part: Tensor) -> str:
    return str(part.dtype).removeprefix("torch.")


def traced(graph: PolicyGraph) -> torch.export.ExportedProgram:
    """The policy as a `torch.export` program whose number of rows is free."""
    example = graph.example(2)  # of one row it would be specialised
    rows = torch.export.Dim("batch", min=1, max=1 << 20)
    shapes = (tuple({0: rows} for _ in example),)
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(graph, example, dynamic_shapes=shapes, strict=False)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise ExportError(
            f"algo: the method act of {graph.algorithm.name()} cannot be traced "
            f"({describe_exception(error)}); it may neither branch on values nor leave PyTorch"
        ) from error


def onnx_model(program: torch.export.ExportedProgram, graph: PolicyGraph) -> Any:
    """The program as an ONNX model without anything of this machine in it."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(str(error.name), "export", "exporting a policy") from None
    with _quiet():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=graph.input_names,
            output_names=graph.output_names,
        )
    assert exported is not None
    model = exported.model_proto
    _strip(model)
    drawing = {
        node.op_type
        for node in model.graph.node
        if node.op_type.startswith("Random") or node.op_type in ("Multinomial", "Bernoulli")
    }
    if drawing:
        raise ExportError(
            f"algo: {graph.algorithm.name()} draws random numbers by {', '.join(sorted(drawing))} "
            "when it acts, which cannot become an input; let its policy draw by "
            "torch.randn_like, torch.rand_like or torch.multinomial"
        )
    return model


def _strip(model: Any) -> None:
    """Remove where in which source file an operation was written, and names of dimensions."""
    model.doc_string = ""
    del model.metadata_props[:]
    graph = model.graph
    graph.name, graph.doc_string = "policy", ""
    del graph.metadata_props[:]
    del graph.value_info[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        part.doc_string = ""
        del part.metadata_props[:]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"


HALVED_FROM = 32
"""Numbers that a weight has at least to be stored as float16."""


def with_half_weights(model: Any) -> None:
    """Store float32 weights as float16; the arithmetic stays float32."""
    import onnx
    from onnx import numpy_helper

    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size < HALVED_FROM:
            continue
        if np.abs(values).max() > np.finfo(np.float16).max:
            raise ExportError("float16: a weight is beyond float16; export with float32")
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
        casts.append(
            onnx.helper.make_node(
                "Cast", [f"{name}_half"], [name], name=f"{name}_cast", to=onnx.TensorProto.FLOAT
            )
        )
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write the `torch.export` program, which needs PyTorch and nothing of this package."""
    with _quiet(), path.open("wb") as file:
        torch.export.save(program, file)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch's exporter prints and logs about itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def half_or_refuse(weights: str) -> bool:
    """Whether weights are stored as float16."""
    if weights not in ("float32", "float16"):
        raise ConfigError(f"weights: expected float32 or float16, got {weights!r}")
    return weights == "float16"
