"""Checkpoints: a folder of components and a manifest, complete or absent.

A checkpoint is written to a draft folder, flushed to disk and renamed, so that a
half-written one is never seen under its final name. Every file's checksum stands in the
manifest and is verified before anything is read. Loading runs no code: tensors and
plain containers only (`torch.load(weights_only=True)`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rl_training.experiment.errors import CheckpointError, NewerFormatError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
_TICK_DIGITS = 12


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint whose manifest could be read; its files are verified when loaded."""

    path: Path
    manifest: dict[str, Any]

    @property
    def tick(self) -> int:
        return int(self.manifest["tick"])

    @property
    def score(self) -> float | None:
        """Result of the evaluation at this tick, larger is better; None if there was none."""
        score = self.manifest.get("score")
        return None if score is None else float(score)


class _HashingFile:
    """Forwards writes and keeps their checksum, so that nothing is read back to hash it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self.file.write(data)
        except OSError as error:  # the serialiser would wrap it beyond recognition
            self.error = error
            raise
        self.digest.update(data)
        return len(data)

    def flush(self) -> None:
        self.file.flush()


def _manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """Checksum of everything in a manifest but itself."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_component(path: Path, state: Any) -> str:
    import torch

    with path.open("wb") as file:
        hashing = _HashingFile(file)
        try:
            torch.save(state, hashing)  # type: ignore[arg-type]
        except Exception:
            if hashing.error is not None:
                raise hashing.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return hashing.digest.hexdigest()


def _without_rest(state: Any) -> Any:
    """Tensors that are parts of larger ones alone, or the whole would be written with each."""
    import torch

    if isinstance(state, torch.Tensor):
        own = state.numel() * state.element_size()
        return state.clone() if state.untyped_storage().nbytes() > own else state
    if isinstance(state, Mapping):
        return {key: _without_rest(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_without_rest(value) for value in state)
    return state


def write_checkpoint(
    path: Path, components: Mapping[str, Any], header: Mapping[str, Any]
) -> CheckpointInfo:
    """Write `components` (name -> tensors and plain containers) as one checkpoint at `path`.

    Replaces a checkpoint already there; refuses to replace anything else. On failure
    nothing is left behind and what was there before is untouched.
    """
    if path.exists() and not (path / MANIFEST).is_file():
        raise CheckpointError(
            f"checkpoint '{path}': something that is no checkpoint is already there; "
            "choose another path"
        )
    draft: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=path.parent))
        manifest: dict[str, Any] = {"format_version": FORMAT_VERSION, **header, "files": {}}
        for name, state in components.items():
            file_name = f"{name}.pt"
            manifest["files"][file_name] = _write_component(draft / file_name, _without_rest(state))
        manifest["checksum"] = _manifest_checksum(manifest)
        with (draft / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o755)
        _flush_to_disk(draft)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=".draft-", dir=path.parent))
            path.rename(old / "replaced")
            try:
                draft.rename(path)
            except BaseException:
                (old / "replaced").rename(path)
                raise
            finally:
                shutil.rmtree(old, ignore_errors=True)
        else:
            draft.rename(path)
        _flush_to_disk(path.parent)
    except OSError as error:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "the disk is full" if full else (error.strerror or str(error))
        remedy = (
            "earlier checkpoints are intact, make room and resume"
            if full
            else "choose another path"
        )
        raise CheckpointError(
            f"checkpoint '{path}' could not be written: {reason}; {remedy}"
        ) from None
    except BaseException:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        raise
    return CheckpointInfo(path, manifest)


def read_manifest(path: Path) -> CheckpointInfo:
    """The manifest of the checkpoint at `path`."""
    if not path.exists():
        raise CheckpointError(
            f"checkpoint '{path}' does not exist; 'rl-training list' shows the runs under ./runs"
        )
    file = path / MANIFEST
    if not file.is_file():
        raise CheckpointError(
            f"'{path}' is no checkpoint: expected a folder with a {MANIFEST}, as written by "
            "'save' or found under <run>/checkpoints"
        )
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        version = int(manifest["format_version"])
        if version > FORMAT_VERSION:
            raise NewerFormatError(
                f"checkpoint '{path}' has format {version}, this version of rl-training reads up "
                f"to {FORMAT_VERSION}; upgrade with: pip install --upgrade rl-training"
            )
        info = CheckpointInfo(path, manifest)
        if not (isinstance(manifest["files"], dict) and info.tick >= 0):
            raise ValueError
        _ = info.score  # raises where it is no number
        if manifest["checksum"] != _manifest_checksum(manifest):
            raise ValueError
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OSError,
        OverflowError,
        RecursionError,
    ):
        raise CheckpointError(
            f"checkpoint '{path}' is damaged: its {MANIFEST} is cut short or changed; "
            "use an earlier checkpoint"
        ) from None
    return info


def _damaged(path: Path, file_name: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint '{path}' is damaged: {file_name} {what}; use an earlier checkpoint"
    )


def verify(info: CheckpointInfo) -> None:
    """Check every file against its checksum."""
    for file_name, expected in info.manifest["files"].items():
        if Path(file_name).name != file_name:
            raise _damaged(info.path, file_name, "lies outside the checkpoint")
        digest = hashlib.sha256()
        try:
            with (info.path / file_name).open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except (OSError, ValueError):  # ValueError: a name that no file can have
            raise _damaged(info.path, ascii(file_name)[1:-1], "is missing") from None
        if digest.hexdigest() != expected:
            raise _damaged(info.path, file_name, "differs from its checksum")


def read_checkpoint(
    path: Path, names: tuple[str, ...] | None = None
) -> tuple[CheckpointInfo, dict[str, Any]]:
    """Verify the checkpoint at `path` and read the named components, all by default."""
    import torch

    info = read_manifest(path)
    verify(info)
    components: dict[str, Any] = {}
    for file_name in info.manifest["files"]:
        name = file_name.removesuffix(".pt")
        if names is not None and name not in names:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a refusal is one sentence
                components[name] = torch.load(
                    info.path / file_name, map_location="cpu", weights_only=True
                )
        except Exception:  # noqa: BLE001  (a file made to do harm fails in any way it likes)
            raise CheckpointError(
                f"checkpoint '{path}': {file_name} holds something other than tensors and plain "
                "values and was not loaded, since loading it could run code"
            ) from None
    return info, components


class CheckpointStore:
    """The checkpoints of one run: newest, best, rotation."""

    def __init__(self, folder: Path, keep_last: int, keep_best: bool) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.pinned: int | None = None
        """A tick whose checkpoint is kept, too."""

    def save(
        self, tick: int, components: Mapping[str, Any], header: Mapping[str, Any]
    ) -> CheckpointInfo:
        info = write_checkpoint(
            self.folder / f"{tick:0{_TICK_DIGITS}d}", components, {"tick": tick, **header}
        )
        self._rotate()
        return info

    def all(self) -> list[CheckpointInfo]:
        """Every checkpoint with a readable manifest, oldest first."""
        return self._scan()[0]

    def unreadable(self) -> list[CheckpointError]:
        """Why each checkpoint that `all` leaves out was left out."""
        return self._scan()[1]

    def _scan(self) -> tuple[list[CheckpointInfo], list[CheckpointError]]:
        found, refused = [], []
        for path in sorted(self.folder.glob("[0-9]*")):
            try:
                found.append(read_manifest(path))
            except CheckpointError as error:
                refused.append(error)
        return sorted(found, key=lambda info: info.tick), refused

    def latest(self) -> CheckpointInfo | None:
        found = self.all()
        return found[-1] if found else None

    def best(self) -> CheckpointInfo | None:
        """The checkpoint with the best evaluation, the earliest of equals."""
        scored = [info for info in self.all() if info.score is not None]
        return max(scored, key=lambda info: (info.score or 0.0, -info.tick)) if scored else None

    def _rotate(self) -> None:
        found = self.all()
        keep = {info.path for info in found[-self.keep_last :]}
        keep |= {info.path for info in found if info.tick == self.pinned}
        best = self.best()
        if self.keep_best and best is not None:
            keep.add(best.path)
        for info in found:
            if info.path not in keep:
                # out of sight first: a deletion that is cut short must not look complete
                gone = self.folder / f".draft-{info.path.name}"
                info.path.rename(gone)
        for draft in self.folder.glob(".draft-*"):  # left by a killed process
            shutil.rmtree(draft, ignore_errors=True)
