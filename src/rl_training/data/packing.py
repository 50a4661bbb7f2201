"""Packing: a source is read in pieces, checked as every source is, and written row by row."""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.data.files import optional_module
from rl_training.data.inference import (
    ActionRange,
    action_range,
    layout_of_config,
    spaces_section,
    spaces_without_environment,
)
from rl_training.data.masks import check_masks, with_masks
from rl_training.data.observed import with_observations
from rl_training.data.pack_writer import PackWriter, new_folder
from rl_training.data.packed import Packed, SourceFile, open_packed, source_file
from rl_training.data.pieces import pieces_of
from rl_training.data.readers import minari_folder
from rl_training.data.table_files import stored_bytes, stored_rows
from rl_training.data.tables import files_of_table
from rl_training.data.validation import RawTransitions, build_dataset
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import DataSource, SpacesConfig
from rl_training.experiment.console import ProgressConsole
from rl_training.experiment.data_config import is_packed
from rl_training.experiment.errors import DataError, RLTrainingError
from rl_training.experiment.storage import cache_folder

STREAMED = ("npz", "hdf5", "minari", "parquet", "csv")
"""Kinds of sources that are read in pieces."""
KEYS_OF_CONTENT = ("kind", "group", "dones", "layout", "columns", "episode", "order", "categories")
"""Keys of a source that decide what its rows are."""

OnRows = Callable[[int], None]
"""Called with the number of rows that are written."""


class PackingProgress(ProgressConsole):
    """Shows how many rows are packed; called with their number. `total` is 0 if unknown."""

    def __init__(self, total: int, *, shown: bool = True) -> None:
        super().__init__()
        self._total_rows, self._shown = total, shown
        self._first_call = self._last_call = 0.0

    def __call__(self, rows: int) -> None:
        if not self._shown:
            return
        now = time.monotonic()
        if not self._first_call:
            self._first_call = self._last_call = now
            if self._total_rows:
                self.start("packing", self._total_rows, 0, "rows")
        if self._total_rows:
            self.advance(rows)
        elif now - self._last_call >= self.PLAIN_LINE_SECONDS:
            self._last_call = now
            self.say(f"packed {rows:,} rows, {rows / (now - self._first_call):,.0f}/s")


def pack(
    pieces: Iterator[RawTransitions],
    target: str | Path,
    *,
    spaces: Spaces | None = None,
    given: SpacesConfig | None = None,
    widen_constants: bool = True,
    sources: tuple[SourceFile, ...] = (),
    overwrite: bool = False,
    on_rows: OnRows | None = None,
) -> Packed:
    """Write pieces of a source as a folder of packed data and open it.

    Checks, notes and inferred spaces are those of `load_transition_dataset`. The folder appears
    whole or not at all.
    """
    first: RawTransitions | None = None
    seen: ActionRange | None = None
    infers = spaces is None and (given is None or given.actions is None)
    folder = Path(target)
    with new_folder(folder, overwrite) as draft, closing(PackWriter(draft)) as writer:
        for piece in pieces:
            raw = prepared(replace(piece, is_piece=True), spaces, given)
            found = [action_range(raw)] if infers and raw.spaces is None else None
            if found is not None:
                seen = found[0] if seen is None else seen.merged(found[0])
            own = spaces or spaces_without_environment([raw], given, ranges=found)[0]
            check_masks(raw, own)
            writer.append(build_dataset(raw, own))
            if on_rows is not None:
                on_rows(writer.rows)
            first = first or _head(raw)
        if first is None or not writer.rows:
            raise DataError(
                f"'{folder}': the source has no row with a successor; give at least one, or add "
                "next_observations"
            )
        note = None
        if spaces is None:
            ranges = None if seen is None else [seen]
            spaces, note = spaces_without_environment([first], given, widen_constants, ranges)
        writer.finish(first.name, spaces, () if note is None else (note,), sources)
    return open_packed(folder)


def prepared(
    raw: RawTransitions, spaces: Spaces | None, given: SpacesConfig | None
) -> RawTransitions:
    """A source whose observations, action masks included, are one array."""
    layout = None if given is None else layout_of_config(given)
    return with_masks(with_observations(raw, spaces, layout))


def _head(raw: RawTransitions) -> RawTransitions:
    """What is known of a source without most of its rows."""
    return replace(raw, arrays={name: array[:1] for name, array in raw.arrays.items()})


def files_of(part: DataSource) -> list[Path]:
    """The files that a source is read from."""
    if part.kind in ("parquet", "csv"):
        return files_of_table(part)
    if part.kind == "minari":
        return sorted(minari_folder(str(part.id)).rglob("*.hdf5"))
    return [Path(str(part.path))]


def existing_files(part: DataSource) -> list[Path]:
    """Those of its files that are there; a missing one is refused where it is read."""
    return [file for file in files_of(part) if file.is_file()]


def source_bytes(part: DataSource) -> int:
    """About how much memory the arrays of a source take; 0 where that is not known, or where the
    source is one that will be refused with its own sentence."""
    try:
        if part.kind in ("parquet", "csv"):
            return stored_bytes(files_of(part), str(part.kind))
        if part.kind == "npz":
            with zipfile.ZipFile(str(part.path)) as archive:
                return sum(entry.file_size for entry in archive.infolist())
        if part.kind in ("hdf5", "minari"):
            return sum(_hdf5_bytes(file) for file in files_of(part))
    except Exception:  # noqa: BLE001  (damage makes libraries fail in many ways)
        pass
    return 0


def source_rows(part: DataSource) -> int:
    """How many rows a source has; 0 where only reading it would tell."""
    if part.kind != "parquet":
        return 0
    try:
        return stored_rows(files_of(part))
    except (OSError, RLTrainingError):
        return 0


def _hdf5_bytes(path: Path) -> int:
    h5py = optional_module("h5py", "hdf5", "reading an hdf5 file")
    sizes: list[int] = []
    with h5py.File(path, "r") as file:
        file.visititems(lambda _, item: sizes.append(int(getattr(item, "nbytes", 0))))
    return sum(sizes)


def packed_copy(
    part: DataSource,
    needs_rewards: bool,
    given: SpacesConfig | None,
    spaces: Spaces | None,
    on_rows: OnRows | None = None,
) -> tuple[Packed, bool]:
    """The packed copy of a source in the cache, and whether it was made now; a source that has
    changed is packed anew."""
    cache = cache_folder()
    if cache is None:
        raise DataError(
            "dataset.home: there is no folder for packed data; set RL_TRAINING_CACHE to one, or "
            "pack the data with 'rl-training data pack'"
        )
    sources = tuple(source_file(file) for file in existing_files(part))
    described: Mapping[str, Any] = {
        "source": {key: part.model_dump(mode="json")[key] for key in KEYS_OF_CONTENT},
        "files": [source.model_dump() for source in sources],
        "needs_rewards": needs_rewards,
        "given": None if given is None else given.model_dump(mode="json"),
        "spaces": None if spaces is None else spaces_section(spaces),
    }
    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / "packed" / key
    if is_packed(folder):
        return open_packed(folder), False
    pieces = pieces_of(part, needs_rewards, given)
    packed = pack(pieces, folder, spaces=spaces, given=given, sources=sources, on_rows=on_rows)
    return packed, True
