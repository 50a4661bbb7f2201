"""Runs the trials of a study in processes of this machine."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rl_training.experiment.cores import usable_cores
from rl_training.experiment.errors import ConfigError
from rl_training.search.study import Study, Trial

POLL_SECONDS = 0.2
SAVE_SECONDS = 60.0
"""How long runs may take to save when a study is stopped."""


@dataclass
class Outcome:
    """How the trials have ended so far."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by name: the last line of the log."""
    taken_over: int = 0
    """Runs that had begun before, and were gone on with."""


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


def _refuse_missing_gpus(named: Sequence[str]) -> None:
    """GPUs are named by their number, or as `CUDA_VISIBLE_DEVICES` has them."""
    if not named:
        return
    import torch

    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    count = torch.cuda.device_count()
    known = [*filter(None, visible)] or [str(number) for number in range(count)]
    for gpu in named:
        if count == 0 or (gpu not in known and not gpu.startswith(("GPU-", "MIG-"))):
            found = f"those there are: {', '.join(known)}" if count else "there is none"
            raise ConfigError(
                f"--gpus: GPU {gpu} was not found, {found}; name others, or leave --gpus out"
            )


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    trial: Trial
    code: int
    seconds: float

    @property
    def why(self) -> str:
        """The last line of its log."""
        return _last_line(self.trial.log_file) or f"exit code {self.code}"


class LocalProcesses:
    """Trains runs in processes of this machine, each with its share of threads and its GPU.

    As a context it ends with all of them: an error lets the runs save first. If this process is
    killed, they end too.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._running: dict[int, tuple[Trial, subprocess.Popen[bytes], float]] = {}
        self._paused: set[int] = set()

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def free(self) -> int:
        """Runs that may be started now."""
        return self.slots.workers - len(self._running)

    @property
    def running(self) -> set[str]:
        """Names of the runs that these processes train."""
        return {trial.name for trial, _, _ in self._running.values()}

    def start(self, trial: Trial) -> None:
        """Begin a run, or go on with it."""
        slot = next(i for i in range(self.slots.workers) if i not in self._running)
        self._running[slot] = (trial, self._process(trial, slot), time.monotonic())

    def ended(self) -> list[Ended]:
        """Those that have ended since the last call."""
        found = []
        for slot, (trial, process, began) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[slot]
                self._paused.discard(process.pid)
                found.append(Ended(trial, code, time.monotonic() - began))
        return found

    def pause(self, names: set[str]) -> None:
        """Let runs save and end."""
        for trial, process, _ in self._running.values():
            # once: a second signal would end the run without saving
            if trial.name in names and process.pid not in self._paused:
                self._paused.add(process.pid)
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Let all runs save, and wait until they have ended; a second Ctrl-C ends them at once."""
        deadline = time.monotonic() + SAVE_SECONDS
        try:
            self.pause(self.running)
            for _, process, _ in self._running.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            for _, process, _ in self._running.values():
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            self._running.clear()

    def _process(self, trial: Trial, slot: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rl_training", "train", str(trial.config_file)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.slots.threads)}
        if self.slots.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.slots.gpus[slot % len(self.slots.gpus)]
        # its own session: Ctrl-C reaches this process alone, which stops all of them in order
        with trial.log_file.open("ab") as log:
            return subprocess.Popen(
                [*command, "--resume", "--quiet"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with(os.getpid()) if sys.platform == "linux" else None,
            )


class LocalLauncher:
    """Runs all trials of a study, a number of processes at a time.

    A trial that another process works on is left to it, and taken over if that process dies.
    """

    def __init__(self, study: Study, slots: Slots, say: Callable[[str], None]) -> None:
        self.study, self._say = study, say
        self._processes = LocalProcesses(slots)
        self._spent: list[float] = []

    def run(self) -> Outcome:
        """Train every trial that is not finished."""
        outcome = Outcome()
        waiting: list[Trial] = []
        for trial in self.study.trials:
            if trial.status == "finished":
                outcome.finished.append(trial.name)
            else:
                waiting.append(trial)
        if outcome.finished:
            self._say(f"{len(outcome.finished)} of {len(self.study.trials)} runs are finished")
        with self._processes:
            while waiting or self._processes.running:
                self._collect(outcome)
                self._start(waiting, outcome)
                time.sleep(POLL_SECONDS)
        return outcome

    def _start(self, waiting: list[Trial], outcome: Outcome) -> None:
        """Fill the free slots with trials that nobody works on."""
        for trial in list(waiting):
            if not self._processes.free:
                return
            status = trial.status
            if status == "running":
                continue  # elsewhere: looked at again until it is finished or free
            waiting.remove(trial)
            if status == "finished":
                self._ended(trial, outcome, "elsewhere")
                continue
            outcome.taken_over += status == "stopped"
            self._processes.start(trial)

    def _collect(self, outcome: Outcome) -> None:
        for end in self._processes.ended():
            if end.code == 0:
                self._spent.append(end.seconds)
                self._ended(end.trial, outcome, f"{end.seconds:,.0f} s")
            else:
                outcome.failed[end.trial.name] = end.why
                self._say(f"{end.trial.name} failed: {end.why} (log: {end.trial.log_file})")

    def _ended(self, trial: Trial, outcome: Outcome, how: str) -> None:
        outcome.finished.append(trial.name)
        done = len(outcome.finished) + len(outcome.failed)
        left = len(self.study.trials) - done
        eta = ""
        if self._spent and left:
            mean = sum(self._spent) / len(self._spent)
            eta = f", about {mean * left / self._processes.slots.workers:,.0f} s left"
        self._say(f"{done}/{len(self.study.trials)} {trial.name}: {_score(trial)} ({how}){eta}")


def _end_with(parent: int) -> Callable[[], None]:
    """Asks Linux for SIGTERM when the parent dies, so that no orphan trains on."""
    library = ctypes.CDLL(None, use_errno=True)  # loaded before the fork

    def ask() -> None:
        pr_set_pdeathsig = 1
        library.prctl(pr_set_pdeathsig, signal.SIGTERM)
        if os.getppid() != parent:  # it died before
            os._exit(128 + signal.SIGTERM)

    return ask


def _score(trial: Trial) -> str:
    from rl_training.reports.runs import read_run

    run = read_run(trial.run_dir)
    metric = run.chosen_metric
    scores = [s.score(metric) for s in run.seeds] if metric else []
    known = [score for score in scores if score is not None]
    return f"{metric} {sum(known) / len(known):,.1f}" if known else "no evaluation"


def _last_line(path: Path) -> str:
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
