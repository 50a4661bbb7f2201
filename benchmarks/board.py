"""What a person sees while jobs run."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from benchmarks.jobs import Job, Outcome
from benchmarks.progress import how_far

TELL_S = 120.0
"""Seconds between two lines about each long run."""


class Board:
    """One line per finished job, and now and then one per long run; on a terminal also a live bar
    with the running ones.

    The time left is the cost of what is left at the pace so far.
    """

    def __init__(self, console: Console, title: str, jobs: Sequence[Job], workers: int) -> None:
        self._console, self._total, self._workers = console, len(jobs), workers
        self._cost_left = sum(job.cost for job in jobs)
        self._cost_done = self._seconds_done = 0.0
        self._running: dict[str, tuple[Job, float]] = {}
        self._lock = threading.Lock()
        self._done = 0
        self._told = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=len(jobs), state="")

    def __enter__(self) -> Board:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def started(self, job: Job) -> None:
        """Called by the thread that starts the job."""
        with self._lock:
            self._running[job.key] = (job, time.monotonic())
        self.refresh()

    def finished(self, outcome: Outcome) -> None:
        with self._lock:
            self._running.pop(outcome.job.key, None)
            self._done += 1
            self._cost_left -= outcome.job.cost
            self._cost_done += outcome.job.cost
            self._seconds_done += outcome.seconds
        mark = "[red]FAILED[/red] " if outcome.failure else ""
        self._bar.console.print(
            f"{self._done}/{self._total} {mark}{outcome.job.suite}/{outcome.job.key}: "
            f"{outcome.headline} ({outcome.seconds:.0f} s), {self._time_left()}",
            highlight=False,
            soft_wrap=True,
        )
        if outcome.failure:
            self._bar.console.print(outcome.failure, markup=False, highlight=False, soft_wrap=True)
        self._bar.advance(self._task)
        self.refresh()

    def refresh(self) -> None:
        with self._lock:
            now = time.monotonic()
            due, jobs = now - self._told >= TELL_S, [job for job, _ in self._running.values()]
            if due:
                self._told = now
            running = ", ".join(f"{k} {now - t:.0f} s" for k, (_, t) in self._running.items())
        self._bar.update(self._task, state=f"{self._time_left()}  {running}")
        for job in jobs if due else ():
            text = how_far(job)
            if text is not None:
                line = f"{job.suite}/{job.key}: {text}"
                self._bar.console.print(line, highlight=False, soft_wrap=True)

    def _time_left(self) -> str:
        pace = self._seconds_done / self._cost_done if self._cost_done else 1.0
        now = time.monotonic()
        with self._lock:
            spent = sum(min(now - t, j.cost * pace) for j, t in self._running.values())
        seconds = max(self._cost_left * pace - spent, 0.0) / self._workers
        return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"
