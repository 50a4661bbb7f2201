"""Writing packed data: rows are appended as they come, and the folder appears whole or not."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import GROUPS, WIDE, TransitionDataset, rows_at_once
from rl_training.data.inference import column_range, spaces_section
from rl_training.data.packed import (
    NARROW,
    TRANSITIONS,
    VERSION,
    SourceFile,
    open_packed,
    record_type,
    sampled_hash,
)
from rl_training.data.statistics import RunningStatistics, mean_and_std
from rl_training.data.validation import NO_END, OPEN_END
from rl_training.envs.spaces import Spaces
from rl_training.experiment.data_config import PACKED_MANIFEST, is_packed
from rl_training.experiment.errors import DataError
from rl_training.experiment.files import put_in_place, remove_stale_drafts

DRAFT = ".packing-"
AS_IN_MEMORY_UP_TO = 16_000_000_000
"""Bytes up to which the fingerprint is that of the same data in memory, which takes several passes
over them; larger sets are read once more and never in memory."""


class PackWriter:
    """Appends checked rows to the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, 0
        self._files = {name: (folder / f"{name}.bin").open("wb") for name in NARROW}
        self._transitions = (folder / TRANSITIONS).open("wb")
        self._record: np.dtype[Any] | None = None
        self._first: TransitionDataset | None = None
        self._group_codes: dict[str, int] = {}
        self._has_groups, self._named_groups = False, False
        self._low = self._high = np.zeros(0)
        self._notes: dict[str, int | None] = {}
        self.has_whole_episode = False
        self.episodes = 0

    def append(self, data: TransitionDataset) -> None:
        """Add whole episodes."""
        for note in data.notes:
            # the last piece of a source with other episodes is no whole of its own
            self._note(OPEN_END if note == NO_END and self.rows else note)
        if not len(data):
            return
        actions = np.asarray(data.actions)
        kind = "<f4" if actions.dtype.kind == "f" else "<i8"
        seen = np.dtype((data.observations.dtype, data.observations.shape[1:]))
        record = record_type(seen, kind, actions.shape[1:])
        if self._first is None:
            self._record, self._first = record, data
            self._has_groups = data.groups is not None
            self._named_groups = (
                self._has_groups and data.groups is not None and (data.groups.dtype.kind in "US")
            )
        first = self._first
        if record != self._record or data.has_rewards != first.has_rewards:
            raise DataError(
                f"{data.name}: rows from {self.rows:,} on have another shape or type than those "
                "before; give all rows the same arrays"
            )
        rows = np.empty(len(data), record)
        for name in WIDE:
            rows[name] = getattr(data, name)
        rows.tofile(self._transitions)
        for name in ("rewards", "terminations", "truncations"):
            getattr(data, name).astype(NARROW[name], copy=False).tofile(self._files[name])
        if data.groups is not None:
            self._groups(data).astype("<i8", copy=False).tofile(self._files[GROUPS])
        low, high = column_range(actions.reshape(len(data), -1))
        self._low = low if not self.rows else np.minimum(self._low, low)
        self._high = high if not self.rows else np.maximum(self._high, high)
        self.rows += len(data)
        self.episodes += data.num_episodes
        self.has_whole_episode |= data.has_whole_episode

    def _groups(self, data: TransitionDataset) -> NDArray[Any]:
        groups = data.groups
        assert groups is not None
        if not self._named_groups:
            if groups.dtype.kind in "US":
                raise DataError(f"{data.name}: groups are numbers at first and text later on")
            return groups
        names, codes = np.unique(groups.astype(str), return_inverse=True)
        known = [self._group_codes.setdefault(name, len(self._group_codes)) for name in names]
        return np.asarray(known, np.int64)[codes]

    def _note(self, note: str) -> None:
        """Counts of the same kind of note are added up."""
        numbers = re.findall(r"\d+", note)
        if len(numbers) != 1:
            self._notes[note] = None
            return
        pattern = re.sub(r"\d+", "{}", note.replace("{", "{{").replace("}", "}}"))
        self._notes[pattern] = (self._notes.get(pattern) or 0) + int(numbers[0])

    def finish(
        self, name: str, spaces: Spaces, notes: tuple[str, ...], sources: tuple[SourceFile, ...]
    ) -> None:
        """Close the files and write the manifest."""
        assert self._first is not None
        assert self._record is not None
        self.close()
        if not self._has_groups:
            (self.folder / f"{GROUPS}.bin").unlink()
        if self._named_groups:
            self._sort_groups()
            self._note("groups that are names are numbered in the order of the names")
        counted = [
            note if count is None else note.format(count) for note, count in self._notes.items()
        ]
        action = self._record["actions"]
        plain: dict[str, Any] = {
            "format": "rl-training packed transitions",
            "version": VERSION if spaces.is_image else 1,
            "rows": self.rows,
            "episodes": self.episodes,
            "action_type": action.base.str,
            "action_shape": list(action.shape),
            "action_low": [float(x) for x in self._low],
            "action_high": [float(x) for x in self._high],
            "name": name,
            "spaces": spaces_section(spaces),
            "notes": [*counted, *notes],
            "has_whole_episode": self.has_whole_episode,
            "has_rewards": self._first.has_rewards,
            "env_id": self._first.env_id,
            "has_groups": self._has_groups,
            "fingerprint": "",
            "mean": [],
            "std": [],
            "sources": [source.model_dump() for source in sources],
            "sample": sampled_hash(self.folder / TRANSITIONS),
        }
        self._write(plain)
        dataset = open_packed(self.folder, check_sources=False).dataset
        whole = replace(dataset, stamp=None, statistics=None)
        if (self.folder / TRANSITIONS).stat().st_size <= AS_IN_MEMORY_UP_TO:
            plain["fingerprint"] = whole.fingerprint()
            mean, std = (np.zeros(0),) * 2 if spaces.is_image else mean_and_std(whole)
        else:
            plain["fingerprint"], mean, std = self._in_one_pass(whole)
        plain |= {"mean": mean.astype(float).tolist(), "std": std.astype(float).tolist()}
        self._write(plain)

    def _in_one_pass(self, whole: TransitionDataset) -> tuple[str, NDArray[Any], NDArray[Any]]:
        """Fingerprint, mean and standard deviation of data that are read only once."""
        images, at_once = whole.spaces.is_image, rows_at_once(whole.observations)
        digest, seen = hashlib.sha256(), RunningStatistics(0 if images else whole.spaces.obs_dim)
        for start in range(0, self.rows, at_once):
            part = slice(start, start + at_once)
            if not images:
                seen.add(whole.observations[part])
            for array in whole.to_arrays().values():
                digest.update(np.ascontiguousarray(array[part]).data)
        return digest.hexdigest()[:16], *seen.mean_and_std()

    def _write(self, values: Mapping[str, Any]) -> None:
        text = json.dumps(values, indent=1)
        (self.folder / PACKED_MANIFEST).write_text(text + "\n", encoding="utf-8")

    def _sort_groups(self) -> None:
        """Number the groups in the order of their names, as data in memory sort them."""
        names = sorted(self._group_codes)
        codes = np.empty(len(names), np.int64)
        for position, name in enumerate(names):
            codes[self._group_codes[name]] = position
        file = self.folder / f"{GROUPS}.bin"
        written = np.memmap(file, "<i8", "r+")
        for start in range(0, len(written), 1 << 20):
            part = slice(start, start + (1 << 20))
            written[part] = codes[written[part]]
        written.flush()

    def close(self) -> None:
        for file in (self._transitions, *self._files.values()):
            file.close()


@contextmanager
def new_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """A draft beside `target` that takes its place when the block succeeds; a disk that fills, or
    any other failure, leaves nothing behind."""
    if target.exists() and not is_packed(target):
        raise DataError(f"'{target}' exists and is not a packed data set; choose another folder")
    if target.exists() and not overwrite:
        raise DataError(
            f"'{target}' exists already; choose another folder or overwrite it (--overwrite)"
        )
    draft = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_drafts(target.parent, DRAFT)
        draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=target.parent))
        draft.chmod(0o755)
        yield draft
        if target.exists():
            put_in_place(draft, target)
        else:
            draft.rename(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            f"'{target}' cannot be written ({reason}); make room, or choose another folder"
        ) from None
    finally:
        if draft is not None and draft.exists():
            shutil.rmtree(draft, ignore_errors=True)
