"""Atomic writing of files and folders.

A run folder may come from an untrusted source: drafts get unpredictable names, and no link
is followed out of the folder.
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
"""Prefix of the name of a folder that is set aside while another one takes its place."""
STALE_AFTER_S = 3600.0
"""Age in seconds from which an unchanged draft counts as left by a killed process."""

NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Error numbers that more disk space would not change."""


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Make a draft beside `path` that replaces it when the block succeeds and is removed when it
    fails. Drafts of `path` left by killed processes are removed as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_drafts(path.parent, f".{path.stem}.", f".draft{path.suffix}")
    handle, name = tempfile.mkstemp(
        prefix=f".{path.stem}.", suffix=f".draft{path.suffix}", dir=path.parent
    )
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        # mkstemp makes private files; the result gets the usual permissions.
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o666 & ~umask)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def append_text(path: Path) -> IO[str]:
    """Open a text file for appending; raises OSError if it is a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8")


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading; raises OSError for a pipe or a device, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders atomically; False if the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False  # another C library
    at_cwd, rename_exchange = -100, 2
    return bool(rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), rename_exchange) == 0)


def aside_of(path: Path) -> Path:
    """The path of a folder that is set aside while another one takes its place in two steps."""
    return path.with_name(f"{REPLACED}{path.name}")


def put_in_place(draft: Path, path: Path) -> None:
    """Replace the folder at `path` by `draft`, so that one of the two exists at any time; if the
    system cannot exchange folders, a killed process may leave the old one set aside."""
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
    """Restore a folder that a killed process set aside without replacing it."""
    aside = aside_of(path)
    if aside.is_dir() and not os.path.lexists(path):
        aside.rename(path)


def remove_stale_drafts(folder: Path, prefix: str, suffix: str = "") -> None:
    """Remove old drafts of files or folders, which have names made by `tempfile`."""
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
    """Write a folder's names to the disk; Windows opens no folders and keeps their names itself."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
