"""What trains the runs of a study: processes here, tasks of a Ray cluster or jobs of Slurm."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Self, TypeVar

POLL_SECONDS = 0.2
SAVE_SECONDS = 60.0
"""How long runs may take to save when a study is stopped."""
MOST_RESTARTS = 3
"""Of a killed job that makes no progress."""
LEAST_FREE_BYTES = 2**16
"""Below that a disk counts as full."""
PAUSED = 128 + signal.SIGTERM
"""Exit code of a run that was asked to save and end."""

Handle = TypeVar("Handle")


@dataclass(frozen=True)
class Job:
    """A command that goes on where it was killed, if it is started again."""

    name: str
    log_file: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of the Python interpreter."""
        raise NotImplementedError

    @property
    def progress(self) -> str:
        """Something that changes whenever the job has saved."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    job: Job
    code: int
    """Below zero if it was killed, or the node on which it ran was lost."""
    seconds: float
    message: str = ""
    """Why, if the launcher can tell."""

    @property
    def stopped(self) -> bool:
        """Whether it was killed, or asked to save by a scheduler, rather than failed."""
        return self.code < 0 or self.code == PAUSED

    @property
    def why(self) -> str:
        """The launcher's reason, the last line of the log, or what kept it from being written."""
        known = self.message or last_line(self.job.log_file) or full_disk(self.job.log_file)
        return known or f"exit code {self.code}"


@dataclass
class Started(Generic[Handle]):
    """A job in the hands of a launcher."""

    job: Job
    handle: Handle
    began: float
    paused: bool = False


class Launcher(ABC, Generic[Handle]):
    """Runs jobs, a number of them at a time.

    As a context it ends with all of its jobs: they may save first.
    """

    def __init__(self) -> None:
        self._started: dict[str, Started[Handle]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    @abstractmethod
    def workers(self) -> int:
        """Jobs that may run at a time."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What a user is shown about it."""

    @property
    def free(self) -> int:
        """Jobs that may be started now."""
        return max(0, self.workers - len(self._started))

    @property
    def running(self) -> set[str]:
        """Names of the jobs that run."""
        return set(self._started)

    def start(self, job: Job) -> None:
        """Begin a job, or go on with it."""
        with signals_afterwards():
            self._started[job.name] = Started(job, self._begin(job), time.monotonic())

    def ended(self) -> list[Ended]:
        """Those that have ended since the last call."""
        found = []
        for name, one in list(self._started.items()):
            outcome = self._outcome(one.handle)
            if outcome is not None:
                del self._started[name]
                code, message = outcome
                found.append(Ended(one.job, code, time.monotonic() - one.began, message))
        return found

    def pause(self, names: set[str]) -> None:
        """Let jobs save and end."""
        for name in names & self.running:
            one = self._started[name]
            if not one.paused:  # once: a second signal would end a run without saving
                one.paused = True
                self._interrupt(one.handle)

    def stop(self) -> None:
        """Let all jobs save, and wait until they have ended; a second Ctrl-C ends them at once."""
        deadline = time.monotonic() + SAVE_SECONDS
        try:
            self.pause(self.running)
            while self._started and time.monotonic() < deadline:
                self.ended()
                time.sleep(POLL_SECONDS / 4)
        finally:
            for one in self._started.values():
                self._kill(one.handle)
            self._started.clear()

    @abstractmethod
    def _begin(self, job: Job) -> Handle: ...

    @abstractmethod
    def _outcome(self, handle: Handle) -> tuple[int, str] | None:
        """Exit code and reason of a job that has ended."""

    @abstractmethod
    def _interrupt(self, handle: Handle) -> None:
        """Ask a job to save and end."""

    @abstractmethod
    def _kill(self, handle: Handle) -> None:
        """End a job that does not save in time."""


class Restarts:
    """Counts how often jobs were killed without having saved anything new in between."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[str, int]] = {}

    def allowed(self, job: Job) -> bool:
        """Whether a job that was killed may be started again."""
        before, count = self._counts.get(job.name, ("", 0))
        now = job.progress
        count = count + 1 if now == before else 1
        self._counts[job.name] = (now, count)
        return count <= MOST_RESTARTS


@contextmanager
def signals_afterwards() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the end of the context.

    Python loses an exception that a signal raises while it forks, and a job that has begun must
    be known to what stops it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, frame: came.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])


# --- processes ------------------------------------------------------------------------------------


def start_process(
    arguments: Sequence[str],
    log_file: Path,
    environment: Mapping[str, str],
    folder: str | None = None,
) -> subprocess.Popen[bytes]:
    """Run this Python with these arguments; on Linux it is asked to save if its parent dies."""
    with log_file.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            cwd=folder,
            # its own session: Ctrl-C reaches the parent alone, which stops all jobs in order
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()) if sys.platform == "linux" else None,
        )


def terminate(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process at once, with its children where the system has groups of processes."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()


def _end_with(parent: int) -> Callable[[], None]:
    """Asks Linux for SIGTERM when the parent dies, so that no orphan trains on."""
    library = ctypes.CDLL(None, use_errno=True)  # loaded before the fork

    def ask() -> None:
        pr_set_pdeathsig = 1
        library.prctl(pr_set_pdeathsig, signal.SIGTERM)
        if os.getppid() != parent:  # it died before
            os._exit(128 + signal.SIGTERM)

    return ask


def full_disk(path: Path) -> str:
    """A sentence if there is no room for a file."""
    with suppress(OSError):
        if shutil.disk_usage(path.parent).free < LEAST_FREE_BYTES:
            return f"there is no space left on the disk of '{path.parent}'; make room"
    return ""


def last_line(path: Path) -> str:
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
