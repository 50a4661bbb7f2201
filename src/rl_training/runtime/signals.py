"""How signals end a run without losing its state.

A signal sets a flag. Long work checks it between environment steps, updates and imagined
steps. Work whose partial results nothing depends on (an environment step, an evaluation, a
compilation) is aborted at once instead. Either way the run can be saved afterwards, and a
resume continues from there bit for bit.
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

from torch import Tensor


class StepInterrupted(BaseException):
    """The run should end; the current work counts as not done.

    Not an `Exception`, because it passes through third-party code, such as environments and
    compilers, which may catch exceptions.
    """


class Pause:
    """Tells the work of a run when to return to the trainer, to end or for periodic tasks. As a
    context it marks work that is aborted at once when the run should end.
    """

    def __init__(self) -> None:
        self.requested = False
        self.until = math.inf
        """Time of `time.monotonic` of the trainer's next periodic tasks."""
        self._regions = 0

    def due(self) -> bool:
        return self.requested or time.monotonic() >= self.until

    def request(self) -> None:
        """Request the end of the run; called by a signal handler."""
        self.requested = True
        if self._regions:
            raise StepInterrupted

    def check(self) -> None:
        """Raise `StepInterrupted` if the run should end."""
        if self.requested:
            raise StepInterrupted

    def __enter__(self) -> None:
        self.check()
        self._regions += 1

    def __exit__(self, *_: object) -> None:
        self._regions -= 1


class RunLink:
    """Shared by all parts of a run: when to return to the trainer, and notes for the user."""

    def __init__(self) -> None:
        self.pause = Pause()
        self.notes: list[str] = []
        """Warnings that were not printed yet."""
        self.tell: Callable[[str], None] = lambda text: None
        """Reports what the run is doing during slow work."""
        self._noted: set[str] = set()

    def note_once(self, note: str) -> None:
        if note not in self._noted:
            self._noted.add(note)
            self.notes.append(note)


class Undoable(Protocol):
    """A part of a run whose state can be saved and restored."""

    def training_state(self) -> dict[str, Any]: ...
    def load_training_state(self, state: dict[str, Any]) -> None: ...


@contextmanager
def undone_if_interrupted(*parts: Undoable) -> Iterator[None]:
    """Restore the state of `parts` if the run is interrupted inside."""
    before = [_kept(part.training_state()) for part in parts]
    try:
        yield
    except StepInterrupted:
        for part, state in zip(parts, before, strict=True):
            part.load_training_state(state)
        raise


def _kept(state: Any) -> Any:
    """A copy that later work does not change; of tensors it takes a tenth of `deepcopy`'s time."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _kept(value) for key, value in state.items()}
    return [_kept(value) for value in state] if isinstance(state, list) else copy.deepcopy(state)


SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class InterruptedRun(KeyboardInterrupt):
    """Ctrl-C ended a run, which is saved; `result` is its result."""

    def __init__(self, result: Any) -> None:
        super().__init__(result.stop_reason)
        self.result = result


class TerminatedRun(SystemExit):
    """SIGTERM or SIGHUP ended a run, which is saved; the process ends with 128 + the number."""

    def __init__(self, number: int, result: Any) -> None:
        super().__init__(128 + number)
        self.result = result


def end_by(number: int, result: Any) -> InterruptedRun | TerminatedRun:
    """The exception that ends the program after the interrupted run is saved."""
    return InterruptedRun(result) if number == signal.SIGINT else TerminatedRun(number, result)


@contextmanager
def interruptible(interrupt: Callable[[int], None]) -> Iterator[None]:
    """While active, the first SIGINT, SIGTERM or SIGHUP calls `interrupt` with its number; a
    second one ends the program at once. An ignored SIGHUP (nohup) stays ignored."""
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
