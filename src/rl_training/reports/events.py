"""Reads the events of metrics.jsonl, of any number and while they are written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

MOST_POINTS = 2_000
"""Events of each kind that are kept for curves, evenly spaced: at least so many of a longer
record, and at most twice as many."""


class Thinned:
    """Lines of a record of any length: evenly spaced ones, and the newest."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._stride, self._seen, self._newest = 1, 0, b""

    def add(self, line: bytes) -> None:
        self._newest = line
        if self._seen % self._stride == 0:
            self._kept.append(line)
            if len(self._kept) > 2 * MOST_POINTS:
                self._kept, self._stride = self._kept[::2], self._stride * 2
        self._seen += 1

    def lines(self) -> list[bytes]:
        if not self._kept or self._kept[-1] is self._newest:
            return self._kept
        return [*self._kept, self._newest]


class EventReader:
    """The events of a metrics file, thinned while they are read.

    Lines are parsed only if they are kept, so that a file of millions of rows is read in
    seconds. `update` reads what was added since, and all again where a resumed run has dropped
    the end of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self.evaluations, self.training = Thinned(), Thinned()
        self.newest_best = b""
        self._offset, self._mark = 0, b""

    def update(self) -> None:
        with suppress(OSError), self._path.open("rb") as file:
            if not self._continues(file):
                self._begin()
            file.seek(self._offset)
            self._read(file)

    def _continues(self, file: BinaryIO) -> bool:
        """Whether the file still holds the newest line that was read, at its place."""
        file.seek(self._offset - len(self._mark))
        return file.read(len(self._mark)) == self._mark

    def _read(self, file: BinaryIO) -> None:
        train, offset = self.training.add, self._offset
        for line in file:
            if not line.endswith(b"\n"):
                break  # half written: read again later
            offset += len(line)
            self._mark = line
            if line.startswith(b'{"event": "eval"'):
                self.evaluations.add(line)
                if b'"best": true' in line:
                    self.newest_best = line
            else:
                train(line)
        self._offset = offset


def parsed(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The events of whole lines; damaged ones are left out."""
    found = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("tick"), int):
                found.append(event)
    return found
