"""Output to the terminal, whose failure never ends a run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console

from rl_training.experiment.errors import printable

PLAIN = str.maketrans({"±": "+-", "×": "x", "→": "->", "…": "..."})
"""ASCII replacements for the characters of our messages."""


class Stream:
    """The current sys.stdout or sys.stderr at each call, with any encoding.

    A closed pipe silences it. A `forgiving` stream also ignores other failures to write, such as
    a full disk.
    """

    def __init__(self, name: str, forgiving: bool) -> None:
        self._name, self._forgiving = name, forgiving

    @property
    def _stream(self) -> TextIO:
        stream: TextIO = getattr(sys, self._name)
        return stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._do(lambda: self._stream.write(self._encodable(text))) or 0

    def flush(self) -> None:
        self._do(self._stream.flush)

    def _encodable(self, text: str) -> str:
        encoding = self._stream.encoding or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            return text.translate(PLAIN).encode(encoding, "replace").decode(encoding)
        return text

    def _do(self, work: Any) -> Any:
        try:
            return work()
        except BrokenPipeError:
            # What is still buffered would fail again when the interpreter exits.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        except (OSError, ValueError):  # ValueError: it is closed
            if not self._forgiving:
                raise
        return None


class PlainConsole(Console):
    """Prints text without the control characters that file contents or names may hold."""

    def print(self, *objects: Any, **options: Any) -> None:
        shown = (printable(item) if isinstance(item, str) else item for item in objects)
        super().print(*shown, **options)


def terminal(name: str, forgiving: bool = False) -> Console:
    """A console that prints text to a standard stream, unchanged if it is printable."""
    columns = os.environ.get("COLUMNS", "")
    nothing = columns.isdigit() and not int(columns)  # would leave no room for text
    stream: Any = Stream(name, forgiving)
    return PlainConsole(
        file=stream, highlight=False, markup=False, emoji=False, width=80 if nothing else None
    )
