"""Watches calls of functions as they are, without putting others in their place."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any


@dataclass
class Call:
    """One call: the function's name, its arguments, and when it has returned all its variables."""

    name: str
    arguments: dict[str, Any]
    result: Any = None
    variables: dict[str, Any] = field(default_factory=dict)


@contextmanager
def watched(
    *functions: Callable[..., Any], on_call: Callable[[Call], None] = lambda call: None
) -> Iterator[list[Call]]:
    """Note the calls of functions and methods in this thread; `on_call` runs before each."""
    codes = {inspect.unwrap(getattr(f, "__func__", f)).__code__ for f in functions}
    calls: list[Call] = []
    running: dict[FrameType, Call] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code not in codes:
            return
        if event == "call":
            call = running[frame] = Call(frame.f_code.co_name, dict(frame.f_locals))
            calls.append(call)
            on_call(call)
        elif event == "return":
            call = running.pop(frame)
            call.result, call.variables = argument, dict(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
