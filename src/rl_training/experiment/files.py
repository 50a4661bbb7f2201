"""Files and folders that are whole or absent, and never somebody else's.

A run folder may come from a stranger: what is written in it is written under names that
cannot be foreseen, and no link is followed out of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Numbers of errors that more room would not change."""


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place when the block ends well, and is
    removed when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
