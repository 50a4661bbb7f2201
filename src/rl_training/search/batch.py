"""Runs jobs that are all known from the beginning, each of which makes some of many files."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.errors import RLTrainingError
from rl_training.search.launch import POLL_SECONDS, Job, Launcher, Restarts

GROUPS_PER_WORKER = 4
"""Jobs of each worker, so that all of them end at about the same time."""
FILES_PER_JOB = 4
"""At least, where each worker has as many, because a process takes seconds to start."""


@dataclass(frozen=True)
class FilesJob(Job):
    """Makes files of a plan that are next to each other, and leaves those that are there."""

    module: str
    plan: Path
    """What the module reads; it ends with `run_as_job`."""
    first: int
    last: int
    files: tuple[Path, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        bounds = (str(self.first), str(self.last))
        return ("-m", self.module, str(self.plan.absolute()), *bounds)

    @property
    def progress(self) -> str:
        return str(sum(file.exists() for file in self.files))


def files_jobs(
    module: str, plan: Path, files: Sequence[Path], logs: Path, name: str, workers: int
) -> list[FilesJob]:
    """The jobs that make those of the files that are not there, in groups."""
    missing = [index for index, file in enumerate(files) if not file.exists()]
    even = math.ceil(len(missing) / workers)
    size = max(1, math.ceil(even / GROUPS_PER_WORKER), min(FILES_PER_JOB, even))
    groups: list[list[int]] = []
    for index in missing:
        if groups and groups[-1][-1] == index - 1 and len(groups[-1]) < size:
            groups[-1].append(index)
        else:
            groups.append([index])
    found = []
    for first, last in ((group[0], group[-1]) for group in groups):
        title = f"{name}-{first:05d}-{last:05d}"
        chosen = tuple(files[first : last + 1])
        found.append(FilesJob(title, logs / f"{title}.log", module, plan, first, last + 1, chosen))
    return found


def run_jobs(
    jobs: Sequence[Job],
    launcher: Launcher[Any],
    on_look: Callable[[], None],
    go_on: str = "the same command",
) -> None:
    """Run all jobs; one that is killed is started again, and one that fails ends all others.

    `on_look` is called again and again meanwhile, and once at the end.
    """
    waiting, restarts = list(jobs), Restarts()
    with launcher:
        while waiting or launcher.running:
            for end in launcher.ended():
                if end.code == 0:
                    continue
                if end.stopped and restarts.allowed(end.job):
                    waiting.append(end.job)
                    continue
                why = end.why.removeprefix("error: ")
                advice = "" if go_on in why else f"; correct that, and {go_on} goes on"
                raise RLTrainingError(
                    f"{end.job.name} failed: {why} (log: {end.job.log_file}){advice}"
                )
            while waiting and launcher.free:
                launcher.start(waiting.pop(0))
            on_look()
            time.sleep(POLL_SECONDS)
    on_look()


def run_as_job(work: Callable[[Path, int, int], None]) -> None:
    """The main function of a `FilesJob`'s module."""
    # so that a draft is removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    plan, first, last = sys.argv[1:]
    try:
        work(Path(plan), int(first), int(last))
    except RLTrainingError as error:
        print(f"error: {error}", flush=True)
        sys.exit(2)
