"""Options of the compiler, and functions compiled together with their gradients."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

COMPILER_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    # torch 2.11 fails with it when foreach operations meet others
    "loop_ordering_after_fusion": False,
}


def fused(piece: Any) -> Any:
    """A function, or a named tuple of functions, compiled for the shapes of its first call.

    Unlike `engine.Compiled` it is differentiable, and it must not write to its arguments. Variants
    of a kernel are not timed against each other, so that every process computes the same numbers.
    """
    if isinstance(piece, tuple):
        return type(piece)(*(fused(function) for function in piece))
    options = dict(COMPILER_OPTIONS)
    if hasattr(importlib.import_module("torch._inductor.config"), "deterministic"):
        options["deterministic"] = True
    return torch.compile(piece, dynamic=False, fullgraph=True, options=options)
