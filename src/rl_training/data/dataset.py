"""Transitions in time order, on the host."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.disk_rows import DiskRows
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError
from rl_training.experiment.memory import require_data_memory

ARRAY_NAMES = (
    "observations",
    "actions",
    "rewards",
    "next_observations",
    "terminations",
    "truncations",
)
"""Names of the arrays of a data set, everywhere in the package."""
GROUPS = "groups"
"""Name of the optional array that says whom an episode belongs to."""
AT_ONCE = 1 << 16
"""Rows that are read and computed together, where all are."""
MOST_BYTES_AT_ONCE = 1 << 28
"""Of rows that are read together: images are many bytes each."""
WIDE = ("observations", "actions", "next_observations")
"""Arrays that stay on disk where a data set is packed; the others have one number per row."""


def rows_at_once(array: Any) -> int:
    """Rows of an array, or of one like it, that are read and computed together."""
    width = max(math.prod(array.shape[1:]) * int(array.dtype.itemsize), 1)
    return int(max(min(AT_ONCE, MOST_BYTES_AT_ONCE // width), 1))


def episode_end_flags(terminations: NDArray[Any], truncations: NDArray[Any]) -> NDArray[np.bool_]:
    """True on the last row of every episode, however it ended."""
    flags: NDArray[np.bool_] = np.logical_or(terminations, truncations)
    return flags


@dataclass(frozen=True, eq=False)
class TransitionDataset:
    """N transitions, episode after episode, every episode closed by a flag.

    Built by `load_transition_dataset`, which validates; treat the arrays as read-only,
    since a data set may share them with the one it was made from.

    Of a packed data set the `WIDE` arrays are `DiskRows`, which index as arrays do; code that
    needs more of an array takes the data set `in_memory`.
    """

    observations: NDArray[Any]  # (N, O) float32, or images as `Spaces` has them, (N, ...) uint8
    actions: NDArray[Any]  # in the environment's units: (N, A) float32; (N,) or (N, A) int64
    rewards: NDArray[np.float32]  # (N,); NaN throughout without `has_rewards`
    next_observations: NDArray[Any]  # as observations; a placeholder where terminated
    terminations: NDArray[np.bool_]  # (N,) the task ended: nothing follows
    truncations: NDArray[np.bool_]  # (N,) the episode was cut: something would follow
    name: str
    spaces: Spaces
    parts: tuple[tuple[int, float], ...] = ()
    """(number of rows, weight) of each part of a mix, in row order; one part otherwise."""
    notes: tuple[str, ...] = ()
    """Assumptions and corrections of the loader, one sentence each."""
    has_whole_episode: bool = True
    """False where a source marked no episode end at all, so its returns mean nothing."""
    env_id: str | None = None
    """Environment the data were made in or for, where known."""
    has_rewards: bool = True
    """False where a source, or one of those mixed, has none: demonstrations need none."""
    groups: NDArray[Any] | None = None
    """(N,) group of each row's episode, such as a patient or a user, if the source has groups."""
    held_out: TransitionDataset | None = None
    """Episodes that were set aside, on which policies are measured."""
    stamp: str | None = None
    """Of data on disk: what stands for their contents, which are not read for a fingerprint."""
    statistics: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    """Mean and standard deviation of the observations, if they are stored with the data."""

    def __post_init__(self) -> None:
        if not self.parts:
            object.__setattr__(self, "parts", ((len(self), 1.0),))
        if not self.has_rewards:
            object.__setattr__(self, "rewards", np.full(len(self), np.nan, np.float32))

    def __len__(self) -> int:
        return int(self.rewards.shape[0])

    @cached_property
    def episode_ends(self) -> NDArray[np.int64]:
        """Index of the last row of every episode."""
        return np.flatnonzero(episode_end_flags(self.terminations, self.truncations))

    @cached_property
    def episode_starts(self) -> NDArray[np.int64]:
        """Index of the first row of every episode."""
        return np.concatenate([np.zeros(1, np.int64), self.episode_ends[:-1] + 1])

    @property
    def num_episodes(self) -> int:
        return int(self.episode_ends.shape[0])

    def episode_returns(self) -> NDArray[np.float64]:
        """Undiscounted sum of rewards of every episode."""
        self.require_rewards()
        sums: NDArray[np.float64] = np.add.reduceat(
            self.rewards.astype(np.float64), self.episode_starts
        )
        return sums

    def episode_lengths(self) -> NDArray[np.int64]:
        """Number of rows of every episode."""
        return self.episode_ends - self.episode_starts + 1

    def require_rewards(self) -> None:
        """Refuse data without rewards."""
        if not self.has_rewards:
            raise DataError(
                f"data set '{self.name}' has no rewards, which only cloning and imitation can do "
                "without ('rl-training data inspect' lists the algorithms); add the array 'rewards'"
            )

    @property
    def on_disk(self) -> bool:
        """Whether the `WIDE` arrays are `DiskRows`."""
        return isinstance(self.observations, DiskRows)

    def in_memory(self) -> TransitionDataset:
        """The data set with arrays that NumPy computes with; itself where it has such."""
        if not self.on_disk:
            return self
        size = sum(int(getattr(self, name).nbytes) for name in WIDE)
        require_data_memory(f"data set '{self.name}'", size)
        held_out = None if self.held_out is None else self.held_out.in_memory()
        arrays: dict[str, Any] = {name: np.asarray(getattr(self, name)) for name in WIDE}
        return replace(self, **arrays, held_out=held_out, stamp=self.fingerprint())

    def expect_random_access(self) -> None:
        """Let the system read of data on disk only what is asked for, not what lies beside."""
        for name in WIDE:
            array: Any = getattr(self, name)
            if isinstance(array, DiskRows):
                array.expect_random_access()

    def release_pages(self) -> None:
        """Give the pages of large data on disk that were read back to the system."""
        seen: Any = self.observations  # of the same file as the other wide arrays
        if isinstance(seen, DiskRows):
            seen.release_pages()

    def restamped(self, what: bytes) -> str | None:
        """The stamp of these data after a change that `what` describes."""
        return None if self.stamp is None else _digest(self.stamp.encode(), what)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The six arrays by name, not copied."""
        return {name: getattr(self, name) for name in ARRAY_NAMES}

    def known_arrays(self) -> dict[str, NDArray[Any]]:
        """Those of the six that say something, no rewards where there are none; and the groups."""
        unknown = () if self.has_rewards else ("rewards",)
        groups = {} if self.groups is None else {GROUPS: self.groups}
        known = {name: array for name, array in self.to_arrays().items() if name not in unknown}
        return known | groups

    def fingerprint(self) -> str:
        """16 hex digits that change when any array or the mixing weights change."""
        return self._fingerprint

    def episode_groups(self) -> NDArray[Any]:
        """The group of every episode; without groups each episode is its own."""
        if self.groups is None:
            return np.arange(self.num_episodes)
        return self.groups[self.episode_starts]

    @cached_property
    def _fingerprint(self) -> str:
        if self.stamp is not None:
            if self.held_out is None and len(self.parts) == 1:
                return self.stamp
            other = "" if self.held_out is None else self.held_out.fingerprint()
            return _digest(self.stamp.encode(), repr(self.parts).encode(), other.encode())
        digest = hashlib.sha256(repr(self.parts).encode())
        for name, array in self.to_arrays().items():
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            at_once = rows_at_once(array)
            for start in range(0, len(self), at_once):
                digest.update(np.ascontiguousarray(array[start : start + at_once]).data)
        if self.held_out is not None:
            digest.update(self.held_out.fingerprint().encode())
        return digest.hexdigest()[:16]

    def rows(self, start: int, stop: int) -> TransitionDataset:
        """Rows [start, stop) as one part; `stop` must close an episode."""
        return self._at(slice(start, stop))

    def _at(self, rows: slice | NDArray[np.bool_]) -> TransitionDataset:
        kept: dict[str, Any] = {
            name: _chosen(array, rows) for name, array in self.to_arrays().items()
        }
        groups = None if self.groups is None else self.groups[rows]
        what = repr(rows).encode() if isinstance(rows, slice) else np.packbits(rows).tobytes()
        stamp = self.restamped(what)
        return replace(self, **kept, groups=groups, parts=(), stamp=stamp, statistics=None)

    def choose_episodes(self, chosen: NDArray[np.bool_]) -> TransitionDataset:
        """The episodes that a mask over all of them marks, at least one."""
        rows = np.repeat(chosen, self.episode_lengths())
        parts, start = [], 0
        for size, weight in self.parts:
            left = int(np.count_nonzero(rows[start : start + size]))
            if left:  # of a part without rows nothing can be drawn
                parts.append((left, weight))
            start += size
        return replace(self._at(rows), parts=tuple(parts))

    def take_episodes(self, count: int) -> TransitionDataset:
        """The first `count` episodes, or the data set itself if it has no more."""
        if count < 1:
            raise DataError(f"{self.name}: cannot keep {count} episodes; ask for 1 or more")
        if count >= self.num_episodes:
            return self
        rows = int(self.episode_ends[count - 1]) + 1
        parts = []
        left = rows
        for size, weight in self.parts:
            if left > 0:
                parts.append((min(size, left), weight))
            left -= size
        return replace(self.rows(0, rows), parts=tuple(parts))

    @classmethod
    def concatenate(
        cls, datasets: Sequence[TransitionDataset], weights: Sequence[float] | None = None
    ) -> TransitionDataset:
        """One data set after the other; `weights` are the shares of each batch (equal: None).

        Episodes stay whole and apart, because each data set ends with a flag.
        """
        if not datasets:
            raise DataError("a mix of data sets is empty; give at least one part")
        if weights is None:
            weights = [1.0] * len(datasets)
        if len(weights) != len(datasets):
            raise DataError(
                f"a mix of {len(datasets)} data sets has {len(weights)} weights; "
                "give one weight for each part"
            )
        first = datasets[0]
        for other in datasets[1:]:
            if other.spaces != first.spaces:
                raise DataError(
                    f"data sets '{first.name}' and '{other.name}' cannot be mixed: one has "
                    f"{_differing(first.spaces)}, the other {_differing(other.spaces)}; "
                    "mix only data of one task, or name the task with env_id"
                )
        parts = []
        for dataset, weight in zip(datasets, weights, strict=True):
            own = sum(w for _, w in dataset.parts)
            # A part that is itself a mix keeps its inner proportions.
            parts += [(rows, float(weight) * w / own) for rows, w in dataset.parts]
        env_ids = {dataset.env_id for dataset in datasets}
        on_disk = any(dataset.on_disk for dataset in datasets)
        joined: dict[str, Any] = {}
        for name in ARRAY_NAMES:
            arrays = [getattr(dataset, name) for dataset in datasets]
            stays = on_disk and name in WIDE
            joined[name] = DiskRows.joined(arrays) if stays else np.concatenate(arrays)
        fingerprints = ",".join(dataset.fingerprint() for dataset in datasets) if on_disk else ""
        return cls(
            **joined,
            name=" + ".join(dataset.name for dataset in datasets),
            spaces=first.spaces,
            parts=tuple(parts),
            notes=tuple(
                f"{dataset.name}: {note}" if len(datasets) > 1 else note
                for dataset in datasets
                for note in dataset.notes
            ),
            has_whole_episode=all(dataset.has_whole_episode for dataset in datasets),
            env_id=env_ids.pop() if len(env_ids) == 1 else None,
            has_rewards=all(dataset.has_rewards for dataset in datasets),
            groups=_joined_groups(datasets),
            stamp=_digest(fingerprints.encode()) if on_disk else None,
        )


def _chosen(array: Any, rows: slice | NDArray[np.bool_]) -> Any:
    return array.chosen(rows) if isinstance(array, DiskRows) else array[rows]


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _joined_groups(datasets: Sequence[TransitionDataset]) -> NDArray[Any] | None:
    """The groups of a mix; None where a part has none."""
    known = [dataset.groups for dataset in datasets if dataset.groups is not None]
    return np.concatenate(known) if len(known) == len(datasets) else None


def _differing(spaces: Spaces) -> str:
    if spaces.is_discrete:
        return f"{spaces.describe()} from {spaces.action_start}"
    if not spaces.is_box:
        return f"{spaces.describe()} from {list(spaces.action_starts)}"
    return f"{spaces.describe()} in {list(spaces.action_low)}..{list(spaces.action_high)}"
