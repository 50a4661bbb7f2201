"""How a run is asked to end, and what that leaves of the work it is doing.

A signal sets a flag. Whatever takes long looks at it: between environment steps, between
updates, between imagined steps. What nothing of a run depends on until it is complete (an
environment step, an evaluation, a compilation) is broken off at once instead. Either way the
state is that of a run which can be saved, and a resume goes on from there bit for bit.
"""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class StepInterrupted(BaseException):
    """The run is to end; what was being done has not happened.

    Not an `Exception`: it passes through other people's code, such as environments and
    compilers, which may catch those.
    """


class Pause:
    """Says when the work of a run has to be handed back to its trainer: to end, or for a look
    around. As a context it marks work that is broken off at once when the run is to end.
    """

    def __init__(self) -> None:
        self.requested = False
        self.until = math.inf
        """Time of `time.monotonic` at which the trainer wants to look around."""
        self._regions = 0

    def due(self) -> bool:
        return self.requested or time.monotonic() >= self.until

    def request(self) -> None:
        """Ask for the end of the run; called by a signal handler."""
        self.requested = True
        if self._regions:
            raise StepInterrupted

    def check(self) -> None:
        """Raise where the run is to end."""
        if self.requested:
            raise StepInterrupted

    def __enter__(self) -> None:
        self.check()
        self._regions += 1

    def __exit__(self, *_: object) -> None:
        self._regions -= 1


class RunLink:
    """Between a run and all its parts: when to hand the work back, and what to say to the user."""

    def __init__(self) -> None:
        self.pause = Pause()
        self.notes: list[str] = []
        """Warnings that were not said yet."""
        self.tell: Callable[[str], None] = lambda text: None
        """Says what the run is doing, where that takes long."""


class Undoable(Protocol):
    """A part of a run whose state can be taken and put back."""

    def training_state(self) -> dict[str, Any]: ...
    def load_training_state(self, state: dict[str, Any]) -> None: ...


@contextmanager
def undone_if_interrupted(*parts: Undoable) -> Iterator[None]:
    """Put `parts` back to where they were if the run has to end inside."""
    before = [copy.deepcopy(part.training_state()) for part in parts]
    try:
        yield
    except StepInterrupted:
        for part, state in zip(parts, before, strict=True):
            part.load_training_state(state)
        raise


SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class InterruptedRun(KeyboardInterrupt):
    """Ctrl-C ended a run, which is saved; `result` says how far it came."""

    def __init__(self, result: Any) -> None:
        super().__init__(result.stop_reason)
        self.result = result


class TerminatedRun(SystemExit):
    """SIGTERM or SIGHUP ended a run, which is saved; the process ends with 128 + the number."""

    def __init__(self, number: int, result: Any) -> None:
        super().__init__(128 + number)
        self.result = result


def end_by(number: int, result: Any) -> InterruptedRun | TerminatedRun:
    """What goes on to end the program, once a run that the signal has ended is saved."""
    return InterruptedRun(result) if number == signal.SIGINT else TerminatedRun(number, result)


@contextmanager
def interruptible(interrupt: Callable[[int], None]) -> Iterator[None]:
    """Inside, the first of SIGINT, SIGTERM and SIGHUP calls `interrupt` with its number; a
    second one ends the program at once. A hang-up that is ignored (nohup) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def handle(number: int, _: object) -> None:
        if seen:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        seen.append(number)
        interrupt(number)

    numbers = [
        number
        for number in SIGNALS
        if number in (signal.SIGINT, signal.SIGTERM)
        or signal.getsignal(number) is not signal.SIG_IGN
    ]
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
