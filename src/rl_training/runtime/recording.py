"""Updates recorded as operations, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from rl_training.algorithms.functional import Metrics
from rl_training.execution import current_phase, tracing
from rl_training.runtime.compiling import COMPILER_OPTIONS
from rl_training.runtime.signals import Pause


class Recorded:
    """A function of tensors, recorded as operations for the shapes of its first call, in each phase
    of a cycle of updates.

    It is traced by running it once, which `taken_back` undoes: what vmap and gradients do becomes
    ordinary operations, which run without their bookkeeping and give the same bits. Tracing is
    interrupted if the run should end.
    """

    def __init__(
        self,
        function: Callable[..., Metrics],
        taken_back: Callable[[], AbstractContextManager[None]],
        pause: Pause,
    ) -> None:
        self.function, self.taken_back, self.pause = function, taken_back, pause
        self._ready: dict[int | None, Callable[..., Metrics]] = {}  # by the phase of the update

    def __call__(self, *arguments: Any) -> Metrics:
        leaves, structure = tree_flatten(arguments)
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        phase = current_phase()
        if phase not in self._ready:

            def function(tensors: list[Tensor]) -> Metrics:
                rest = iter(tensors)
                filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                return self.function(*tree_unflatten(filled, structure))

            self._ready[phase] = self._prepared(function, given)
        with torch.no_grad():
            return self._ready[phase](given)

    def _prepared(
        self, function: Callable[[list[Tensor]], Metrics], given: list[Tensor]
    ) -> Callable[..., Metrics]:
        recorded = self._traced(function, given)
        lighten(recorded)
        run: Callable[..., Metrics] = recorded.forward
        return run

    def _traced(
        self, function: Callable[[list[Tensor]], Metrics], given: list[Tensor]
    ) -> GraphModule:
        with self.taken_back(), self.pause:
            return make_fx(function)(given)


class Compiled(Recorded):
    """The same, but operations are fused, and the last bits may differ.

    `tile` may put other kernels in the place of recorded operations before that. Like compiling,
    it is part of a first call, which is not captured.
    """

    def __init__(
        self,
        function: Callable[..., Metrics],
        taken_back: Callable[[], AbstractContextManager[None]],
        pause: Pause,
        tile: Callable[[GraphModule], None] | None = None,
    ) -> None:
        super().__init__(function, taken_back, pause)
        self.tile = tile

    def _prepared(
        self, function: Callable[[list[Tensor]], Metrics], given: list[Tensor]
    ) -> Callable[..., Metrics]:
        with tracing():
            recorded = self._traced(function, given)
        if self.tile is not None:
            with self.pause:
                self.tile(recorded)
        with self.taken_back(), torch.no_grad(), self.pause:
            compiled = torch.compile(recorded, dynamic=False, options=COMPILER_OPTIONS)
            compiled(given)
        return compiled


_RESHAPES = {
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.detach.default,
}
_VIEWS = _RESHAPES | {torch.ops.aten.transpose.int, torch.ops.aten.permute.default}


def lighten(recorded: GraphModule) -> None:
    """Leave out operations that return their input as it is, and make views of the tensors that
    stay where they are once."""
    graph = recorded.graph
    for node in list(graph.nodes):
        if node.target not in _VIEWS:
            continue
        source, *how = node.args
        kept = source
        if node.target not in _RESHAPES or _layout(node) != _layout(source):
            if source.op != "get_attr":
                continue
            setattr(recorded, node.name, node.target(getattr(recorded, source.target), *how))
            with graph.inserting_before(node):
                kept = graph.create_node("get_attr", node.name)
            kept.meta = node.meta
        node.replace_all_uses_with(kept)
        graph.erase_node(node)
    recorded.recompile()
    for node in graph.nodes:
        if node.op == "get_attr":  # found at once, not by the lookup of modules
            vars(recorded)[node.target] = getattr(recorded, node.target)


def _layout(node: Node) -> tuple[Any, ...]:
    found = node.meta.get("tensor_meta")
    return (node,) if found is None else (found.shape, found.stride, found.dtype)
