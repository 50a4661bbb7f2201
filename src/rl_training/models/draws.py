"""Random numbers of actions: torch's own, or those of a source that the caller has chosen.

Policies draw from here, so that steps of worlds on the device can draw numbers that depend on their
run's seed alone. The choice is context-local, as in `rl_training.execution`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor


class DrawSource(Protocol):
    """Random numbers of one step, float32, in the order in which they are asked for."""

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """In [0, 1)."""

    def normal(self, shape: Sequence[int]) -> Tensor: ...


_source: ContextVar[DrawSource | None] = ContextVar("source", default=None)


@contextmanager
def drawing_from(source: DrawSource) -> Iterator[None]:
    """While active, actions are drawn with the numbers of `source`."""
    before = _source.set(source)
    try:
        yield
    finally:
        _source.reset(before)


def has_source() -> bool:
    return _source.get() is not None


def normal_like(x: Tensor) -> Tensor:
    source = _source.get()
    return torch.randn_like(x) if source is None else source.normal(x.shape)


def normal(size: int, device: torch.device) -> Tensor:
    source = _source.get()
    return torch.randn(size, device=device) if source is None else source.normal((size,))


def exponential_like(x: Tensor) -> Tensor:
    source = _source.get()
    if source is None:
        return torch.empty_like(x).exponential_()
    return -torch.log1p(-source.uniform(x.shape)).clamp(max=-(2.0**-25))


def uniform_places(like: Tensor) -> Tensor:
    """float64 numbers in [0, 1)."""
    source = _source.get()
    if source is None:
        return torch.rand(like.shape, dtype=torch.float64, device=like.device)
    return source.uniform(like.shape).double()
