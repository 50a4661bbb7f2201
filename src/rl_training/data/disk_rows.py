"""Arrays that stay on disk: rows are chosen and joined without being read."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]

RELEASE_FROM = 2_000_000_000
"""Bytes from which pages of a file are given back after they were read."""


def mapped(file: Path, kind: np.dtype[Any], rows: int) -> NDArray[Any]:
    """The rows of a binary file, read as they are touched."""
    with file.open("rb") as opened:
        pages = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(pages, kind, rows)


def _pages(array: NDArray[Any]) -> mmap.mmap | None:
    """What an array is a view of, if that is a file."""
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base


class DiskRows:
    """Runs of rows of memory-mapped arrays, as one array of (N, ...).

    Indexing reads the rows that it names, and `np.asarray` all of them; one run of one array is
    given as a view, of which the system reads what is touched.
    """

    def __init__(
        self, arrays: Sequence[NDArray[Any]], array: Index, start: Index, length: Index
    ) -> None:
        """Run i is `length[i]` rows of `arrays[array[i]]`, from row `start[i]` on."""
        self.arrays, self._array, self._start = tuple(arrays), array, start
        self._ends = np.cumsum(length)
        self._begins = self._ends - length
        self.shape = (int(self._ends[-1]), *arrays[0].shape[1:])
        self.dtype, self.ndim = arrays[0].dtype, arrays[0].ndim

    @classmethod
    def whole(cls, array: NDArray[Any]) -> DiskRows:
        zero = np.zeros(1, np.int64)
        return cls([array], zero, zero, np.asarray([len(array)], np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Any]) -> DiskRows:
        """Arrays one after the other; those in memory stay there."""
        rows = [
            part if isinstance(part, DiskRows) else cls.whole(np.asarray(part)) for part in parts
        ]
        first = np.cumsum([0, *(len(part.arrays) for part in rows)])
        return cls(
            [array for part in rows for array in part.arrays],
            np.concatenate([part._array + n for part, n in zip(rows, first[:-1], strict=True)]),
            np.concatenate([part._start for part in rows]),
            np.concatenate([part._ends - part._begins for part in rows]),
        )

    def expect_random_access(self) -> None:
        """Let the system read what is asked for alone, not what lies beside it."""
        for array in self.arrays:
            pages = _pages(array)
            if pages is not None and hasattr(pages, "madvise"):
                with suppress(OSError):
                    pages.madvise(mmap.MADV_RANDOM)

    def release_pages(self, from_bytes: int = RELEASE_FROM) -> None:
        """Give pages that were read back to the system, which keeps them cached while it has room:
        the process does not grow to the size of its data. Smaller files keep theirs."""
        for array in self.arrays:
            pages = _pages(array)
            if pages is not None and len(pages) >= from_bytes and hasattr(pages, "madvise"):
                with suppress(OSError):
                    pages.madvise(mmap.MADV_DONTNEED)

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def chosen(self, rows: slice | NDArray[np.bool_]) -> DiskRows:
        """The rows that a slice or a mask over all of them names, not read."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            starts, stops = np.asarray([start]), np.asarray([stop])
        else:
            edges = np.flatnonzero(
                np.diff(np.concatenate([[False], rows, [False]]).astype(np.int8))
            )
            starts, stops = edges[::2], edges[1::2]
        cuts = np.unique(np.concatenate([starts, stops, self._ends]))
        begins, ends = np.append(0, cuts[:-1]), cuts
        span = np.searchsorted(starts, begins, "right") - 1
        kept = (span >= 0) & (begins < stops[span]) & (begins < ends)
        begins, ends = begins[kept], ends[kept]
        run = np.searchsorted(self._ends, begins, "right")
        start = self._start[run] + begins - self._begins[run]
        return DiskRows(self.arrays, self._array[run], start, ends - begins)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            return self[key[0]][(slice(None), *key[1:])]
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                return self[np.arange(start, stop, step)]
            return self._range(start, max(stop, start))
        if isinstance(key, SupportsIndex) and not isinstance(key, np.ndarray):
            return self[np.asarray([int(key)])][0]
        index = np.asarray(key)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        return self._rows(np.where(index < 0, index + len(self), index))

    def _range(self, start: int, stop: int) -> NDArray[Any]:
        first, last = np.searchsorted(self._ends, [start, max(stop - 1, start)], "right")
        pieces = []
        for run in range(int(first), min(int(last) + 1, len(self._ends))):
            begin = max(start, int(self._begins[run]))
            end = min(stop, int(self._ends[run]))
            at = int(self._start[run]) + begin - int(self._begins[run])
            pieces.append(self.arrays[self._array[run]][at : at + end - begin])
        if not pieces:
            return self.arrays[0][:0]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _rows(self, index: Index) -> NDArray[Any]:
        if len(self._ends) == 1:
            found: NDArray[Any] = self.arrays[self._array[0]][index + self._start[0]]
            return found
        run = np.searchsorted(self._ends, index, "right")
        row, array = self._start[run] + index - self._begins[run], self._array[run]
        if len(self.arrays) == 1:
            return np.asarray(self.arrays[0][row])
        taken = np.empty((*index.shape, *self.shape[1:]), self.dtype)
        for number, held in enumerate(self.arrays):
            own = array == number
            taken[own] = held[row[own]]
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self._range(0, len(self))
        if dtype is not None and whole.dtype != dtype:
            return whole.astype(dtype)
        return whole.copy() if copy else whole
