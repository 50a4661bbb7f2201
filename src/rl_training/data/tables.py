"""Logs in tables: Parquet and CSV files, data frames.

A table has a row per step and a column per quantity. Rows may lie in any order where a column says
which episode they belong to and another when they happened; text, and numbers that are names, are
categories, which the layout of the observations records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import ARRAY_NAMES, GROUPS
from rl_training.data.keys import ALIASES, DONES, MASK, NEXT_MASK
from rl_training.data.table_columns import Columns
from rl_training.data.table_files import open_files, open_frame, table_files
from rl_training.data.validation import RawTransitions
from rl_training.envs.layout import Layout, Part
from rl_training.experiment.config import DataSource, SpacesConfig, TableColumns
from rl_training.experiment.errors import DataError, did_you_mean


@dataclass(frozen=True)
class Preset:
    """How another library names its columns."""

    columns: TableColumns
    episode: str
    order: str | None
    folder: str = ""  # of the files, in the folder that is given


PRESETS = {
    "rllib": Preset(
        TableColumns(
            observations=("obs",),
            actions=("actions",),
            rewards="rewards",
            next_observations=("new_obs",),
            terminations="terminateds",
            truncations="truncateds",
        ),
        episode="eps_id",
        order="t",
    ),
    "lerobot": Preset(
        TableColumns(
            observations=("observation.state",),
            actions=("action",),
            rewards="next.reward",
            dones="next.done",
        ),
        episode="episode_index",
        order="frame_index",
        folder="data",
    ),
}
OPTIONAL = {"rllib": ("new_obs", "truncateds", "t"), "lerobot": ("next.reward", "next.done")}
"""Columns of a preset that not every table has."""


def read_frame(
    frame: Any, source: DataSource, needs_rewards: bool, given: SpacesConfig | None
) -> RawTransitions:
    """A data frame, by the keys that a configuration has for tables."""
    label = f"{type(frame).__module__.partition('.')[0]} table"
    table = open_frame(frame, label)
    return TableReader(source, label, needs_rewards, given).read(table, [table.num_rows])


def read_table(
    source: DataSource, needs_rewards: bool, given: SpacesConfig | None
) -> RawTransitions:
    """The files that `source.path` means: one, those of a folder, or those of a pattern."""
    files, reader = opened_table(source, needs_rewards, given)
    return reader.read(*open_files(files, str(source.kind), reader.wanted))


def files_of_table(source: DataSource) -> list[Path]:
    """The files of a table in the order of their names."""
    preset = PRESETS.get(source.layout or "")
    return table_files(str(source.path), str(source.kind), preset.folder if preset else "")


def opened_table(
    source: DataSource, needs_rewards: bool, given: SpacesConfig | None
) -> tuple[list[Path], TableReader]:
    """The files of a table, and what makes transitions of their rows."""
    files = files_of_table(source)
    label = f"{source.kind} file '{files[0]}'" if len(files) == 1 else f"'{source.path}'"
    return files, TableReader(source, label, needs_rewards, given)


def numbered_columns(name: str, present: Sequence[str]) -> tuple[str, ...]:
    """The columns `name`_0, `name`_1 and so on, as a conversion to CSV writes them."""
    found: list[str] = []
    while f"{name}_{len(found)}" in present:
        found.append(f"{name}_{len(found)}")
    return tuple(found)


def _ranks(values: NDArray[Any]) -> NDArray[np.int64]:
    """The number of each row's episode, counted in the order of their first rows."""
    begins = np.append(True, values[1:] != values[:-1])
    runs = values[begins]  # far fewer than rows, where episodes lie together
    _, first, episode = np.unique(runs, return_index=True, return_inverse=True)
    of_runs = np.argsort(np.argsort(first))[episode]
    ranks: NDArray[np.int64] = of_runs[np.cumsum(begins) - 1]
    return ranks


def _last_rows(rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the episode of the next row is another one, and the last row."""
    return np.flatnonzero(np.append(np.diff(rank) != 0, True))


class TableReader:
    """One table on its way to transitions; `label` is how messages name it."""

    def __init__(
        self, source: DataSource, label: str, needs_rewards: bool, given: SpacesConfig | None
    ) -> None:
        self.source, self.label, self.needs_rewards = source, label, needs_rewards
        preset = PRESETS.get(source.layout or "")
        own = source.columns.chosen()
        self.columns = {**(preset.columns.chosen() if preset else {}), **own}
        self.episode = source.episode or (preset.episode if preset else None)
        self.order = source.order or (preset.order if preset else None)
        self.optional = OPTIONAL.get(source.layout or "", ())
        self.named = {column for columns in own.values() for column in columns}
        layout = given.layout if given is not None else None
        self.known_labels = {
            str(part.path[-1]): part.labels for part in layout or () if part.labels
        }
        labels = given.actions.labels if given is not None and given.actions else None
        self.action_labels: tuple[str, ...] = labels or ()
        self.box_actions = given is not None and given.actions and given.actions.kind == "box"

    # --- which columns ------------------------------------------------------------------------

    def wanted(self, present: Sequence[str]) -> list[str]:
        """The columns to read, checked to be there; those with a usual name are found."""
        repeated = sorted({name for name in present if list(present).count(name) > 1})
        if repeated:
            raise DataError(f"{self.label}: there are two columns '{repeated[0]}'; rename one")
        for name in (*ARRAY_NAMES, MASK, NEXT_MASK):
            usual = [key for key in (name, *ALIASES.get(name, ())) if key in present]
            numbered = numbered_columns(name, present)
            if name not in self.columns and self.source.layout is None and (usual or numbered):
                self.columns[name] = (usual[0],) if usual else numbered
        dones = [key for key in DONES if key in present]
        flagged = {"terminations", "truncations", "dones"} & set(self.columns)
        if dones and not flagged and self.source.layout is None:
            self.columns["dones"] = (dones[0],)
        for column in self.optional:
            if column not in present and column not in self.named:
                self.columns = {k: v for k, v in self.columns.items() if column not in v}
                self.order = None if self.order == column else self.order
        group = self.source.group or (GROUPS if GROUPS in present else None)
        if group is not None:
            self.columns[GROUPS] = (group,)
        needed = ["observations", "actions", *(["rewards"] if self.needs_rewards else [])]
        for name in needed:
            if name not in self.columns:
                raise DataError(
                    f"{self.label}: no column is called {name}; name "
                    f"{'them' if name != 'rewards' else 'it'} with dataset.columns.{name}, present "
                    f"are {', '.join(present)}"
                )
        extra = {"episode": self.episode, "order": self.order}
        keys = {f"columns.{name}": columns for name, columns in self.columns.items()}
        keys |= {key: (column,) for key, column in extra.items() if column is not None}
        for key, columns in keys.items():
            for column in columns:
                if column not in present:
                    hint = did_you_mean(column, present)
                    raise DataError(
                        f"{self.label}: there is no column '{column}'{hint}, which dataset.{key} "
                        f"names; present are {', '.join(present)}"
                    )
        for column in self.source.categories:
            if column not in present:
                raise DataError(
                    f"{self.label}: there is no column '{column}'{did_you_mean(column, present)}, "
                    "which dataset.categories names"
                )
        return list(dict.fromkeys(column for columns in keys.values() for column in columns))

    def wanted_with(self, name: str, present: Sequence[str]) -> list[str]:
        """The columns to read for `column`."""
        columns = (name,) if name in present else numbered_columns(name, present)
        if not columns:
            raise DataError(
                f"{self.label}: there is no column '{name}'{did_you_mean(name, present)}; present "
                f"are {', '.join(present)}"
            )
        return list(dict.fromkeys((*self.wanted(present), *columns)))

    def column(self, name: str, table: Any, rows_of_files: Sequence[int]) -> NDArray[Any]:
        """The numbers of a column that is no part of the transitions, or of those that are
        numbered, in the order of `read`."""
        present = table.column_names
        self.at = Columns(table, self.label, self.source.categories, 0)
        order, _ = self._sorted(rows_of_files)
        values = self._together((name,) if name in present else numbered_columns(name, present))
        return values if order is None else values[order]

    # --- the whole ----------------------------------------------------------------------------

    def read(self, table: Any, rows_of_files: Sequence[int], first_row: int = 0) -> RawTransitions:
        """The rows of a table, which are `first_row` and those after it of a larger one."""
        table = table.select(self.wanted(table.column_names))
        self.at = Columns(table, self.label, self.source.categories, first_row)
        if not table.num_rows:
            raise DataError(f"{self.label}: the table has no rows; give at least one")
        self.notes: list[str] = []
        order, ends = self._sorted(rows_of_files)
        parts = [self._part(column) for column in self.columns["observations"]]
        layout = Layout(tuple(part for part, _ in parts))
        arrays = {"observations": np.concatenate([values for _, values in parts], 1)}
        if "next_observations" in self.columns:
            arrays["next_observations"] = self._following(layout)
        arrays["actions"] = self._actions()
        for name in (MASK, NEXT_MASK):
            if name in self.columns:
                arrays[name] = self._together(self.columns[name])
        if "rewards" in self.columns:
            arrays["rewards"] = self.at.numbers(self.columns["rewards"][0])
        arrays |= self._flags(order, ends)
        if GROUPS in self.columns:
            arrays[GROUPS] = self.at.labels_or_numbers(self.columns[GROUPS][0])
        if order is not None:
            arrays = {
                name: array if name in ("terminations", "truncations") else array[order]
                for name, array in arrays.items()
            }
        keys = {name: ", ".join(columns) for name, columns in self.columns.items()}
        return RawTransitions(
            label=self.label,
            name=str(self.source.path or self.label),
            arrays=arrays,
            keys=keys,
            notes=tuple(self.notes),
            episode_ends=ends,
            layout=layout,
            action_labels=self.action_labels,
            first_row=first_row,
        )

    def _sorted(
        self, rows_of_files: Sequence[int]
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        """Rows in time order, None for the order they have, and the last row of every episode."""
        if self.episode is None:
            if self.order is not None:
                raise DataError(
                    f"{self.label}: dataset.order sorts the rows of an episode; name the column "
                    "that says which episode they belong to with dataset.episode"
                )
            return None, None
        values = self.at.labels_or_numbers(self.episode)
        rank = _ranks(values)
        order = None
        if self.order is not None:
            when = self.at.numbers(self.order)
            step = np.diff(rank)
            in_order = bool(((step > 0) | ((step == 0) & (np.diff(when) > 0))).all())
            if in_order:
                return None, _last_rows(rank)
            order = np.lexsort((when, rank))
            same = np.flatnonzero((np.diff(rank[order]) == 0) & (np.diff(when[order]) == 0))
            if same.size:
                row = order[same[0]]
                raise DataError(
                    f"{self.label}: two rows of episode {values[row]} have the same "
                    f"'{self.order}', {when[row]:g}; remove one, or order by another column"
                )
            rank = rank[order]
        else:
            self._refuse_scattered(values, rank, rows_of_files)
        return order, _last_rows(rank)

    def _refuse_scattered(
        self, values: NDArray[Any], rank: NDArray[np.int64], rows_of_files: Sequence[int]
    ) -> None:
        back = np.flatnonzero(np.diff(rank) < 0)
        if back.size:
            raise DataError(
                f"{self.label}: the rows of episode {values[back[0] + 1]} are not "
                "consecutive; name "
                "the column by which they are sorted with dataset.order"
            )
        seams = np.cumsum(rows_of_files)[:-1]
        across = [seam for seam in seams if 0 < seam < len(rank) and rank[seam] == rank[seam - 1]]
        if across:
            raise DataError(
                f"{self.label}: episode {values[across[0]]} spans two files, whose order is not "
                "known; name the column by which its rows are sorted with dataset.order"
            )

    def _flags(
        self, order: NDArray[np.int64] | None, ends: NDArray[np.int64] | None
    ) -> dict[str, NDArray[Any]]:
        """Terminations and truncations, in time order."""
        count, meaning = self.at.table.num_rows, self.source.dones
        flags = {name: np.zeros(count, np.bool_) for name in ("terminations", "truncations")}
        known = [name for name in flags if name in self.columns]
        for name in known:
            flags[name] = self.at.numbers(self.columns[name][0])
        if not known:
            done = np.zeros(count, np.bool_)
            if "dones" in self.columns:
                column = self.columns["dones"][0]
                done, what = self.at.numbers(column), f"column '{column}'"
            elif ends is not None:
                order_back = np.arange(count) if order is None else order
                done[order_back[ends]] = True
                what = "the last row of an episode"
            else:
                raise DataError(
                    f"{self.label}: nothing says where episodes end; name the column of the "
                    "episodes with dataset.episode, or dataset.columns.terminations"
                )
            if meaning is None and self.needs_rewards:
                raise DataError(
                    f"{self.label}: {what} does not say whether the task ended there or the "
                    "episode was cut; set dataset.dones to terminated or truncated"
                )
            flags["truncations" if meaning == "truncated" else "terminations"] = done
        if order is not None:
            flags = {name: array[order] for name, array in flags.items()}
        if ends is not None:
            inside = (flags["terminations"] != 0) | (flags["truncations"] != 0)
            inside[ends] = False
            if inside.any():
                raise DataError(
                    f"{self.label}: row {int(np.flatnonzero(inside)[0]) + self.at.first_row} of "
                    "the sorted table ends "
                    f"an episode, but column '{self.episode}' goes on; correct one of them"
                )
        return {name: np.asarray(array) for name, array in flags.items()}

    # --- observations and actions ---------------------------------------------------------------

    def _part(self, name: str) -> tuple[Part, NDArray[np.float32]]:
        """A column of an observation, and its (N, width) numbers."""
        if not self.at.is_category(name):
            values = self.at.numbers(name)
            part = Part((name,), values.shape[1:])
            with np.errstate(over="ignore"):
                return part, values.reshape(len(values), -1).astype(np.float32)
        labels, codes = self.at.codes(name, self.known_labels.get(name))
        plain = Part((name,), (), (len(labels),), (0,))
        self.known_labels[name] = labels
        return Part((name,), (), plain.choices, (), labels), plain.encode(codes, self.label)

    def _following(self, layout: Layout) -> NDArray[np.float32]:
        columns = self.columns["next_observations"]
        if len(columns) != len(layout.parts):
            raise DataError(
                f"{self.label}: dataset.columns.next_observations names {len(columns)} columns and "
                f"observations {len(layout.parts)}; give as many, in the same order"
            )
        found = []
        for name, part in zip(columns, layout.parts, strict=True):
            if part.labels:
                _, codes = self.at.codes(name, part.labels)
                plain = Part(part.path, (), part.choices, (0,))
                found.append(plain.encode(codes, self.label))
            else:
                values = self.at.numbers(name)
                if values.shape[1:] != part.shape:
                    raise DataError(
                        f"{self.label}: column '{name}' holds numbers of the shape "
                        f"{values.shape[1:]}, unlike '{part.name}', which has {part.shape}"
                    )
                found.append(values.reshape(len(values), -1).astype(np.float32))
        return np.concatenate(found, 1)

    def _actions(self) -> NDArray[Any]:
        columns = self.columns["actions"]
        if len(columns) == 1:
            name = columns[0]
            if self.at.is_category(name):
                self.action_labels, codes = self.at.codes(name, self.action_labels or None)
                return codes
            values = self.at.numbers(name)
            # one column of numbers with a fraction is a Box action of one component
            return values[:, None] if values.ndim == 1 and values.dtype.kind == "f" else values
        parts = self._together(columns)
        # columns of whole numbers alone are choices, unless the configuration says otherwise
        whole = parts.dtype.kind in "iub" and not self.box_actions
        return parts.astype(np.int64 if whole else np.float32)

    def _together(self, columns: Sequence[str]) -> NDArray[Any]:
        """(N, width) numbers of one column of lists, or of several columns."""
        if len(columns) == 1:
            return self.at.numbers(columns[0])
        return np.stack([self.at.scalar(name) for name in columns], 1)
