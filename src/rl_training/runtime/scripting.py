"""Updates on the host, run by TorchScript's interpreter.

Between two operations of a small network Python, PyTorch's arguments and the graph of gradients
take longer than the operations. They are recorded once, and run from then on without any of that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.execution import LONGEST_CYCLE, current_phase, recording, without_gradients
from rl_training.models.mlp import hooks_of
from rl_training.runtime.recording import Recorded, lighten
from rl_training.runtime.signals import Pause

Values = list[Any]
"""What the nodes of a graph have returned, by their places."""
Step = Callable[[Values], None]
OURS = {"rl_training", "torch"}


def can_be_scripted(algorithm: Algorithm) -> bool:
    """Whether its updates are known to do nothing that is not an operation on tensors: those of
    others may count in Python, ask for a number, or branch on their count."""
    modules = {type(module).__module__.partition(".")[0] for module in algorithm.modules()}
    branches = algorithm.cycle > LONGEST_CYCLE
    return algorithm.learns_in is not None and modules <= OURS and not branches


class Scripted(Recorded):
    """A method of an algorithm that learns from a batch, and returns the same bits.

    Where it cannot be recorded, for batches of other shapes, and while something is hooked into
    a module, the method itself is called.
    """

    def __init__(
        self,
        function: Callable[[Any], Metrics],
        algorithm: nn.Module,
        taken_back: Callable[[], AbstractContextManager[None]],
        pause: Pause,
    ) -> None:
        super().__init__(function, taken_back, pause)
        self._hooks = [hooks for module in algorithm.modules() for hooks in hooks_of(module)]
        self._shapes: dict[int | None, list[torch.Size]] = {}

    def __call__(self, *arguments: Any) -> Metrics:
        (batch,) = arguments
        if any(self._hooks):
            return self.function(batch)
        given = [field for field in batch if field is not None]
        phase = current_phase()
        if phase not in self._shapes:
            self._shapes[phase] = self._prepare(phase, batch, given)
        ready = self._ready.get(phase)
        if ready is None or self._shapes[phase] != [field.shape for field in given]:
            return self.function(batch)
        return ready(given)

    def _prepare(self, phase: int | None, batch: Any, given: list[Any]) -> list[torch.Size]:
        names: list[str] = []

        def function(tensors: list[Tensor]) -> list[Tensor]:
            rest = iter(tensors)
            metrics = self.function(
                type(batch)(*(None if field is None else next(rest) for field in batch))
            )
            names[:] = metrics
            return list(metrics.values())

        if not all(isinstance(field, Tensor) for field in given):  # sequences of a recurrent layer
            return []
        try:
            with recording():
                recorded = self._traced(function, given)  # type: ignore[arg-type]
            lighten(recorded)
            with self.taken_back(), self.pause:
                self._ready[phase] = script(recorded, given, names)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return []  # an operation that it does not take; what is wrong, the method itself says
        return [field.shape for field in given]


class ScriptedTogether(Recorded):
    """The update of several agents, with the same bits; where TorchScript does not take an
    operation of it, the recorded operations themselves are called."""

    def _prepared(
        self, function: Callable[[list[Tensor]], Metrics], given: list[Tensor]
    ) -> Callable[..., Metrics]:
        names: list[str] = []

        def values(tensors: list[Tensor]) -> list[Tensor]:
            metrics = function(tensors)
            names[:] = metrics
            return list(metrics.values())

        recorded = self._traced(values, given)  # type: ignore[arg-type]
        lighten(recorded)
        try:
            with self.taken_back(), self.pause:
                return script(recorded, given, names)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return lambda tensors: dict(zip(names, recorded.forward(tensors), strict=True))


class _Unchanged:
    """While active, scripts run the operations as they were recorded, with the same last bits."""

    def __enter__(self) -> None:
        torch._C._set_graph_executor_optimize(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_graph_executor_optimize(True)


UNCHANGED = _Unchanged()


@without_gradients
def script(
    recorded: GraphModule, given: Sequence[Tensor], names: Sequence[str]
) -> Callable[[list[Tensor]], Metrics]:
    """What runs recorded operations on other tensors than `given`; they are run once.

    Operations that write to lists of tensors, such as the step of an optimiser, stand between two
    scripts: the interpreter leaves them out, because nothing reads what they return.
    """
    nodes = list(recorded.graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}  # what is given comes first
    start: Values = [
        getattr(recorded, node.target).detach() if node.op == "get_attr" else None for node in nodes
    ]
    values = [*given, *start[len(given) :]]
    steps: list[Step] = []
    # drawn as well, because the numbers after them have to be the same
    kept = _unused_draws(nodes)
    with UNCHANGED:
        for group in _groups(node for node in nodes if node.op == "call_function"):
            alone = group[0]
            writes = _writes_lists(alone)
            step = _write(alone, place) if writes else _segment(group, place, values, kept)
            step(values)
            steps.append(step)
    (returned,) = nodes[-1].args
    results = _reader(returned, place)

    @without_gradients
    def run(tensors: list[Tensor]) -> Metrics:
        values = start.copy()
        values[: len(tensors)] = tensors
        with UNCHANGED:
            for step in steps:
                step(values)
        return dict(zip(names, results(values), strict=True))

    return run


def _writes_lists(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(
        argument.alias_info is not None
        and argument.alias_info.is_write
        and isinstance(argument.type, torch.ListType)
        for argument in schema.arguments
    )


def _unused_draws(nodes: Sequence[Node]) -> set[Node]:
    """Random numbers that nothing written or returned depends on."""
    unused: set[Node] = set()
    for node in reversed(nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and not schema.is_mutable and unused.issuperset(node.users):
            unused.add(node)
    return {
        node
        for node in unused
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    }


def _fills(node: Node) -> bool:
    return node.target is torch.ops.aten.fill_.Scalar


def _groups(nodes: Iterable[Node]) -> Iterator[list[Node]]:
    """Nodes in their order, cut before and after those that write to lists."""
    for _, group in groupby(nodes, key=lambda node: node if _writes_lists(node) else None):
        yield list(group)


def _segment(group: list[Node], place: dict[Node, int], values: Values, kept: set[Node]) -> Step:
    """A script of some operations, of which `kept` are executed although nothing uses them."""
    inside = set(group)
    takes = list(
        dict.fromkeys(x for node in group for x in node.all_input_nodes if x not in inside)
    )
    gives = [node for node in group if node in kept or not inside.issuperset(node.users)]
    graph, copies = Graph(), {}
    for node in takes:
        copies[node] = graph.placeholder(node.name)
    for node in group:
        copies[node] = copy = graph.node_copy(node, copies.__getitem__)
        # a flag is set by a bool, for which TorchScript's operation takes a number
        copy.args = tuple(int(x) if isinstance(x, bool) and _fills(node) else x for x in copy.args)
    # a script returns something, also where it only writes
    graph.output(tuple(copies[node] for node in gives or takes[:1]))
    arguments, module = _reader(takes, place), GraphModule({}, graph)

    def function(*tensors: Tensor) -> Any:  # a script of a module costs more to call
        return module.forward(*tensors)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is no longer developed
        trace: Any = torch.jit.trace
        run = trace(function, tuple(arguments(values)), check_trace=False)
    targets = [place[node] for node in gives]

    def step(values: Values) -> None:
        results = run(*arguments(values))
        for target, result in zip(targets, results, strict=False):
            values[target] = result

    return step


def _write(node: Node, place: dict[Node, int]) -> Step:
    """A call of an operation that returns nothing."""
    read = [_reader(argument, place) for argument in node.args]
    named = {name: _reader(argument, place) for name, argument in node.kwargs.items()}
    target: Any = node.target
    # the function of PyTorch reads its arguments faster
    operation: Any = getattr(torch, target.overloadpacket.__name__, target)

    def step(values: Values) -> None:
        operation(*(of(values) for of in read), **{name: of(values) for name, of in named.items()})

    return step


def _reader(argument: Any, place: dict[Node, int]) -> Callable[[Values], Any]:
    """What finds an argument, a list of nodes, or a constant among the values."""
    if isinstance(argument, Node):
        return itemgetter(place[argument])
    if isinstance(argument, (list, tuple)) and all(isinstance(x, Node) for x in argument):
        places = [place[node] for node in argument]
        return lambda values: [values[i] for i in places]
    return lambda values: argument
