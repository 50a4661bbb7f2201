"""Checkpoints: a folder of components and a manifest, complete or absent.

A checkpoint is written to a draft folder, flushed to disk and renamed, so that a
half-written one never appears under its final name. The manifest holds the checksum of every
file, which is verified before anything is read. Loading runs no code: it reads tensors and
plain containers only (`torch.load(weights_only=True)`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rl_training.experiment.errors import CheckpointError, NewerFormatError
from rl_training.experiment.files import (
    NOT_ALLOWED,
    REPLACED,
    aside_of,
    flush_to_disk,
    open_regular,
    put_in_place,
)

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1 << 26
"""Bytes; far more than any manifest has."""
DRAFT = ".draft-"


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint with a readable manifest; its files are verified when they are loaded."""

    path: Path
    manifest: dict[str, Any]

    @property
    def tick(self) -> int:
        return int(self.manifest["tick"])

    @property
    def score(self) -> float | None:
        """The evaluation's score at this tick, larger is better; None if there was none."""
        score = self.manifest.get("score")
        return None if score is None else float(score)


class _HashingFile:
    """Forwards writes and computes their checksum, so that no file is read back for it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self.file.write(data)
        except OSError as error:  # torch.save would replace it by an error of its own
            self.error = error
            raise
        self.digest.update(data)
        return len(data)

    def flush(self) -> None:
        self.file.flush()


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """Checksum of all entries of a manifest except the checksum."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


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
    """Clone views, because torch.save would write their whole storage."""
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

    Replaces an existing checkpoint and refuses to replace anything else. On failure nothing
    is left behind, and the existing checkpoint is unchanged.
    """
    if not path.exists() and aside_of(path).exists():
        aside_of(path).rename(path)
    if path.exists() and not (path / MANIFEST).is_file():
        raise CheckpointError(
            f"checkpoint '{path}': something other than a checkpoint is already there; "
            "choose another path"
        )
    draft: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=path.parent))
        manifest: dict[str, Any] = {"format_version": FORMAT_VERSION, **header, "files": {}}
        for name, state in components.items():
            file_name = f"{name}.pt"
            manifest["files"][file_name] = _write_component(draft / file_name, _without_rest(state))
        manifest["checksum"] = manifest_checksum(manifest)
        with (draft / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o755)
        flush_to_disk(draft)
        if path.exists():
            put_in_place(draft, path)
        else:
            draft.rename(path)
            flush_to_disk(path.parent)
    except OSError as error:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        reason, remedy = error.strerror or str(error), "choose another path"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = "the disk is full"
            remedy = "earlier checkpoints are intact, make room and resume"
        elif error.errno in NOT_ALLOWED:
            remedy = "make the folder writable for you, or choose another path"
        raise CheckpointError(
            f"checkpoint '{path}' could not be written: {reason}; {remedy}"
        ) from None
    except BaseException:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        raise
    return CheckpointInfo(path, manifest)


def read_manifest(path: Path) -> CheckpointInfo:
    """Read the manifest at `path`, or of the checkpoint that was being replaced there."""
    try:
        if not path.exists() and aside_of(path).exists():
            path = aside_of(path)
        with open_regular(path / MANIFEST) as file:
            text = file.read(MANIFEST_LIMIT + 1)
    except PermissionError as error:
        raise _forbidden(path, MANIFEST, error) from None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        if "\0" in str(path) or not os.path.lexists(path):
            raise CheckpointError(
                f"checkpoint '{path}' does not exist; 'rl-training list' shows the runs under "
                "./runs"
            ) from None
        raise CheckpointError(
            f"'{path}' is not a checkpoint: expected a folder with a {MANIFEST}, as written by "
            "'save' or found under <run>/checkpoints"
        ) from None
    except OSError as error:
        raise damaged(path, MANIFEST, f"cannot be read ({error.strerror})") from None
    try:
        if len(text) > MANIFEST_LIMIT:
            raise ValueError
        manifest = json.loads(text.decode("utf-8"))
        version = _whole_number(manifest["format_version"], least=1)
        if version > FORMAT_VERSION:
            raise NewerFormatError(
                f"checkpoint '{path}' has format {version}, this version of rl-training reads up "
                f"to {FORMAT_VERSION}; install a newer version of rl-training"
            )
        _whole_number(manifest["tick"], least=0)
        score = manifest.get("score")
        if score is not None and (type(score) not in (int, float) or math.isnan(score)):
            raise ValueError
        if not isinstance(manifest["files"], dict):
            raise ValueError
        if manifest["checksum"] != manifest_checksum(manifest):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise damaged(path, f"its {MANIFEST}", "is truncated or changed") from None
    return CheckpointInfo(path, manifest)


def _whole_number(value: Any, *, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError
    return value


def damaged(path: Path, file_name: str, what: str) -> CheckpointError:
    """An error that recommends another checkpoint of the run only if there is one."""
    return CheckpointError(f"checkpoint '{path}' is damaged: {file_name} {what}; {_instead(path)}")


def _instead(path: Path) -> str:
    """What to use in place of a damaged checkpoint."""
    own = path.name.removeprefix(REPLACED)
    try:
        names = os.listdir(path.parent) if own.isdecimal() else []
    except OSError:
        names = []
    others = sorted((int(name), name) for name in names if name.isdecimal() and name != own)
    ticks = (tick for tick, name in others if (path.parent / name / MANIFEST).is_file())
    first = next(ticks, None)
    if first is None:
        return "put back a whole copy of it, as there is no other checkpoint beside it"
    return f"use {'an earlier' if first < int(own) else 'another'} checkpoint"


def _forbidden(path: Path, file_name: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"checkpoint '{path}' cannot be read: {file_name}: {error.strerror}; ask its owner for "
        "the right to read it (chmod)"
    )


def verify(info: CheckpointInfo) -> None:
    """Check every file against its checksum."""
    for file_name, expected in info.manifest["files"].items():
        if Path(file_name).name != file_name:
            raise damaged(info.path, file_name, "lies outside the checkpoint")
        digest = hashlib.sha256()
        try:
            with open_regular(info.path / file_name) as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except PermissionError as error:
            raise _forbidden(info.path, file_name, error) from None
        except (FileNotFoundError, ValueError):  # ValueError: the name is invalid
            raise damaged(info.path, ascii(file_name)[1:-1], "is missing") from None
        except OSError as error:
            raise damaged(info.path, file_name, f"cannot be read ({error.strerror})") from None
        if digest.hexdigest() != expected:
            raise damaged(info.path, file_name, "differs from its checksum")


def _refuse_packed(path: Path, file_name: str) -> None:
    """Refuse compressed files, of which a few bytes may expand to gigabytes."""
    try:
        with zipfile.ZipFile(path / file_name) as archive:
            packed = any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        raise _foreign(path, file_name) from None  # for example a bare pickle
    if packed:
        raise damaged(path, file_name, "is compressed, which no checkpoint is")


def _foreign(path: Path, file_name: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint '{path}': {file_name} holds something other than tensors and plain "
        "values and was not loaded, because loading it could run code"
    )


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
        _refuse_packed(info.path, file_name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an error is one sentence
                components[name] = torch.load(
                    info.path / file_name, map_location="cpu", weights_only=True
                )
        except Exception:  # noqa: BLE001  (a file made to do harm fails in any way it likes)
            raise _foreign(path, file_name) from None
    return info, components
