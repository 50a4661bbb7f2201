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
        cores = usable_cores()
        wanted = workers or len(gpus) or cores
        wanted = max(1, min(wanted, trials))
        return cls(wanted, threads or max(1, cores // wanted), tuple(gpus))


def usable_cores() -> int:
    """Cores that this process may use, which a container or a scheduler may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalLauncher:
    """A number of processes at a time, each with its share of threads and its GPU.

    A trial that another process works on is left to it, and taken over if that process dies. A
    stop lets the runs save and ends every process; if this process is killed, they end too.
    """

    def __init__(self, study: Study, slots: Slots, say: Callable[[str], None]) -> None:
        self.study, self.slots, self._say = study, slots, say
        self._running: dict[int, tuple[Trial, subprocess.Popen[bytes], float]] = {}
        self._spent: list[float] = []

    def run(self) -> Outcome:
        """Run everything that is not finished."""
        outcome = Outcome()
        waiting: list[Trial] = []
        for trial in self.study.trials:
            if trial.status == "finished":
                outcome.finished.append(trial.name)
            else:
                waiting.append(trial)
        if outcome.finished:
            self._say(f"{len(outcome.finished)} of {len(self.study.trials)} runs are finished")
        try:
            while waiting or self._running:
                self._collect(outcome)
                self._start(waiting, outcome)
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._stop()
            raise
        return outcome

    def _start(self, waiting: list[Trial], outcome: Outcome) -> None:
        """Fill the free slots with trials that nobody works on."""
        free = [slot for slot in range(self.slots.workers) if slot not in self._running]
        for trial in list(waiting) if free else ():
            status = trial.status
            if status == "running":
                continue  # elsewhere: looked at again until it is finished or free
            waiting.remove(trial)
            if status == "finished":
                self._ended(trial, outcome, "elsewhere")
                continue
            outcome.taken_over += status == "stopped"
            slot = free.pop(0)
            self._running[slot] = (trial, self._process(trial, slot), time.monotonic())
            if not free:
                return

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
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def _collect(self, outcome: Outcome) -> None:
        for slot, (trial, process, began) in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[slot]
            seconds = time.monotonic() - began
            if code == 0:
                self._spent.append(seconds)
                self._ended(trial, outcome, f"{seconds:,.0f} s")
            else:
                why = _last_line(trial.log_file) or f"exit code {code}"
                outcome.failed[trial.name] = why
                self._say(f"{trial.name} failed: {why} (log: {trial.log_file})")

    def _ended(self, trial: Trial, outcome: Outcome, how: str) -> None:
        outcome.finished.append(trial.name)
        done = len(outcome.finished) + len(outcome.failed)
        left = len(self.study.trials) - done
        eta = ""
        if self._spent and left:
            mean = sum(self._spent) / len(self._spent)
            eta = f", about {mean * left / self.slots.workers:,.0f} s left"
        self._say(f"{done}/{len(self.study.trials)} {trial.name}: {_score(trial)} ({how}){eta}")

    def _stop(self) -> None:
        """Let all runs save, and wait until they have ended."""
        for _, process, _ in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + SAVE_SECONDS
        for _, process, _ in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _end_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent dies, so that no orphan trains on."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)


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
