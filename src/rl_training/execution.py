"""How an update is being executed, for the few places whose quickest form depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_traced = False
_agents: int | None = None


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
    global _traced
    before, _traced = _traced, True
    try:
        yield
    finally:
        _traced = before


@contextmanager
def batching(agents: int) -> Iterator[None]:
    """Inside, an update is that of many agents at once: every tensor hides an axis of agents."""
    global _agents
    before, _agents = _agents, agents
    try:
        yield
    finally:
        _agents = before


def is_traced() -> bool:
    return _traced


def is_batched() -> bool:
    return _agents is not None


def num_agents() -> int:
    """How many agents an update is for."""
    return 1 if _agents is None else _agents


def asking_is_free(tensor: Tensor) -> bool:
    """Whether a branch on a tensor's value is possible and costs nothing."""
    return tensor.device.type == "cpu" and not (_traced or is_batched())
