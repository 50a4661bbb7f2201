"""Opening tables: Parquet and CSV files by path, folder or pattern, and data frames.

Everything becomes a table of Arrow; `tables` makes transitions of it.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np

from rl_training.data.files import damage, optional_module
from rl_training.experiment.data_config import FILE_KINDS
from rl_training.experiment.errors import DataError, did_you_mean
from rl_training.experiment.memory import require_data_memory

Chooser = Callable[[Sequence[str]], list[str]]
"""Maps the columns of a table to those that are needed."""


class Frame(Protocol):
    """A data frame of pandas or Polars, or a table of Arrow."""

    @property
    def columns(self) -> Any: ...


def is_frame(source: object) -> TypeGuard[Frame]:
    """Whether an object is a data frame of pandas or Polars, or a table of Arrow."""
    kind = type(source)
    return kind.__name__ in ("DataFrame", "Table") and kind.__module__.partition(".")[0] in (
        "pandas",
        "polars",
        "pyarrow",
    )


def arrow() -> Any:
    """The package pyarrow."""
    return optional_module("pyarrow", "tables", "reading a table")


def open_frame(frame: Any, label: str) -> Any:
    """A data frame as a table of Arrow."""
    pa = arrow()
    with damage(f"{label}: it cannot be read as a table; give columns of one type each"):
        if isinstance(frame, pa.Table):
            return frame
        if hasattr(frame, "to_arrow"):
            return frame.to_arrow()
        return pa.Table.from_pandas(frame, preserve_index=False)


def open_files(files: Sequence[Path], kind: str, wanted: Chooser) -> tuple[Any, list[int]]:
    """The wanted columns of some files in one table, and the number of rows of each file."""
    tables = [_read_file(file, kind, wanted) for file in files]
    with damage(f"'{files[0].parent}': they have different columns; give files of one table"):
        whole = arrow().concat_tables(tables, promote_options="permissive")
    return whole, [table.num_rows for table in tables]


def table_files(path: str, kind: str, below: str = "") -> list[Path]:
    """The files that a path means, in the order of their names: one, those of a folder, or of the
    folder `below` in it, or those of a pattern."""
    place = Path(path)
    if place.is_dir():
        folder = place / below
        suffixes = [suffix for suffix, of in FILE_KINDS.items() if of == kind]
        found = sorted(f for suffix in suffixes for f in folder.rglob(f"*{suffix}"))
        if not found:
            raise DataError(f"folder '{folder}' has no {kind} file; correct dataset.path")
        return found
    if any(character in path for character in "*?["):
        found = sorted(Path(file) for file in glob.glob(path, recursive=True))
        if not found:
            raise DataError(f"no file matches '{path}'; correct dataset.path")
        return found
    if not place.exists():
        beside = [p.name for p in place.parent.iterdir()] if place.parent.is_dir() else []
        raise DataError(
            f"{kind} file '{path}' does not exist{did_you_mean(place.name, beside)}; correct the "
            "path (dataset.path in a config)"
        )
    return [place]


def file_columns(path: Path) -> dict[str, Any]:
    """All columns of a file as arrays, whatever they hold."""
    table = _read_file(path, FILE_KINDS[path.suffix.lower()], list)
    pairs = zip(table.column_names, table.columns, strict=True)  # a name may occur twice
    return {name: column.to_numpy() for name, column in pairs}


def write_table(
    arrays: Mapping[str, Any], file: Path, kind: str, metadata: dict[bytes, bytes] | None = None
) -> None:
    """A table with a column per array; a wide array is a column of lists in Parquet, and several
    columns that are numbered in CSV."""
    pa = optional_module("pyarrow", "tables", "writing a table")
    columns: dict[str, Any] = {}
    for name, array in arrays.items():
        wide = array.reshape(len(array), math.prod(array.shape[1:]))
        if array.ndim == 1:
            columns[name] = array
        elif kind == "parquet":
            flat = pa.array(np.ascontiguousarray(wide).reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, wide.shape[1])
        else:
            columns |= {f"{name}_{i}": wide[:, i] for i in range(wide.shape[1])}
    table = pa.table(columns).replace_schema_metadata(metadata)
    if kind == "parquet":
        optional_module("pyarrow.parquet", "tables", "writing a table").write_table(table, file)
    else:
        optional_module("pyarrow.csv", "tables", "writing a table").write_csv(table, file)


def _schema(file: Path, kind: str) -> Any:
    with damage(f"'{file}' is not a {kind} file, or is damaged; write it again"):
        if kind == "parquet":
            return optional_module("pyarrow.parquet", "tables", "reading a table").read_schema(file)
        csv = optional_module("pyarrow.csv", "tables", "reading a table")
        with csv.open_csv(file) as opened:
            return opened.schema


def batches(
    file: Path, kind: str, wanted: Chooser, rows: int, as_float: Sequence[str] = ()
) -> Iterator[Any]:
    """The wanted columns of a file as tables of some rows each; the whole is never in memory.

    The types of a CSV file are those of its beginning; whole numbers in the columns `as_float`
    may have fractions later on.
    """
    schema = _schema(file, kind)
    columns = wanted(list(schema.names))
    pa = arrow()
    with damage(f"'{file}' is damaged, or mixes types in a column; write it again"):
        if kind == "parquet":
            parquet = optional_module("pyarrow.parquet", "tables", "reading a table")
            with parquet.ParquetFile(file, memory_map=True) as opened:
                for batch in opened.iter_batches(rows, columns=columns, use_threads=False):
                    yield pa.Table.from_batches([batch])
            return
        csv = optional_module("pyarrow.csv", "tables", "reading a table")
        wide = {c: pa.float64() for c in as_float if pa.types.is_integer(schema.field(c).type)}
        options = csv.ConvertOptions(include_columns=columns, column_types=wide)
        with csv.open_csv(file, convert_options=options) as opened:
            for batch in opened:
                yield pa.Table.from_batches([batch])


def stored_bytes(files: Sequence[Path], kind: str) -> int:
    """About how much memory the columns of some files take."""
    if kind == "csv":
        return sum(file.stat().st_size for file in files)
    metadata = _metadata(files)
    groups = [m.row_group(i) for m in metadata for i in range(m.num_row_groups)]
    return sum(int(group.total_byte_size) for group in groups)


def stored_rows(files: Sequence[Path]) -> int:
    """The number of rows of Parquet files."""
    return sum(int(metadata.num_rows) for metadata in _metadata(files))


def _metadata(files: Sequence[Path]) -> list[Any]:
    parquet = optional_module("pyarrow.parquet", "tables", "reading a table")
    with damage(f"'{files[0]}' is not a parquet file, or is damaged; write it again"):
        return [parquet.read_metadata(file) for file in files]


def _read_file(file: Path, kind: str, wanted: Chooser) -> Any:
    columns = wanted(list(_schema(file, kind).names))
    with damage(f"'{file}' is damaged, or mixes types in a column; write it again"):
        if kind == "parquet":
            parquet = optional_module("pyarrow.parquet", "tables", "reading a table")
            opened = parquet.ParquetFile(file)
            require_data_memory(f"'{file}'", 4 * opened.metadata.num_rows * len(columns))
            return opened.read(columns)
        csv = optional_module("pyarrow.csv", "tables", "reading a table")
        return csv.read_csv(file, convert_options=csv.ConvertOptions(include_columns=columns))
