"""Runs and data in object storage, such as s3://bucket/folder, by fsspec.

Training works on local files only. A run whose `output_dir` is a URL has its folder in the cache,
and after every save its storage is brought up to date: first the new files, then the manifests of
new checkpoints, then the removal of old ones. So the newest checkpoint with a manifest is whole at
any time. Data are copied into the cache once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from rl_training.experiment.errors import (
    ConfigError,
    MissingExtraError,
    RLTrainingError,
    describe_exception,
)
from rl_training.experiment.files import draft_of, put_in_place, replace_text
from rl_training.experiment.lock import is_in_use

REMOTE_FILE, UPLOADED_FILE = ".remote.json", ".uploaded.json"
MANIFEST, CONFIG_FILE, CHECKPOINTS = "manifest.json", "config.yaml", "checkpoints"


def url_of(path: str | Path) -> str | None:
    """The URL that a path is, also after `Path` has taken one of its slashes."""
    found = re.fullmatch(r"([a-z][a-z0-9+.-]+):/+([^/].*)", str(path))
    if found is None:
        return None
    scheme, rest = found.groups()
    return f"{scheme}://{'/' if scheme == 'file' else ''}{rest.rstrip('/')}"


def refuse_url(path: Path, why: str) -> None:
    """Refuse object storage where a folder is needed."""
    if (url := url_of(path)) is not None:
        raise ConfigError(f"--out: '{url}' is object storage, but {why}; choose a folder")


def cache_folder() -> Path | None:
    """`$RL_TRAINING_CACHE`, or `~/.cache/rl_training`; None for a user without a home."""
    chosen = os.environ.get("RL_TRAINING_CACHE")
    try:
        return Path(chosen) if chosen else Path("~/.cache/rl_training").expanduser()
    except RuntimeError:
        return None


# --- data -----------------------------------------------------------------------------------------


def local_data(path: str) -> str:
    """The path itself, or of a URL that of its copy in the cache: a file, or a folder of those
    that a folder or a pattern means. It is copied again if sizes or versions have changed."""
    url = url_of(path)
    if url is None:
        return path
    with _reported(url, "read"):
        system, root = file_system(url)
        pattern = any(character in root for character in "*?[")
        found = system.glob(root, detail=True) if pattern else system.find(root, detail=True)
        files = {name: info for name, info in found.items() if info["type"] == "file"}
        if not files:
            raise RLTrainingError(f"'{url}' has no file; correct dataset.path")
        place = _cached("data", url, *(f"{n} {_version(i)}" for n, i in sorted(files.items())))
        if list(files) == [root]:
            copy = place / PurePosixPath(root).name
            if not copy.exists():
                with draft_of(copy) as draft:
                    _get(system, root, files[root], draft)
            return str(copy)
        if not place.exists():
            above = os.path.commonpath([str(PurePosixPath(name).parent) for name in files])
            _get_folder(system, files, above, place)
        return str(place)


# --- runs -----------------------------------------------------------------------------------------


def run_parent(output_dir: str) -> Path:
    """The local folder in which runs with this `output_dir` are trained."""
    url = url_of(output_dir)
    return Path(output_dir) if url is None else _cached("runs", url)


def remote_of(run_dir: Path) -> str | None:
    """The URL of a run whose folder is a copy."""
    try:
        stored = json.loads((run_dir / REMOTE_FILE).read_text(encoding="utf-8"))
        return url_of(stored["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def begin_remote(output_dir: str, run_dir: Path) -> None:
    """Note the storage of a new run, which must not hold one of its name."""
    url = url_of(output_dir)
    if url is None:
        return
    remote = f"{url}/{run_dir.name}"
    with _reported(remote, "used"):
        system, root = file_system(remote)
        if system.exists(f"{root}/{CONFIG_FILE}"):
            raise RLTrainingError(
                f"run_name: '{remote}' holds a run already; go on with 'rl-training resume "
                f"{remote}', or choose another name"
            )
    replace_text(run_dir / REMOTE_FILE, json.dumps({"url": remote}) + "\n")


def begun_run(output_dir: str, name: str) -> Path:
    """The local folder of the run of this name, with what its storage has of it, if anything."""
    url = url_of(output_dir)
    if url is not None:
        with _reported(url, "read"):
            system, root = file_system(f"{url}/{name}")
            begun = system.exists(f"{root}/{CONFIG_FILE}")
        if begun:
            return local_run(f"{url}/{name}")
    return run_parent(output_dir) / name


def local_run(path: str | Path) -> Path:
    """The folder itself, or of a URL its copy, with every whole checkpoint of the storage."""
    url = url_of(path)
    if url is None:
        return Path(path)
    parent, _, name = url.rpartition("/")
    run_dir = _cached("runs", parent) / name
    if is_in_use(run_dir):
        return run_dir  # refused by whatever asks for its lock
    with _reported(url, "read"):
        system, root = file_system(url)
        files = system.find(root, detail=True)
        names = {str(PurePosixPath(full).relative_to(root)): full for full in files}
        if CONFIG_FILE not in names:
            if remote_of(run_dir) == url:
                return run_dir  # killed before its first save
            raise RLTrainingError(f"'{url}' is not a run: it has no {CONFIG_FILE}; correct the URL")
        whole = _without_halves(names)
        if _newest(_local_files(run_dir)) >= _newest(whole) > "":
            return run_dir  # trained here, and not behind
        wanted = {names[name]: files[names[name]] for name in whole}
        _get_folder(system, wanted, root, run_dir, {REMOTE_FILE: json.dumps({"url": url}) + "\n"})
        _note_uploaded(run_dir)
    return run_dir


def publish(folder: Path) -> None:
    """After a save: bring the storage up to date, if the run or the one it is part of has some."""
    run_dir = folder if (folder / REMOTE_FILE).is_file() else folder.parent
    url = remote_of(run_dir)
    if url is None:
        return
    with _reported(url, "written", f"the run is kept in '{run_dir}'"):
        system, root = file_system(url)
        before, now = _read_uploaded(run_dir), _local_files(run_dir)
        changed = [name for name, stamp in now.items() if before.get(name) != stamp]
        # a checkpoint counts from its manifest on, and no longer without it
        for name in sorted(changed, key=lambda name: (_is_manifest(name), name)):
            system.put_file(str(run_dir / name), f"{root}/{name}")
        gone = sorted(before.keys() - now.keys(), key=lambda name: (not _is_manifest(name), name))
        for name in gone:
            if system.exists(f"{root}/{name}"):
                system.rm_file(f"{root}/{name}")
        _note_uploaded(run_dir, now)


def _local_files(run_dir: Path) -> dict[str, list[int]]:
    """Size and time of every file of a run, without hidden ones and halves of checkpoints."""
    found = {}
    for parent, folders, files in os.walk(run_dir):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                path = Path(parent) / name
                status = path.stat()
                relative = str(path.relative_to(run_dir))
                found[relative] = [status.st_size, status.st_mtime_ns]
    return {name: found[name] for name in _without_halves(found)}


def _without_halves(names: Any) -> list[str]:
    """Without files of checkpoints that have no manifest."""
    whole = {str(PurePosixPath(name).parent) for name in names if _is_manifest(name)}
    return [
        name
        for name in names
        if PurePosixPath(name).parent.parent.name != CHECKPOINTS
        or str(PurePosixPath(name).parent) in whole
    ]


def _is_manifest(name: str) -> bool:
    path = PurePosixPath(name)
    return path.name == MANIFEST and path.parent.parent.name == CHECKPOINTS


def _newest(names: Any) -> str:
    """The name of the newest checkpoint among files."""
    return max((PurePosixPath(n).parent.name for n in names if _is_manifest(n)), default="")


def _read_uploaded(run_dir: Path) -> dict[str, Any]:
    try:
        stored = json.loads((run_dir / UPLOADED_FILE).read_text(encoding="utf-8"))
        return stored if isinstance(stored, dict) else {}
    except (OSError, ValueError):
        return {}


def _note_uploaded(run_dir: Path, files: dict[str, list[int]] | None = None) -> None:
    known = _local_files(run_dir) if files is None else files
    replace_text(run_dir / UPLOADED_FILE, json.dumps(known))


# --- storage --------------------------------------------------------------------------------------


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtraError("fsspec", "storage", f"'{url}'") from None
    try:
        system, root = url_to_fs(url, use_listings_cache=False)
    except ImportError:
        package = "s3fs" if url.startswith("s3") else f"of fsspec for {url.partition(':')[0]}"
        raise MissingExtraError(package, "storage", f"'{url}'") from None
    return system, root


@contextmanager
def _reported(url: str, what: str, kept: str = "") -> Iterator[None]:
    """Turn an error of the storage into one of one sentence."""
    try:
        yield
    except RLTrainingError:
        raise
    except Exception as error:  # noqa: BLE001  (every storage has errors of its own)
        raise RLTrainingError(
            f"'{url}' cannot be {what} ({describe_exception(error)}); check the URL, the "
            f"credentials and the connection{f', {kept}' if kept else ''}"
        ) from None


def _cached(kind: str, *keys: str) -> Path:
    folder = cache_folder()
    if folder is None:
        raise RLTrainingError(
            f"'{keys[0]}' needs a folder for local copies; set RL_TRAINING_CACHE to one"
        )
    return folder / kind / hashlib.sha256("\n".join(keys).encode()).hexdigest()[:24]


def _version(info: dict[str, Any]) -> str:
    """What changes whenever a file does, as far as its storage says."""
    stamp = next((info[key] for key in ("ETag", "etag", "md5Hash", "mtime") if key in info), "")
    return f"{info['size']} {stamp}"


def _get(system: Any, name: str, info: dict[str, Any], target: Path) -> None:
    system.get_file(name, str(target))
    if target.stat().st_size != info["size"]:
        raise OSError(f"'{name}' came with {target.stat().st_size} of {info['size']} bytes")


def _get_folder(
    system: Any, files: dict[str, Any], above: str, place: Path, more: dict[str, str] | None = None
) -> None:
    """Copy files, with their paths below `above`, into a folder that appears at once."""
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=place.parent))
    try:
        for name, info in files.items():
            target = draft / PurePosixPath(name).relative_to(above)
            if draft.resolve() not in target.resolve().parents:
                raise OSError(f"'{name}' leads out of its folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            _get(system, name, info, target)
        for name, text in (more or {}).items():
            (draft / name).write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        if place.exists():
            put_in_place(draft, place)
        else:
            draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
