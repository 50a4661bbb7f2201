"""Options of the compiler, and functions compiled together with their gradients."""

from __future__ import annotations

import importlib
import types
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
    return torch.compile(separate(piece), dynamic=False, fullgraph=True, options=options)


def separate(function: Any) -> Any:
    """A copy of a function or a bound method with code of its own.

    The compiler keeps what it compiled with the code, and only a few forms of each: without a copy,
    the ninth agent of a process would be refused.
    """
    plain = getattr(function, "__func__", function)
    copy = types.FunctionType(
        plain.__code__.replace(),
        plain.__globals__,
        plain.__name__,
        plain.__defaults__,
        plain.__closure__,
    )
    return copy if plain is function else types.MethodType(copy, function.__self__)
