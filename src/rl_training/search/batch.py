"""Runs jobs that are all known from the beginning."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rl_training.experiment.errors import RLTrainingError
from rl_training.search.launch import POLL_SECONDS, Job, Launcher, Restarts


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
                raise RLTrainingError(
                    f"{end.job.name} failed: {end.why.removeprefix('error: ')} (log: "
                    f"{end.job.log_file}); correct that, and {go_on} goes on"
                )
            while waiting and launcher.free:
                launcher.start(waiting.pop(0))
            on_look()
            time.sleep(POLL_SECONDS)
    on_look()
