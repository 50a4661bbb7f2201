"""The checkpoints of one run: which there are, which are kept, which is the best."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.checkpoint import (
    DRAFT,
    MANIFEST,
    CheckpointInfo,
    damaged,
    read_manifest,
    write_checkpoint,
)
from rl_training.experiment.errors import CheckpointError
from rl_training.experiment.files import REPLACED
from rl_training.experiment.storage import publish

_TICK_DIGITS = 12


class CheckpointStore:
    """The checkpoints of one run: saves them, deletes old ones, finds the newest and the best."""

    def __init__(self, folder: Path, keep_last: int, keep_best: bool) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.pinned: int | None = None
        """A tick whose checkpoint is never deleted."""
        self._known: dict[str, tuple[tuple[int, ...] | None, CheckpointInfo | CheckpointError]]
        self._known = {}

    def save(
        self, tick: int, components: Mapping[str, Any], header: Mapping[str, Any]
    ) -> CheckpointInfo:
        info = write_checkpoint(
            self.folder / f"{tick:0{_TICK_DIGITS}d}", components, {"tick": tick, **header}
        )
        self._rotate()
        publish(self.folder.parent)
        return info

    def all(self) -> list[CheckpointInfo]:
        """Every checkpoint with a readable manifest, oldest first."""
        return self._scan()[0]

    def unreadable(self) -> dict[int, CheckpointError]:
        """Why `all` leaves out a checkpoint, by its tick."""
        return self._scan()[1]

    def _scan(self) -> tuple[list[CheckpointInfo], dict[int, CheckpointError]]:
        found, refused = [], {}
        known, self._known = self._known, {}
        # names instead of paths, which would be slow with ten thousand checkpoints
        folder = os.fspath(self.folder)
        for name in self._names():
            changed = _last_change(f"{folder}/{name}/{MANIFEST}")
            before, result = known.get(name, (None, None))
            if result is None or changed is None or before != changed:
                try:
                    result = read_manifest(self.folder / name)
                    if result.tick != _tick_of(name):
                        raise damaged(result.path, MANIFEST, f"is that of tick {result.tick}")
                except CheckpointError as error:
                    result = error
            self._known[name] = (changed, result)
            if isinstance(result, CheckpointInfo):
                found.append(result)
            else:
                refused[_tick_of(name)] = result
        return sorted(found, key=lambda info: info.tick), refused

    def _names(self) -> list[str]:
        """The folder of every tick, or the one set aside if replacing it was interrupted."""
        names = set(self._listed())
        chosen = [name for name in names if name.isdecimal()]
        for name in names:
            own = name.removeprefix(REPLACED)
            if own != name and own.isdecimal() and own not in names:
                chosen.append(name)
        return sorted(chosen)

    def _listed(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                f"'{self.folder}' cannot be read: {error.strerror}; it should be a folder with "
                "checkpoints that you may read"
            ) from None

    def latest(self) -> CheckpointInfo | None:
        found = self.all()
        return found[-1] if found else None

    def best(self) -> CheckpointInfo | None:
        """The checkpoint with the best evaluation; of equal ones the earliest."""
        return _best_of(self.all())

    def _rotate(self) -> None:
        found = self.all()
        keep = {info.tick for info in found[-self.keep_last :]} | {self.pinned}
        best = _best_of(found)
        if self.keep_best and best is not None:
            keep.add(best.tick)
        for info in found:
            if info.tick not in keep:
                # renamed first: an interrupted deletion must not leave what looks complete
                gone = self.folder / f"{DRAFT}{info.path.name}"
                shutil.rmtree(gone, ignore_errors=True)
                info.path.rename(gone)
        for name in self._listed():  # left by a killed process
            replaced = name.startswith(REPLACED)
            if replaced and not (self.folder / name.removeprefix(REPLACED)).exists():
                continue  # the only one of its tick
            if replaced or name.startswith(DRAFT):
                shutil.rmtree(self.folder / name, ignore_errors=True)


def _tick_of(name: str) -> int:
    """The tick in the name of a store's folder."""
    return int(name.removeprefix(REPLACED))


def _best_of(found: list[CheckpointInfo]) -> CheckpointInfo | None:
    scored = [info for info in found if info.score is not None]
    return max(scored, key=lambda info: (info.score or 0.0, -info.tick)) if scored else None


def _last_change(file: str) -> tuple[int, ...] | None:
    """A value that changes when the file is rewritten; None if it cannot be read."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
