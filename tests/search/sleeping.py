"""A launcher for tests of what is started when."""

from __future__ import annotations

import subprocess

from rl_training.search.launch import Job
from rl_training.search.local import LocalProcesses, Process


class SleepingRuns(LocalProcesses):
    """Processes that do nothing; the test writes what their runs would."""

    def _begin(self, job: Job) -> Process:
        return Process(subprocess.Popen(["sleep", "600"]), 0)

    def end(self, *names: str) -> None:
        for name in names:
            process = self._started[name].handle.popen
            process.kill()
            process.wait()

    @property
    def paused(self) -> set[str]:
        return {name for name, one in self._started.items() if one.paused}
