"""How an update is being executed, for the few places whose quickest form depends on it.

Of the current context alone: what one thread does is not seen by another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_traced: ContextVar[bool] = ContextVar("traced", default=False)
_agents: ContextVar[int | None] = ContextVar("agents", default=None)


@contextmanager
def usual_torch() -> Iterator[None]:
    """Inside, numbers are float32 and gradients are taken, whatever the caller has set."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def tracing() -> Iterator[None]:
    """Inside, an update is recorded for a compiler: only what it can fuse, nothing that asks."""
    before = _traced.set(True)
    try:
        yield
    finally:
        _traced.reset(before)


@contextmanager
def batching(agents: int) -> Iterator[None]:
    """Inside, an update is that of many agents at once: every tensor hides an axis of agents."""
    before = _agents.set(agents)
    try:
        yield
    finally:
        _agents.reset(before)


def is_traced() -> bool:
    return _traced.get()


def is_batched() -> bool:
    return _agents.get() is not None


def num_agents() -> int:
    """How many agents an update is for."""
    agents = _agents.get()
    return 1 if agents is None else agents


def asking_is_free(tensor: Tensor) -> bool:
    """Whether a branch on a tensor's value is possible and costs nothing."""
    return tensor.device.type == "cpu" and not (_traced.get() or is_batched())
