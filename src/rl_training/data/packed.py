"""Packed data: a folder of plain binary files and a manifest, of which rows are read in place.

`transitions.bin` has a record per row: observation, next observation and action, little-endian
and without padding; images are bytes. What has one number per row lies in a file of its own:
`rewards.bin` (float32), `terminations.bin` and `truncations.bin` (one byte), `groups.bin` (int64,
if there are groups). `manifest.json` says the rest. Nothing in the folder is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from rl_training.data.dataset import ARRAY_NAMES, GROUPS, WIDE, TransitionDataset
from rl_training.data.disk_rows import DiskRows, mapped
from rl_training.data.inference import describe_bounds, stored_spaces
from rl_training.data.validation import ACTION_TOLERANCE, RawTransitions
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import SpacesConfig
from rl_training.experiment.data_config import PACKED_MANIFEST
from rl_training.experiment.errors import DataError
from rl_training.experiment.files import open_regular

TRANSITIONS = "transitions.bin"
VERSION = 2
"""The newest that is read, that of images; data without them are written as version 1."""
NARROW = {"rewards": "<f4", "terminations": "|b1", "truncations": "|b1", GROUPS: "<i8"}
"""Types of the arrays with one number per row, each in the file NAME.bin."""
SAMPLES, SAMPLE_BYTES = 1_000, 4096
"""Blocks of a file that stand for its contents, evenly spaced, the first and the last included."""
MOST_MANIFEST_BYTES = 64 << 20


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SourceFile(_Stored):
    """A file that data were packed from, as it was then."""

    path: str
    size: int
    mtime_ns: int
    sample: str


class Manifest(_Stored):
    """What `manifest.json` says."""

    format: Literal["rl-training packed transitions"]
    version: int
    rows: int
    episodes: int
    action_type: Literal["<f4", "<i8"]
    action_shape: tuple[int, ...]
    action_low: tuple[float, ...]  # smallest and largest action of each component
    action_high: tuple[float, ...]
    name: str
    spaces: dict[str, Any]  # as the section dataset.spaces
    notes: tuple[str, ...]
    has_whole_episode: bool
    has_rewards: bool
    env_id: str | None
    has_groups: bool
    fingerprint: str  # as the same data in memory have it
    mean: tuple[float, ...]  # of the observations
    std: tuple[float, ...]
    sources: tuple[SourceFile, ...]
    sample: str  # of transitions.bin

    def record(self) -> np.dtype[Any]:
        """The type of a row of `transitions.bin`."""
        image: Any = self.spaces.get("image_shape")
        seen = np.dtype((np.uint8, tuple(image)) if image else ("<f4", (self.spaces["obs_dim"],)))
        return record_type(seen, self.action_type, self.action_shape)

    def files(self) -> dict[str, int]:
        """The binary files and their sizes."""
        found = {TRANSITIONS: self.rows * self.record().itemsize}
        for name, kind in NARROW.items():
            if name != GROUPS or self.has_groups:
                found[f"{name}.bin"] = self.rows * np.dtype(kind).itemsize
        return found


def record_type(
    observation: np.dtype[Any], action_type: str, action_shape: tuple[int, ...]
) -> np.dtype[Any]:
    """A row of `transitions.bin`."""
    return np.dtype(
        [
            ("observations", observation),
            ("next_observations", observation),
            ("actions", action_type, action_shape),
        ]
    )


def sampled_hash(path: Path) -> str:
    """16 hex digits of a file's size and of blocks of it; a huge file is not read whole."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(str(size).encode())
        last = max(size - SAMPLE_BYTES, 0)
        for position in np.unique(np.linspace(0, last, SAMPLES).astype(np.int64)):
            file.seek(int(position))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def source_file(path: Path) -> SourceFile:
    """A file as it is now."""
    found = path.stat()
    return SourceFile(
        path=str(path.resolve()),
        size=found.st_size,
        mtime_ns=found.st_mtime_ns,
        sample=sampled_hash(path),
    )


# --- reading ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """An opened folder."""

    folder: Path
    manifest: Manifest
    dataset: TransitionDataset  # with the spaces that the manifest says

    @property
    def label(self) -> str:
        return f"packed data set '{self.folder}'"

    def head(self) -> RawTransitions:
        """The first row, from which spaces are known as from other sources."""
        spaces = self.dataset.spaces
        return RawTransitions(
            label=self.label,
            name=self.dataset.name,
            arrays={name: getattr(self.dataset, name)[:1] for name in ARRAY_NAMES},
            spaces=spaces,
            mask_width=spaces.action_dim if spaces.has_mask else 0,
            layout=spaces.layout,
            action_labels=spaces.action_labels,
            image_shape=spaces.image_shape,
            frame_stack=spaces.frame_stack,
        )

    def fitted(self, spaces: Spaces) -> TransitionDataset:
        """The data set for a task, checked by what the manifest says of the data."""
        own, m = self.dataset.spaces, self.manifest
        kinds = [(s.obs_shape, s.is_image, s.packing, s.has_mask) for s in (own, spaces)]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"{self.label}: its observations are {own.describe()}, but the task has "
                f"{spaces.describe()}; use data of this task, or another env_id"
            )
        low, high = np.asarray(m.action_low), np.asarray(m.action_high)
        fits = (m.action_type == "<f4") == spaces.is_box
        fits = fits and m.action_shape == spaces.inner_action_shape
        if fits and spaces.is_box:
            least, most = np.asarray(spaces.action_low), np.asarray(spaces.action_high)
            least, most = least - ACTION_TOLERANCE, most + ACTION_TOLERANCE
        elif fits:
            least = np.asarray(spaces.starts)
            most = least + np.asarray(spaces.choices) - 1
        fits = fits and bool((low >= least).all() and (high <= most).all())
        if not fits:
            raise DataError(
                f"{self.label}: its actions, from {list(m.action_low)} to {list(m.action_high)}, "
                f"are not those of the task, {describe_bounds(spaces)}; use data of this task, or "
                "another env_id"
            )
        return replace(self.dataset, spaces=spaces)


def open_packed(path: str | Path, *, check_sources: bool = True) -> Packed:
    """Open a folder that `pack` has written; refuses one that is damaged, or, with
    `check_sources`, whose source has changed since."""
    folder = Path(path)
    manifest = _read_manifest(folder)
    label = f"packed data set '{folder}'"
    for name, size in manifest.files().items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            has = "is missing" if found is None else f"has {found:,} bytes, expected {size:,}"
            raise DataError(f"{label}: file '{name}' {has}; pack the data again")
    if sampled_hash(folder / TRANSITIONS) != manifest.sample:
        raise DataError(f"{label}: file '{TRANSITIONS}' was changed; pack the data again")
    if check_sources:
        for source in manifest.sources:
            _refuse_changed(label, source)
    spaces = stored_spaces(SpacesConfig.parse(manifest.spaces, prefix="spaces."))
    if spaces is None:
        raise DataError(
            f"{label}: '{PACKED_MANIFEST}' does not say the spaces; pack the data again"
        )
    record = mapped(folder / TRANSITIONS, manifest.record(), manifest.rows)
    arrays: dict[str, Any] = {name: DiskRows.whole(record[name]) for name in WIDE}
    for name, kind in NARROW.items():
        if name != GROUPS or manifest.has_groups:
            arrays[name] = mapped(folder / f"{name}.bin", np.dtype(kind), manifest.rows)
    mean, std = (np.asarray(values, np.float32) for values in (manifest.mean, manifest.std))
    dataset = TransitionDataset(
        **arrays,
        name=manifest.name,
        spaces=spaces,
        notes=manifest.notes,
        has_whole_episode=manifest.has_whole_episode,
        has_rewards=manifest.has_rewards,
        env_id=manifest.env_id,
        stamp=manifest.fingerprint,
        statistics=None if spaces.is_image else (mean, std),
    )
    return Packed(folder, manifest, dataset)


def _read_manifest(folder: Path) -> Manifest:
    file = folder / PACKED_MANIFEST
    again = "pack the data again with 'rl-training data pack'"
    if not file.is_file():
        what = "does not exist" if not folder.exists() else f"has no {PACKED_MANIFEST}"
        raise DataError(f"packed data set '{folder}' {what}; correct dataset.path, or {again}")
    try:
        if file.stat().st_size > MOST_MANIFEST_BYTES:
            raise ValueError("too large")
        values = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(values, dict) and int(values.get("version", 0)) > VERSION:
            raise DataError(
                f"packed data set '{folder}' was written by a newer version of rl-training; "
                f"update it, or {again}"
            )
        manifest = Manifest.model_validate_json(json.dumps(values))
        if manifest.rows < 1 or not isinstance(manifest.spaces.get("obs_dim"), int):
            raise ValueError("no rows")
        manifest.files()
    except (OSError, ValueError, TypeError, RecursionError):
        raise DataError(f"'{file}' is damaged; {again}") from None
    return manifest


def _refuse_changed(label: str, source: SourceFile) -> None:
    path = Path(source.path)
    if not path.is_file():
        return  # the packed copy is whole without it
    try:
        now = source_file(path)
    except OSError:
        return
    if now != source:
        raise DataError(
            f"{label}: its source '{path}' has changed since it was packed; pack it again with "
            "'rl-training data pack --overwrite', or move the source away"
        )
