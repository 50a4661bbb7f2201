"""Options of commands that run many jobs: where, and how many at a time."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import out
from rl_training.experiment.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.search.launch import Launcher


class LauncherName(StrEnum):
    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"


SLURM_WORKERS = 100
"""Jobs that are submitted at a time, unless asked otherwise; Slurm decides when they run."""

WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at a time; by default one for each GPU, else for each core."),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Threads of each run; by default a fair share, on a cluster 1."),
]
GpusOption = Annotated[
    str | None,
    typer.Option(help="GPUs that the runs here take in turn, such as 0,1; by default all."),
]
LauncherOption = Annotated[
    LauncherName, typer.Option(help="Where runs are trained: in processes here, by Ray or Slurm.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Of a Ray cluster; by default that of this machine, or a new one."
    ),
]
GpusPerRunOption = Annotated[
    float | None, typer.Option(min=0.0, help="GPUs of each run on a cluster; with Ray also 0.5.")
]
SlurmOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Setting of submitit, such as slurm_partition=gpu or timeout_min=240; repeatable.",
    ),
]


@dataclass(frozen=True)
class Wanted:
    """The launcher that the options describe."""

    name: LauncherName
    workers: int | None = None
    threads: int | None = None
    gpus: str | None = None
    address: str | None = None
    gpus_per_run: float | None = None
    slurm: list[str] | None = None

    def launcher(self, folder: Path, jobs: int, devices: Iterable[str] = ()) -> Launcher[Any]:
        """Made for so many jobs at most, whose files are in this folder.

        Jobs whose `devices` leave the choice of a GPU open get one each, if there are any.
        """
        self._refuse_options_of_others()
        if self.name is LauncherName.RAY:
            from rl_training.search.ray_tasks import RayTasks

            return RayTasks(self.address, self.workers, self.threads or 1, self.gpus_per_run or 0.0)
        if self.name is LauncherName.SLURM:
            from rl_training.search.slurm_jobs import SlurmJobs, slurm_settings

            return SlurmJobs(
                folder,
                min(self.workers or SLURM_WORKERS, jobs),
                self.threads or 1,
                self.gpus_per_run or 0.0,
                slurm_settings(self.slurm or []),
            )
        from rl_training.search.local import LocalProcesses, Slots, visible_gpus

        if self.gpus:
            named = [gpu.strip() for gpu in self.gpus.split(",") if gpu.strip()]
        else:
            named = visible_gpus() if {"auto", "cuda"} & {*devices} else []
        return LocalProcesses(Slots.of(self.workers, self.threads, named, jobs))

    def _refuse_options_of_others(self) -> None:
        local, ray, slurm = LauncherName.LOCAL, LauncherName.RAY, LauncherName.SLURM
        for option, value, owners in (
            ("--gpus", self.gpus, (local,)),
            ("--address", self.address, (ray,)),
            ("--gpus-per-run", self.gpus_per_run, (ray, slurm)),
            ("--slurm", self.slurm, (slurm,)),
        ):
            if value is not None and self.name not in owners:
                names = " or ".join(f"--launcher {owner.value}" for owner in owners)
                raise ConfigError(f"{option}: it needs {names}; remove it, or choose that launcher")


class _Terminated(BaseException):
    """SIGTERM."""


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise _Terminated


@contextmanager
def _saved_when_stopped() -> Iterator[None]:
    """End with a sentence and the usual exit code on Ctrl-C and SIGTERM."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except (KeyboardInterrupt, _Terminated) as stop:
        out.print("stopped; the same command goes on with what is saved")
        raise typer.Exit(130 if isinstance(stop, KeyboardInterrupt) else 143) from None
    finally:
        signal.signal(signal.SIGTERM, before)


resumable = _saved_when_stopped()
"""Of a command that goes on where it was stopped."""
