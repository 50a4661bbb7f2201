"""Sources read piece by piece, each of whole episodes: the whole is never in memory."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import AT_ONCE, rows_at_once
from rl_training.data.files import damage, optional_module
from rl_training.data.keys import select_keys, with_both_flags
from rl_training.data.readers import (
    check_stored_here,
    is_array,
    minari_bytes,
    minari_episode,
    minari_label,
    minari_raw,
    opened_minari,
    require_file,
)
from rl_training.data.table_columns import (
    MOST_CATEGORIES,
    Columns,
    refuse_text_among_numbers,
)
from rl_training.data.table_files import arrow, batches
from rl_training.data.tables import TableReader, opened_table
from rl_training.data.validation import RawTransitions
from rl_training.experiment.config import DataSource, SpacesConfig
from rl_training.experiment.errors import DataError

MOST_OPEN_ROWS = 10_000_000
"""Rows without an end after which a log is taken for one whose episodes never end."""


def pieces_of(
    part: DataSource, needs_rewards: bool, given: SpacesConfig | None
) -> Iterator[RawTransitions]:
    """A file, a table or a Minari data set, some whole episodes at a time."""
    if part.kind in ("parquet", "csv"):
        return _table_pieces(part, needs_rewards, given)
    if part.kind == "minari":
        return _minari_pieces(str(part.id))
    return _whole_episodes(_file_pieces(part, needs_rewards))


def _refuse_endless(label: str, rows: int, first_row: int) -> None:
    if rows > MOST_OPEN_ROWS:
        raise DataError(
            f"{label}: no episode ends in the {rows:,} rows from row {first_row:,} on, and whole "
            "episodes are needed; set terminations or truncations where episodes end"
        )


# --- files of arrays -------------------------------------------------------------------------

Reader = Callable[[str, int, int], NDArray[Any]]
"""From (key, first row, number of rows) to those rows."""


def _file_pieces(part: DataSource, needs_rewards: bool) -> Iterator[RawTransitions]:
    path, kind = Path(str(part.path)), str(part.kind)
    label = f"{kind} file '{path}'"
    with ExitStack() as stack:
        opened = _npz_reader if kind == "npz" else _hdf5_reader
        present, length_of, read = opened(path, label, stack)
        keys = select_keys(present, label, needs_rewards, part.group, part.dones)
        lengths = {key: length_of(key) for key in keys.values()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{key} {length}" for key, length in lengths.items())
            raise DataError(
                f"{label}: arrays have unequal numbers of rows ({listed}); "
                "cut or repair them so that each has one entry per transition"
            )
        total = next(iter(lengths.values()))
        if not total:
            raise DataError(f"{label}: the arrays are empty; give at least one transition")
        at_once = min(rows_at_once(read(key, 0, 0)) for key in keys.values())
        for start in range(0, total, at_once):
            count = min(at_once, total - start)
            arrays = {ours: read(theirs, start, count) for ours, theirs in keys.items()}
            named = dict(keys)
            if part.dones is not None:
                with_both_flags(arrays, named, part.dones)
            yield RawTransitions(label, str(path), arrays, named, first_row=start)


def _npz_reader(
    path: Path, label: str, stack: ExitStack
) -> tuple[list[str], Callable[[str], int], Reader]:
    """Arrays of an archive, each read from its beginning to its end."""
    require_file(path, "npz")
    with damage(f"'{path}' is not an npz file, or is damaged; write it with numpy.savez"):
        archive = stack.enter_context(zipfile.ZipFile(path))
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    streams: dict[str, tuple[Any, tuple[int, ...], np.dtype[Any]]] = {}

    def opened(key: str) -> tuple[Any, tuple[int, ...], np.dtype[Any]]:
        if key not in streams:
            with damage(f"{label}: array '{key}' is damaged; write the file again"):
                stream = stack.enter_context(archive.open(f"{key}.npy"))
                version = np.lib.format.read_magic(stream)
                header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
                shape, by_column, kind = header(stream)
            if kind.hasobject:
                raise DataError(
                    f"{label}: array '{key}' holds pickled Python objects, which "
                    "are not loaded because that could run code; store plain numbers"
                )
            if by_column or not shape:
                raise DataError(
                    f"{label}: array '{key}' is not stored row by row and cannot be read "
                    "in pieces; store numpy.ascontiguousarray of it"
                )
            streams[key] = (stream, shape, kind)
        return streams[key]

    def read(key: str, start: int, count: int) -> NDArray[Any]:
        stream, shape, kind = opened(key)
        with damage(f"{label}: array '{key}' is damaged; write the file again"):
            row = int(np.prod(shape[1:])) * kind.itemsize
            found = np.frombuffer(stream.read(count * row), kind)
            return found.reshape(count, *shape[1:])

    return names, lambda key: opened(key)[1][0], read


def _hdf5_reader(
    path: Path, label: str, stack: ExitStack
) -> tuple[list[str], Callable[[str], int], Reader]:
    require_file(path, "hdf5")
    h5py = optional_module("h5py", "hdf5", "reading an hdf5 file")
    with damage(f"'{path}' is not an hdf5 file, or is damaged; write it again"):
        file = stack.enter_context(h5py.File(path, "r"))
        names = list(file)

    def length_of(key: str) -> int:
        if not is_array(file, key, h5py):
            raise DataError(
                f"{label}: '{key}' is not an array of this file, but a group or a link; store the "
                "numbers under this key"
            )
        with damage(f"{label}: array '{key}' cannot be read; write the file again"):
            check_stored_here(file, key, label)
            return int(file[key].shape[0])

    def read(key: str, start: int, count: int) -> NDArray[Any]:
        with damage(f"{label}: array '{key}' cannot be read; write the file again"):
            return np.asarray(file[key][start : start + count])

    return names, length_of, read


def _whole_episodes(pieces: Iterator[RawTransitions]) -> Iterator[RawTransitions]:
    """Rows after the last end of a piece go with the next one."""
    held: list[RawTransitions] = []
    for piece in pieces:
        ends = np.flatnonzero(_ends(piece.arrays))
        if not len(ends):
            held.append(piece)
            _refuse_endless(
                piece.label, sum(len(raw.arrays["actions"]) for raw in held), held[0].first_row
            )
            continue
        cut = int(ends[-1]) + 1
        yield _joined([*held, _rows(piece, 0, cut)])
        rest = _rows(piece, cut, len(piece.arrays["actions"]))
        held = [rest] if len(rest.arrays["actions"]) else []
    if held:
        yield _joined(held)


def _ends(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Where episodes end; flags that are none are refused where they are checked."""
    flags = [np.asarray(arrays[name]) for name in ("terminations", "truncations")]
    if any(flag.dtype.kind not in "fiub" for flag in flags):
        return np.zeros(len(flags[0]), np.bool_)
    both = np.concatenate([flag.reshape(len(flag), -1) != 0 for flag in flags], axis=1)
    return np.asarray(both.any(1))


def _rows(raw: RawTransitions, start: int, stop: int) -> RawTransitions:
    arrays = {name: array[start:stop] for name, array in raw.arrays.items()}
    return replace(raw, arrays=arrays, first_row=raw.first_row + start)


def _joined(pieces: Sequence[RawTransitions]) -> RawTransitions:
    if len(pieces) == 1:
        return pieces[0]
    names = pieces[0].arrays
    joined = {name: np.concatenate([raw.arrays[name] for raw in pieces]) for name in names}
    return replace(pieces[0], arrays=joined)


# --- Minari ----------------------------------------------------------------------------------


def _minari_pieces(dataset_id: str) -> Iterator[RawTransitions]:
    with opened_minari(dataset_id) as dataset:
        label = minari_label(dataset_id)
        minari_bytes(dataset, label)
        held: list[dict[str, NDArray[Any]]] = []
        first = rows = 0
        for episode in dataset.iterate_episodes():
            held.append(minari_episode(episode, label))
            rows += len(held[-1]["rewards"])
            if rows >= AT_ONCE:
                yield minari_raw(dataset, dataset_id, held, first)
                first, rows, held = first + rows, 0, []
        if held:
            yield minari_raw(dataset, dataset_id, held, first)


# --- tables ----------------------------------------------------------------------------------


def _table_pieces(
    source: DataSource, needs_rewards: bool, given: SpacesConfig | None
) -> Iterator[RawTransitions]:
    files, reader = opened_table(source, needs_rewards, given)
    kind, rows, seen = str(source.kind), 0, _Seen(reader)
    _find_labels(files, kind, reader)
    held: list[tuple[int, Any]] = []  # (number of the file, table)
    for number, file in enumerate(files):
        for table in batches(file, kind, reader.wanted, AT_ONCE, _fractions(reader)):
            for cut in _cuts(reader, held[-1][1] if held else None, table, rows):
                head = [*held, (number, table.slice(0, cut))]
                held, table = [], table.slice(cut)
                piece = _read(reader, head, rows)
                seen.check(piece, head)
                rows += sum(part.num_rows for _, part in head)
                yield piece
            if table.num_rows:
                held.append((number, table))
            _refuse_endless(reader.label, sum(part.num_rows for _, part in held), rows)
    if held:
        piece = _read(reader, held, rows)
        seen.check(piece, held)
        yield piece
    elif not rows:
        raise DataError(f"{reader.label}: the table has no rows; give at least one")


def _fractions(reader: TableReader) -> list[str]:
    """Columns in which whole numbers at the beginning may be followed by fractions."""
    names = ("observations", "next_observations", "rewards")
    return [column for name in names for column in reader.columns.get(name, ())]


def _cuts(reader: TableReader, before: Any, table: Any, first_row: int) -> list[int]:
    """Where the rows so far are whole episodes: nowhere, or before one row of the table."""
    columns = Columns(table, reader.label, reader.source.categories, first_row)
    if not table.num_rows:
        return []
    if reader.episode is not None:
        values = columns.labels_or_numbers(reader.episode)
        changes = np.flatnonzero(values[1:] != values[:-1])
        if len(changes):
            return [int(changes[-1]) + 1]
        if before is None or not before.num_rows:
            return []
        last = Columns(before.slice(before.num_rows - 1), reader.label, columns.categories)
        return [0] if last.labels_or_numbers(reader.episode)[0] != values[0] else []
    ended = np.zeros(table.num_rows, np.bool_)
    for name in ("terminations", "truncations", "dones"):
        for column in reader.columns.get(name, ()):
            ended |= columns.numbers(column).reshape(table.num_rows, -1).any(1)
    ends = np.flatnonzero(ended)
    return [int(ends[-1]) + 1] if len(ends) else []


def _read(reader: TableReader, parts: Sequence[tuple[int, Any]], first_row: int) -> RawTransitions:
    tables = [table for _, table in parts if table.num_rows]
    with damage(f"{reader.label}: its files have different columns; give files of one table"):
        whole = arrow().concat_tables(tables, promote_options="permissive")
    files = [number for number, _ in parts]
    counts = [sum(t.num_rows for n, t in parts if n == number) for number in dict.fromkeys(files)]
    return reader.read(whole, counts, first_row)


class _Seen:
    """Episodes that were read: none of them may come again."""

    def __init__(self, reader: TableReader) -> None:
        self._reader = reader
        self._episodes: set[Any] = set()

    def check(self, piece: RawTransitions, parts: Sequence[tuple[int, Any]]) -> None:
        column = self._reader.episode
        if column is None:
            return
        new: set[Any] = set()
        for _, table in parts:
            if table.num_rows:
                read = Columns(table, piece.label, self._reader.source.categories)
                values = read.labels_or_numbers(column)
                begins = np.append(True, values[1:] != values[:-1])
                new.update(values[begins].tolist())
        again = new & self._episodes
        if again:
            raise DataError(
                f"{piece.label}: the rows of episode {min(again, key=str)} are not "
                "consecutive, and the log is too large to be sorted in memory; sort its files by "
                f"'{column}'{'' if self._reader.order is None else f' and {self._reader.order!r}'}"
            )
        self._episodes |= new


def _find_labels(files: Sequence[Path], kind: str, reader: TableReader) -> None:
    """Read the columns of categories alone, because every piece needs all of their names."""
    for file in files:
        empty = next(batches(file, kind, reader.wanted, 1), None)
        if empty is None:
            continue
        columns = Columns(empty, reader.label, reader.source.categories)
        named = reader.columns["observations"]
        sought = [c for c in named if columns.is_category(c) and c not in reader.known_labels]
        action = reader.columns["actions"]
        if len(action) == 1 and columns.is_category(action[0]) and not reader.action_labels:
            sought.append(action[0])
        if sought:
            found = _labels(files, kind, sought, reader.label)
            for column, names in found.items():
                if column not in reader.source.categories:
                    refuse_text_among_numbers(reader.label, column, names)
            labels = {column: tuple(sorted(names)) for column, names in found.items()}
            if action[0] in labels and action[0] not in named:
                reader.action_labels = labels.pop(action[0])
            reader.known_labels.update(labels)
        return


def _labels(
    files: Sequence[Path], kind: str, sought: Sequence[str], label: str
) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {column: set() for column in sought}
    for file in files:
        for table in batches(file, kind, lambda _: list(sought), AT_ONCE):
            for column, names in found.items():
                names.update(str(x) for x in table.column(column).unique().to_pylist())
                if len(names) > MOST_CATEGORIES:
                    raise DataError(
                        f"{label}: column '{column}' holds more than {MOST_CATEGORIES:,} different "
                        "texts, too many for categories; leave it out, or sort them into fewer"
                    )
    return found
