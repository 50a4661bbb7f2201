"""Files and folders that are whole or absent, and never somebody else's.

A run folder may come from a stranger: what is written in it is written under names that
cannot be foreseen, and no link is followed out of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

REPLACED = ".replaced-"
"""How the name of a folder begins that waits while another one takes its place."""
STALE_AFTER_S = 3600.0
"""Age from which a draft that nobody writes to is one that a killed process has left."""

NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Numbers of errors that more room would not change."""


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place when the block ends well, and is
    removed when it does not. Drafts of `path` that killed processes have left go, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_drafts(path.parent, f".{path.stem}.", f".draft{path.suffix}")
    handle, name = tempfile.mkstemp(
        prefix=f".{path.stem}.", suffix=f".draft{path.suffix}", dir=path.parent
    )
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        # mkstemp makes private files; what is saved is as readable as any other file.
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o666 & ~umask)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def append_text(path: Path) -> IO[str]:
    """A text file opened for appending, or OSError where a link is in its place."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8")


def open_regular(path: Path) -> IO[bytes]:
    """A file opened for reading; OSError for a pipe or a device, which could be read for ever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
    return os.fdopen(descriptor, "rb")


def exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names in one step; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False  # another C library
    at_cwd, rename_exchange = -100, 2
    return bool(rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), rename_exchange) == 0)


def aside_of(path: Path) -> Path:
    """Where a folder waits while another one takes its place in two steps."""
    return path.with_name(f"{REPLACED}{path.name}")


def put_in_place(draft: Path, path: Path) -> None:
    """Put the folder `draft` in the place of the one at `path`, of which there is one at any
    time; where the system cannot exchange them, a killed process leaves the old one aside."""
    if exchange(draft, path):
        flush_to_disk(path.parent)
        shutil.rmtree(draft, ignore_errors=True)
        return
    aside = aside_of(path)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    try:
        draft.rename(path)
    except BaseException:
        aside.rename(path)
        raise
    flush_to_disk(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def bring_back(path: Path) -> None:
    """Put a folder back that a killed process has left aside without another in its place."""
    aside = aside_of(path)
    if aside.is_dir() and not os.path.lexists(path):
        aside.rename(path)


def remove_stale_drafts(folder: Path, prefix: str, suffix: str = "") -> None:
    """Remove drafts of files or folders, named by `tempfile`, that were left long ago."""
    for draft in folder.iterdir() if folder.is_dir() else ():
        if not re.fullmatch(rf"{re.escape(prefix)}\w{{8}}{re.escape(suffix)}", draft.name):
            continue
        with suppress(OSError):  # another process may have removed it
            newest = max(path.lstat().st_mtime for path in (draft, *draft.rglob("*")))
            if time.time() - newest < STALE_AFTER_S:
                continue
            if draft.is_dir() and not draft.is_symlink():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink()


def flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
