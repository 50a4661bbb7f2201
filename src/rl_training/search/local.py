"""Runs jobs in processes of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from rl_training.experiment.cores import usable_cores
from rl_training.experiment.errors import ConfigError
from rl_training.search.launch import Job, Launcher, kill, start_process, terminate


@dataclass(frozen=True)
class Slots:
    """What the processes may use."""

    workers: int
    threads: int
    gpus: tuple[str, ...] = ()
    """Given to the processes in turn; none leaves the choice to the config."""

    @classmethod
    def of(
        cls, workers: int | None, threads: int | None, gpus: Sequence[str], trials: int
    ) -> Slots:
        """By default one process for each GPU that is named, or one for each core."""
        _refuse_missing_gpus(gpus)
        cores = usable_cores()
        wanted = workers or len(gpus) or cores
        wanted = max(1, min(wanted, trials))
        return cls(wanted, threads or max(1, cores // wanted), tuple(gpus))


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    count = torch.cuda.device_count()
    known = [name.strip() for name in named if name.strip()]
    return known[:count] if known else [str(number) for number in range(count)]


def _refuse_missing_gpus(named: Sequence[str]) -> None:
    known = visible_gpus() if named else []
    for gpu in named:
        if not known or (gpu not in known and not gpu.startswith(("GPU-", "MIG-"))):
            found = f"those there are: {', '.join(known)}" if known else "there is none"
            raise ConfigError(
                f"--gpus: GPU {gpu} was not found, {found}; name others, or leave --gpus out"
            )


@dataclass
class Process:
    """A process and the place that it takes."""

    popen: subprocess.Popen[bytes]
    place: int


class LocalProcesses(Launcher[Process]):
    """Runs jobs in processes of this machine, each with its share of threads and its GPU.

    If this process is killed, they save and end too.
    """

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self.slots = slots

    @property
    def workers(self) -> int:
        return self.slots.workers

    @property
    def words(self) -> str:
        plural = "s" if self.slots.threads > 1 else ""
        return f"{self.slots.workers} at a time, {self.slots.threads} thread{plural} each"

    def _begin(self, job: Job) -> Process:
        taken = {one.handle.place for one in self._started.values()}
        place = next(i for i in range(self.slots.workers) if i not in taken)
        environment = {"OMP_NUM_THREADS": str(self.slots.threads)}
        if self.slots.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.slots.gpus[place % len(self.slots.gpus)]
        return Process(start_process(job.arguments, job.log_file, environment), place)

    def _outcome(self, handle: Process) -> tuple[int, str] | None:
        code = handle.popen.poll()
        return None if code is None else (code, "")

    def _interrupt(self, handle: Process) -> None:
        terminate(handle.popen)

    def _kill(self, handle: Process) -> None:
        kill(handle.popen)
