"""How the current update is executed, for the few places whose fastest form depends on it.

The switches are context-local: threads do not affect each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

LONGEST_CYCLE = 10
"""Updates of the longest cycle of delayed steps of which every phase has a form of its own."""

P = ParamSpec("P")
R = TypeVar("R")

_traced: ContextVar[bool] = ContextVar("traced", default=False)
_recorded: ContextVar[bool] = ContextVar("recorded", default=False)
_tiled: ContextVar[bool] = ContextVar("tiled", default=False)
_agents: ContextVar[int | None] = ContextVar("agents", default=None)
_phase: ContextVar[int | None] = ContextVar("phase", default=None)
_interruption: ContextVar[Callable[[Callable[[], None]], None] | None] = ContextVar(
    "interruption", default=None
)


@contextmanager
def usual_torch() -> Iterator[None]:
    """While active, the default dtype is float32 and gradients are enabled."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def tracing() -> Iterator[None]:
    """While active, the update is traced for torch.compile: fusible ops, no host sync."""
    before = _traced.set(True)
    try:
        yield
    finally:
        _traced.reset(before)


@contextmanager
def recording() -> Iterator[None]:
    """While active, the operations of an update are recorded: no branch on their results."""
    before = _recorded.set(True)
    try:
        yield
    finally:
        _recorded.reset(before)


@contextmanager
def tiling(products: bool = True) -> Iterator[None]:
    """While active, engines that are made compile updates with tiled products on a GPU."""
    before = _tiled.set(products)
    try:
        yield
    finally:
        _tiled.reset(before)


@contextmanager
def batching(agents: int) -> Iterator[None]:
    """While active, an update is vmapped over agents: every tensor has a hidden agent axis."""
    before = _agents.set(agents)
    try:
        yield
    finally:
        _agents.reset(before)


@contextmanager
def in_phase(phase: int) -> Iterator[None]:
    """While active, the update is known to be the `phase`-th, from 0, of a cycle of updates: steps
    that are not due in it are left out instead of masked."""
    before = _phase.set(phase)
    try:
        yield
    finally:
        _phase.reset(before)


def between_graphs(work: Callable[[], None]) -> None:
    """Do work that no CUDA graph can hold, such as a launch of another library's graph.

    While an update or a step is captured, `work` is not done: it is repeated at every replay,
    between a graph of what came before and a graph of what follows. It may wait for the device.
    """
    interruption = _interruption.get()
    if interruption is None:
        work()
    else:
        interruption(work)


@contextmanager
def interrupted_by(interruption: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """While active, `interruption` gets what `between_graphs` is called with."""
    before = _interruption.set(interruption)
    try:
        yield
    finally:
        _interruption.reset(before)


def without_gradients(function: Callable[P, R]) -> Callable[P, R]:
    """A function in which gradients are off: `torch.no_grad()` at a tenth of its price, and at
    nearly none where they are off already."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        torch._C._set_grad_enabled(False)
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(True)

    return run


def current_phase() -> int | None:
    """The place of the update in its cycle, where a form of its own is made for it."""
    return _phase.get()


def is_traced() -> bool:
    return _traced.get()


def is_tiled() -> bool:
    return _tiled.get()


def is_batched() -> bool:
    return _agents.get() is not None


def num_agents() -> int:
    """The number of agents in the current update."""
    agents = _agents.get()
    return 1 if agents is None else agents


def can_branch_on(tensor: Tensor) -> bool:
    """True in an eager CPU run, where reading a tensor's value needs no sync."""
    if _traced.get() or _recorded.get() or is_batched():
        return False
    return tensor.device.type == "cpu"
