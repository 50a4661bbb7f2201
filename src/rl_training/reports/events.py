"""Reads the events of metrics.jsonl, of any number and while they are written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MOST_POINTS = 2_000
"""Events of each kind that are kept for curves, evenly spaced: at least so many of a longer
record, and at most twice as many."""
BLOCK_BYTES = 1 << 17
"""Of a file that is read at once; larger blocks cost more page faults than they save."""


class Thinned:
    """Lines of a record of any length: evenly spaced ones, and the newest."""

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points
        self._kept: list[bytes] = []
        self._stride, self._seen, self._newest = 1, 0, b""

    def add(self, lines: Lines) -> None:
        first, self._seen = self._seen, self._seen + len(lines)
        at = first + -first % self._stride
        while at < self._seen:
            self._kept.append(lines[at - first])
            if len(self._kept) > 2 * self._most_points:
                self._kept, self._stride = self._kept[::2], self._stride * 2
            at += self._stride - at % self._stride
        if len(lines):
            self._newest = lines[len(lines) - 1]

    def lines(self) -> list[bytes]:
        newest_is_kept = (self._seen - 1) % self._stride == 0
        return self._kept if newest_is_kept or not self._kept else [*self._kept, self._newest]


@dataclass(frozen=True)
class Lines:
    """Lines of a block of text, each cut out only when it is asked for."""

    text: bytes
    starts: Array
    ends: Array

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> bytes:
        return self.text[self.starts[i] : self.ends[i]]

    def chosen(self, mask: Array) -> Lines:
        return Lines(self.text, self.starts[mask], self.ends[mask])

    def with_prefix(self, prefix: bytes) -> Array:
        """A mask of the lines that begin so: by the last byte of it first, which few others have
        at its place."""
        codes = np.frombuffer(self.text, np.uint8)
        places = self.starts + (len(prefix) - 1)
        mask: Array = codes[np.minimum(places, self.ends - 1)] == prefix[-1]
        for i in np.flatnonzero(mask).tolist():
            mask[i] = self.text.startswith(prefix, self.starts[i])
        return mask

    def newest_with(self, part: bytes) -> bytes | None:
        places = zip(reversed(self.starts.tolist()), reversed(self.ends.tolist()), strict=True)
        found = (self.text[a:b] for a, b in places if self.text.find(part, a, b) >= 0)
        return next(found, None)


def whole_lines(text: bytes) -> Lines:
    """The lines of a text, without its torn last one."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    starts = np.concatenate((np.zeros(min(1, len(ends)), ends.dtype), ends[:-1]))
    return Lines(text, starts, ends)


class EventReader:
    """The events of a metrics file, thinned while they are read.

    Lines are counted in large blocks and cut out and parsed only if they are kept, so that a file
    of millions of rows is read in seconds. `update` reads what was added since, and all again
    where a resumed run has dropped the end of the file.
    """

    def __init__(
        self, path: Path, most_points: int = MOST_POINTS, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._path, self._most_points, self._block_bytes = path, most_points, block_bytes
        self._begin()

    def _begin(self) -> None:
        self.evaluations = Thinned(self._most_points)
        self.training = Thinned(self._most_points)
        self.newest_best = b""
        self._offset, self._mark = 0, b""

    def update(self) -> None:
        with suppress(OSError), self._path.open("rb", buffering=0) as file:
            if not self._continues(file):
                self._begin()
            file.seek(self._offset)
            self._read(file)

    def _continues(self, file: FileIO) -> bool:
        """Whether the file still holds the newest line that was read, at its place."""
        file.seek(self._offset - len(self._mark))
        return file.read(len(self._mark)) == self._mark

    def _read(self, file: FileIO) -> None:
        torn = b""  # at the end of the file it is half written, and read again later
        while block := file.read(self._block_bytes):
            lines = whole_lines(torn + block)
            if not len(lines):
                torn += block
                continue
            end = int(lines.ends[-1])
            torn = lines.text[end:]
            self._offset, self._mark = self._offset + end, lines[len(lines) - 1]
            evaluations = lines.with_prefix(b'{"event": "eval"')
            self.training.add(lines.chosen(~evaluations))
            chosen = lines.chosen(evaluations)
            self.evaluations.add(chosen)
            self.newest_best = chosen.newest_with(b'"best": true') or self.newest_best


def parsed(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The events of whole lines; damaged ones are left out."""
    found = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("tick"), int):
                found.append(event)
    return found
