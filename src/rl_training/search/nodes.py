"""What runs on a node of a cluster: one job, with its log in the folder of the study."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_training.experiment.errors import RLTrainingError
from rl_training.experiment.tracking import versions
from rl_training.search.launch import (
    POLL_SECONDS,
    SAVE_SECONDS,
    Job,
    kill,
    start_process,
    terminate,
)

SEEN_SECONDS = 60.0
"""How long a network file system may take to show a new file."""


@dataclass
class NodeCommand:
    """A job as it travels to a node. Called there, it returns the exit code."""

    arguments: tuple[str, ...]
    log_file: str
    environment: dict[str, str]
    folder: str
    """Where the command was given, in which modules of the user are found."""
    version: str
    stop_file: str | None = None
    """Once it is there, the job saves and ends."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, job: Job, threads: int, stop_file: Path | None = None) -> NodeCommand:
        job.log_file.touch()  # a node that does not see it has another file system
        environment = {"OMP_NUM_THREADS": str(threads)}
        if path := os.environ.get("PYTHONPATH"):
            environment["PYTHONPATH"] = path
        log_file = str(job.log_file.absolute())
        version = versions()["rl-training"]
        stop = None if stop_file is None else str(stop_file.absolute())
        return cls(job.arguments, log_file, environment, os.getcwd(), version, stop)

    def __call__(self) -> int:
        log_file = Path(self.log_file)
        self._refuse_other_node(log_file)
        folder = self.folder if os.path.isdir(self.folder) else None
        self._process = start_process(self.arguments, log_file, self.environment, folder)
        try:
            while self._process.poll() is None:
                if self.stop_file is not None and os.path.exists(self.stop_file):
                    raise KeyboardInterrupt
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:  # how Ray cancels a task
            self._end()
        finally:
            kill(self._process)
        return self._process.returncode

    def checkpoint(self) -> Any:
        """Before Slurm ends the job: let it save, and go on with it in a new job."""
        import submitit

        self._end()
        return submitit.helpers.DelayedSubmission(replace(self, _process=None))

    def _end(self) -> None:
        if self._process is None:
            return
        terminate(self._process)
        deadline = time.monotonic() + SAVE_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 4)

    def _refuse_other_node(self, log_file: Path) -> None:
        own, node = versions()["rl-training"], platform.node()
        if own != self.version:
            raise RLTrainingError(
                f"node '{node}' has rl-training {own}, but the study is trained with "
                f"{self.version}; install that version on every node"
            )
        deadline = time.monotonic() + SEEN_SECONDS
        while not log_file.exists():
            if time.monotonic() > deadline:
                raise RLTrainingError(
                    f"node '{node}' does not see '{log_file.parent}'; choose a folder on a file "
                    "system that all nodes share with --out"
                )
            time.sleep(POLL_SECONDS)
