"""Options of commands that run many jobs: where, and how many at a time."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
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

_Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at a time; by default one for each GPU, else for each core."),
]
_Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads of each run; by default a fair share, on a cluster 1."),
]
_Gpus = Annotated[
    str | None,
    typer.Option(help="GPUs that the runs here take in turn, such as 0,1; by default all."),
]
_Launcher = Annotated[
    LauncherName, typer.Option(help="Where runs are trained: in processes here, by Ray or Slurm.")
]
_Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of a Ray cluster; by default that of this machine, or a new one.",
    ),
]
_GpusPerRun = Annotated[
    float | None, typer.Option(min=0.0, help="GPUs of each run on a cluster; with Ray also 0.5.")
]
_Slurm = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Setting of submitit, such as slurm_partition=gpu or timeout_min=240; repeatable.",
    ),
]


@dataclass(frozen=True)
class Wanted:
    """The launcher that the options describe."""

    name: LauncherName = LauncherName.LOCAL
    workers: int | None = None
    threads: int | None = None
    gpus: str | None = None
    address: str | None = None
    gpus_per_run: float | None = None
    slurm: list[str] | None = None

    @property
    def is_default(self) -> bool:
        """Whether nothing was asked for."""
        return self == Wanted(threads=self.threads)

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
        from rl_training.runtime.build import resolve_device
        from rl_training.search.local import LocalProcesses, Slots, visible_gpus

        chosen = sorted({*devices})
        for device in chosen:
            resolve_device(device)  # refuses one that this machine does not have
        if self.gpus:
            named = [gpu.strip() for gpu in self.gpus.split(",") if gpu.strip()]
        else:
            named = visible_gpus() if {"auto", "cuda"} & {*chosen} else []
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


OPTIONS: dict[str, tuple[Any, Any]] = {
    "workers": (_Workers, None),
    "threads": (_Threads, None),
    "gpus": (_Gpus, None),
    "launcher": (_Launcher, LauncherName.LOCAL),
    "address": (_Address, None),
    "gpus_per_run": (_GpusPerRun, None),
    "slurm": (_Slurm, None),
}
"""Annotations and defaults, by the name of the argument."""
WITHOUT_TRAINING = ("workers", "launcher", "address", "slurm")
"""Options of jobs that use one thread and no GPU."""


def with_launcher(
    *names: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of launchers, by default all; it gets them as `wanted`."""
    chosen = names or tuple(OPTIONS)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        parameters = [one for one in own.parameters.values() if one.name != "wanted"]
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for name, (annotation, default) in OPTIONS.items()
            if name in chosen
        ]

        @wraps(command)
        def run(**given: Any) -> None:
            options = {name: given.pop(name) for name in chosen}
            name, threads = options.pop("launcher"), options.pop("threads", 1)
            command(**given, wanted=Wanted(name, threads=threads, **options))

        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


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
