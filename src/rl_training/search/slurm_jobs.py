"""Runs jobs in Slurm, by submitit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.config_files import apply_overrides
from rl_training.experiment.errors import ConfigError, MissingExtraError, describe_exception
from rl_training.experiment.tracking import reraise_os_error
from rl_training.search.launch import Job, Launcher
from rl_training.search.nodes import NodeCommand

LOST = -9
"""Exit code of a job that Slurm ended."""
DEFAULTS = {"timeout_min": 24 * 60}


@dataclass(frozen=True)
class Submitted:
    """A job of submitit, and the file that asks it to save and end."""

    job: Any
    stop_file: Path


class SlurmJobs(Launcher[Submitted]):
    """Runs each run as a Slurm job with its CPUs and GPUs.

    A job that reaches its time limit or is preempted saves and is queued again by submitit. Its
    files are in a private folder, which is removed at the end: they are pickled, and none that
    was there before is read.
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        threads: int = 1,
        gpus_per_run: float = 0.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._submitit = _imported()
        self._folder, self._workers, self.threads = folder, workers, threads
        parameters = {**DEFAULTS, **(settings or {})}
        self._cluster = parameters.pop("cluster", "slurm")
        self._parameters = {**parameters, "cpus_per_task": threads}
        if gpus_per_run:
            if gpus_per_run != int(gpus_per_run):
                raise ConfigError(
                    f"--gpus-per-run: Slurm gives whole GPUs, got {gpus_per_run:g}; give 1 or more"
                )
            self._parameters["gpus_per_node"] = int(gpus_per_run)
        self._files: Path | None = None
        self._executor: Any = None
        if self._cluster == "slurm" and shutil.which("sbatch") is None:
            raise ConfigError(
                "--launcher slurm: 'sbatch' is not found; give the command on a machine from which "
                "jobs can be submitted"
            )
        with tempfile.TemporaryDirectory() as elsewhere:
            self._executor_in(Path(elsewhere))  # refuses wrong settings before anything is made

    @property
    def workers(self) -> int:
        return self._workers

    @property
    def words(self) -> str:
        return f"{self._workers} Slurm job{'s' if self._workers > 1 else ''} at a time"

    def stop(self) -> None:
        super().stop()
        if self._files is not None:
            shutil.rmtree(self._files, ignore_errors=True)
        self._files = self._executor = None

    def _executor_in(self, folder: Path) -> Any:
        try:
            executor = self._submitit.AutoExecutor(folder, cluster=self._cluster)
            executor.update_parameters(**self._parameters)
        except (ValueError, TypeError, AssertionError, NameError, RuntimeError) as error:
            raise ConfigError(
                f"--slurm: {describe_exception(error)}; give settings of submitit, such as "
                "slurm_partition=NAME and timeout_min=240"
            ) from None
        return executor

    def _begin(self, job: Job) -> Submitted:
        if self._files is None:
            with reraise_os_error(self._folder):
                self._files = Path(tempfile.mkdtemp(prefix=".slurm-", dir=self._folder)).absolute()
            self._executor = self._executor_in(self._files)
        self._executor.update_parameters(name=job.name[:60])
        stop_file = self._files / f"{job.name}.stop"
        stop_file.unlink(missing_ok=True)  # of the same run, paused before
        return Submitted(
            self._executor.submit(NodeCommand.of(job, self.threads, stop_file)), stop_file
        )

    def _outcome(self, handle: Submitted) -> tuple[int, str] | None:
        job = handle.job
        if not job.done():
            return None
        utils = self._submitit.core.utils
        try:
            return int(job.result()), ""
        except utils.FailedJobError as error:  # raised on the node
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return 1, lines[-1].partition("Error: ")[2] or lines[-1]
        except utils.UncompletedJobError:
            return LOST, f"ended by Slurm in the state {job.state}"

    def _interrupt(self, handle: Submitted) -> None:
        if handle.job.state == "PENDING":
            self._kill(handle)
        else:
            handle.stop_file.touch()

    def _kill(self, handle: Submitted) -> None:
        handle.job.cancel(check=False)


def slurm_settings(texts: list[str]) -> dict[str, Any]:
    """The values of `--slurm KEY=VALUE`."""
    return apply_overrides({}, texts)


def _imported() -> Any:
    try:
        import submitit
    except ImportError:
        raise MissingExtraError("submitit", "slurm", "--launcher slurm") from None
    return submitit
