"""Other tensors in place of an algorithm's own, so that one update can be that of many agents.

`torch.vmap` and `torch.func.grad` give tensors of their own to the function they call; inside it
the algorithm has to compute with those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm


@contextmanager
def holding(algorithm: Algorithm, tensors: Sequence[Tensor]) -> Iterator[None]:
    """While active, the algorithm uses `tensors` instead of its `state_tensors()`."""
    own = algorithm.state_tensors()
    by_identity = {id(before): after for before, after in zip(own, tensors, strict=True)}
    optimizers = algorithm.optimizers.values()
    before = [(list(opt.parameters), opt.tensors()) for opt in optimizers]
    for optimizer, (parameters, rest) in zip(optimizers, before, strict=True):
        optimizer.parameters = [by_identity[id(x)] for x in parameters]
        optimizer.replace_tensors([by_identity[id(x)] for x in rest])
    try:
        with replaced(algorithm, own, tensors):
            yield
    finally:
        for optimizer, (parameters, rest) in zip(optimizers, before, strict=True):
            optimizer.parameters = parameters
            optimizer.replace_tensors(rest)


@contextmanager
def replaced(module: nn.Module, old: Sequence[Tensor], new: Sequence[Tensor]) -> Iterator[None]:
    """While active, a module uses `new` parameters and buffers instead of `old` ones."""
    by_identity = {id(before): after for before, after in zip(old, new, strict=True)}
    tables: list[dict[str, Any]] = []
    for part in module.modules():
        tables += [part._parameters, part._buffers]
    places = [
        (table, name, tensor)
        for table in tables
        for name, tensor in table.items()
        if id(tensor) in by_identity
    ]
    for table, name, tensor in places:
        table[name] = by_identity[id(tensor)]
    try:
        yield
    finally:
        for table, name, tensor in places:
            table[name] = tensor
