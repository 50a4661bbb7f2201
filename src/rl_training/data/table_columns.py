"""One column of a table: its numbers, or the names it holds and which row has which."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.table_files import arrow
from rl_training.experiment.errors import DataError, did_you_mean

MOST_CATEGORIES = 10_000
"""More different texts than these are free text or keys, which no policy can learn from."""


def refuse_text_among_numbers(label: str, column: str, names: Collection[str]) -> None:
    """Refuse names most of which are numbers: the others are mistakes, unless the configuration
    calls the column one of categories."""
    texts = sorted(name for name in names if not _is_number(name))
    if texts and 2 * len(texts) <= len(names):
        raise DataError(
            f"{label}: column '{column}' holds text such as '{texts[0]}' among numbers; correct "
            "it, or name the column in dataset.categories if its values are names"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Columns:
    """The columns of a table of Arrow; `label` is how messages name it."""

    def __init__(
        self, table: Any, label: str, categories: Sequence[str], first_row: int = 0
    ) -> None:
        """`first_row` is the number of the first row of `table` in the whole."""
        self.table, self.label, self.categories = table, label, categories
        self.first_row = first_row

    def column(self, name: str) -> Any:
        """A column without gaps."""
        column = self.table.column(name)
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise DataError(
                f"{self.label}: column '{name}' has no value in row {row + self.first_row}; fill "
                "it in, or leave "
                "out the rows of that episode"
            )
        return column

    def is_category(self, name: str) -> bool:
        """Whether its values are names: text, or numbers that the configuration calls so."""
        types = arrow().types
        kind = self.table.column(name).type
        if types.is_dictionary(kind):
            kind = kind.value_type
        text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        return bool(text) or name in self.categories

    def codes(
        self, name: str, known: Sequence[str] | None
    ) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """Categories in the order of their names, or those `known`, and each row's number."""
        types, column = arrow().types, self.column(name)
        encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
        encoded = encoded.unify_dictionaries().combine_chunks()
        if isinstance(encoded, arrow().ChunkedArray):
            encoded = encoded.chunk(0)
        found = [str(value) for value in encoded.dictionary.to_pylist()]
        if len(found) > MOST_CATEGORIES:
            raise DataError(
                f"{self.label}: column '{name}' holds {len(found):,} different texts, too many for "
                "categories; leave it out, or sort them into fewer"
            )
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        used = sorted({found[i] for i in np.unique(indices)})
        if not known and name not in self.categories:
            refuse_text_among_numbers(self.label, name, used)
        labels = tuple(known) if known else tuple(used)
        unseen = [label for label in used if label not in labels]
        if unseen:
            row = int(np.flatnonzero(indices == found.index(unseen[0]))[0])
            raise DataError(
                f"{self.label}: column '{name}' has the category '{unseen[0]}' in row "
                f"{row + self.first_row}, which "
                f"dataset.spaces does not have{did_you_mean(unseen[0], labels)}; correct it, or "
                "start a new run"
            )
        position = {label: i for i, label in enumerate(labels)}
        return labels, np.asarray([position.get(label, 0) for label in found])[indices]

    def numbers(self, name: str) -> NDArray[Any]:
        """(N,) numbers of a column, or (N, width) of one that holds lists."""
        pa, column = arrow(), self.column(name)
        types, kind = pa.types, column.type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return self._lists(name, column)
        if types.is_decimal(kind):
            column = column.cast(pa.float64())
        elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            advice = "leave it out, or store numbers"
            if types.is_binary(kind) or types.is_large_binary(kind):
                advice = "store it uncompressed, as lists of numbers"
            raise DataError(
                f"{self.label}: column '{name}' holds {kind}, expected numbers; {advice}"
            )
        values: NDArray[Any] = column.to_numpy()
        return values

    def _lists(self, name: str, column: Any) -> NDArray[Any]:
        whole = column.combine_chunks()
        if isinstance(whole, arrow().ChunkedArray):
            whole = whole.chunk(0)
        types = arrow().types
        inner = whole.type.value_type
        if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
            raise DataError(
                f"{self.label}: column '{name}' holds lists of {inner}, expected lists of numbers; "
                "flatten it"
            )
        if types.is_fixed_size_list(whole.type):
            lengths = np.full(len(whole), whole.type.list_size)
        else:
            lengths = np.diff(whole.offsets.to_numpy())
        ragged = np.flatnonzero(lengths != lengths[0])
        if ragged.size:
            raise DataError(
                f"{self.label}: column '{name}' holds {lengths[ragged[0]]} numbers in row "
                f"{ragged[0] + self.first_row} and {lengths[0]} in row {self.first_row}; make all "
                "rows equally long"
            )
        flat = whole.flatten()
        if flat.null_count:
            row = int(
                np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0] // lengths[0]
            )
            raise DataError(
                f"{self.label}: column '{name}' lacks a number in row {row + self.first_row}; fill "
                "it in"
            )
        values: NDArray[Any] = flat.to_numpy(zero_copy_only=False).reshape(len(whole), -1)
        return values

    def scalar(self, name: str) -> NDArray[Any]:
        """(N,) numbers of a column."""
        values = self.numbers(name)
        if values.ndim != 1:
            raise DataError(
                f"{self.label}: column '{name}' holds lists and is one of several; name it alone"
            )
        return values

    def labels_or_numbers(self, name: str) -> NDArray[Any]:
        """A column that says which or whose, as whole numbers or text."""
        column = self.column(name)
        if self.is_category(name):
            labels, codes = self._codes_of_any(column)
            return np.asarray(labels)[codes]
        values = self.scalar(name)
        return values.astype(np.int64) if values.dtype.kind == "b" else values

    def _codes_of_any(self, column: Any) -> tuple[list[str], NDArray[np.int64]]:
        encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        if isinstance(encoded, arrow().ChunkedArray):
            encoded = encoded.chunk(0)
        labels = [str(value) for value in encoded.dictionary.to_pylist()]
        return labels, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
