"""How an update is being executed, for the few places whose quickest form depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_traced = False
_batched = False


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
def batching() -> Iterator[None]:
    """Inside, an update is that of many agents at once: every tensor hides an axis of agents."""
    global _batched
    before, _batched = _batched, True
    try:
        yield
    finally:
        _batched = before


def is_traced() -> bool:
    return _traced


def is_batched() -> bool:
    return _batched


def asking_is_free(tensor: Tensor) -> bool:
    """Whether a branch on a tensor's value is possible and costs nothing."""
    return tensor.device.type == "cpu" and not (_traced or _batched)
