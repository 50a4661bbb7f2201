"""Trains all runs of a study."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from rl_training.search.launch import POLL_SECONDS, Launcher, Restarts
from rl_training.search.study import Study, Trial


@dataclass
class Outcome:
    """How the trials have ended so far."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by name: the last line of the log."""
    taken_over: int = 0
    """Runs that had begun before, and were gone on with."""


class StudyRunner:
    """Trains all trials of a study, a number of them at a time.

    A trial that another process works on is left to it, and taken over if that process dies. One
    that is killed, or whose node is lost, goes on from its last checkpoint.
    """

    def __init__(self, study: Study, launcher: Launcher[Any], say: Callable[[str], None]) -> None:
        self.study, self._launcher, self._say = study, launcher, say
        self._restarts = Restarts()
        self._held: dict[str, ExitStack] = {}
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
        try:
            with self._launcher:
                while waiting or self._launcher.running:
                    waiting += self.collect(outcome)
                    self.start(waiting, outcome)
                    time.sleep(POLL_SECONDS)
        finally:
            for lock in self._held.values():
                lock.close()
        return outcome

    def start(self, waiting: list[Trial], outcome: Outcome) -> None:
        """Fill the free places with trials that no process works on."""
        for trial in list(waiting):
            if not self._launcher.free:
                return
            lock = None if trial.status == "running" else self.study.held(trial.name)
            if lock is None:
                continue  # elsewhere: looked at again until it is finished or free
            status = trial.status  # since no other process can begin it
            if status == "running":
                lock.close()
                continue
            waiting.remove(trial)
            if status == "finished":
                lock.close()
                self._ended(trial, outcome, "elsewhere")
                continue
            outcome.taken_over += status == "stopped"
            self._held[trial.name] = lock
            self._launcher.start(trial)

    def collect(self, outcome: Outcome) -> list[Trial]:
        """Note what has ended; the trials that are to be gone on with."""
        again = []
        for end in self._launcher.ended():
            trial = self.study.trial(end.job.name)
            self._held.pop(trial.name).close()
            if end.code == 0:
                self._spent.append(end.seconds)
                self._ended(trial, outcome, f"{end.seconds:,.0f} s")
            elif end.stopped and self._restarts.allowed(trial):
                self._say(f"{trial.name} was stopped ({end.why}); it goes on from what it saved")
                again.append(trial)
            else:
                outcome.failed[trial.name] = end.why
                self._say(f"{trial.name} failed: {end.why} (log: {trial.log_file})")
        return again

    def _ended(self, trial: Trial, outcome: Outcome, how: str) -> None:
        outcome.finished.append(trial.name)
        done = len(outcome.finished) + len(outcome.failed)
        left = len(self.study.trials) - done
        eta = ""
        if self._spent and left:
            mean = sum(self._spent) / len(self._spent)
            eta = f", about {mean * left / self._launcher.workers:,.0f} s left"
        self._say(f"{done}/{len(self.study.trials)} {trial.name}: {_score(trial)} ({how}){eta}")


def _score(trial: Trial) -> str:
    from rl_training.reports.runs import read_run

    run = read_run(trial.run_dir)
    metric = run.chosen_metric
    scores = [s.score(metric) for s in run.seeds] if metric else []
    known = [score for score in scores if score is not None]
    return f"{metric} {sum(known) / len(known):,.1f}" if known else "no evaluation"
