"""Locks a run folder, so that one process at a time works in it and only inside it."""

from __future__ import annotations

import errno
import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rl_training.experiment.errors import RLTrainingError, RunInUseError
from rl_training.experiment.files import NOT_ALLOWED

POSIX = os.name == "posix"
"""Otherwise Windows, which has other locks."""
if POSIX:
    import fcntl
else:
    import msvcrt

LOCK_FILE = ".lock"
LOOK_SECONDS = 0.2
"""How long another process may look at a lock."""
LOCKED_BYTE = 1 << 30
"""Windows lets nobody read a locked byte: one far behind the text of the file is locked."""
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_held: set[int] = set()


def _forget_locks() -> None:
    """Close the locks in a forked worker, which must not keep them when its parent ends."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


@contextmanager
def working_in(run_dir: Path, *parts: Path) -> Iterator[None]:
    """While active, no other process may train in this run folder or in its sub-runs.

    The lock ends with the process, however it ends. Raises an error if another process holds
    the lock, or if a link leads out of the folder.
    """
    with ExitStack() as locks:
        for folder in (run_dir, *(part for part in parts if part.is_dir())):
            _refuse_links(folder)
            locks.enter_context(_locked(folder))
        yield


@contextmanager
def alone_in(folder: Path, patience_s: float = 60.0) -> Iterator[None]:
    """While active, every other process that asks for the same waits, for at most that long."""
    deadline = time.monotonic() + patience_s
    with ExitStack() as lock:
        while True:
            try:
                lock.enter_context(_locked(folder))
                break
            except RunInUseError:
                if time.monotonic() > deadline:
                    raise
        yield


WRITTEN = (
    "checkpoints",
    "tensorboard",
    "metrics.jsonl",
    "metrics.csv",
    "wandb",
    "wandb.json",
    "mlflow.json",
)
"""The files that a run appends to; it replaces all others as a whole."""


def _refuse_links(run_dir: Path) -> None:
    with os.scandir(run_dir) as entries:
        links = sorted(entry.name for entry in entries if entry.is_symlink())
    for name in links:
        if name.startswith("seed-") or name in WRITTEN:
            raise RLTrainingError(
                f"run '{run_dir}': '{name}' is a link to '{os.readlink(run_dir / name)}', but a "
                "run writes only inside its own folder; replace the link by what it points to"
            )


def is_in_use(run_dir: Path) -> bool:
    """Whether a process trains in this run folder, as far as the file system can tell."""
    try:
        descriptor = os.open(run_dir / LOCK_FILE, os.O_RDONLY | NO_LINKS)
    except OSError:
        return False
    try:
        _take(descriptor, shared=True)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder / LOCK_FILE
    descriptor = _lock(path)
    if descriptor is None:
        yield
        return
    _held.add(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
        yield
    finally:
        if descriptor in _held:  # otherwise this is a fork of the process that holds it
            _held.remove(descriptor)
            if not POSIX:  # Windows removes no open file, and none that another has opened
                os.close(descriptor)
                with suppress(OSError):
                    path.unlink()
            else:
                path.unlink(missing_ok=True)
                os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Return the descriptor that holds the lock; None if the file system has no locks."""
    deadline = time.monotonic() + LOOK_SECONDS
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINKS, 0o666)
        except OSError as error:
            remedy = "make it writable for you" if error.errno in NOT_ALLOWED else "make room"
            if error.errno == errno.ELOOP:
                remedy = f"remove the link '{LOCK_FILE}' in it"
            raise RLTrainingError(
                f"run folder '{path.parent}' cannot be written: {error.strerror}; {remedy}"
            ) from None
        try:
            _take(descriptor, shared=False)
        except BlockingIOError:
            if time.monotonic() < deadline:  # `is_in_use` holds it for an instant
                os.close(descriptor)
                time.sleep(0.01)
                continue
            os.lseek(descriptor, 0, os.SEEK_SET)
            pid, _, host = os.read(descriptor, 300).decode(errors="replace").partition(" ")
            os.close(descriptor)
            raise RunInUseError(
                f"run '{path.parent}' is in use by process {ascii(pid)[1:-1] or 'unknown'} on "
                f"{ascii(host.strip())[1:-1] or 'this machine'}; wait until it has ended, or end it"
            ) from None
        except OSError:
            os.close(descriptor)
            return None
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)  # its holder removed it meanwhile: use the new file


def _take(descriptor: int, shared: bool) -> None:
    """Lock an open file until it is closed; BlockingIOError if another process has locked it, and
    another OSError where there are no locks."""
    if POSIX:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return
    os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except PermissionError as error:
        raise BlockingIOError(errno.EAGAIN, "locked by another process") from error


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the file at this path is still the one that was opened."""
    own = os.fstat(descriptor)
    if not stat.S_ISREG(own.st_mode):
        os.close(descriptor)
        raise RLTrainingError(f"'{path}' is not a regular file; remove it")
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)
