"""Keeps the report of a run up to date: by the run itself, or by another process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.console import Console
from rl_training.experiment.errors import RLTrainingError
from rl_training.reports.report import REPORT_FILE, write_report
from rl_training.reports.runs import Run, RunReader
from rl_training.runtime.callbacks import Callback, EvalEvent
from rl_training.runtime.saving import Autosave

LEAST_MINUTES = 0.5
"""Between two reports of a run that goes on."""


class LiveReport(Callback):
    """The report of a run whose config asks for one.

    It is written at evaluations, so rarely that it takes little of the time, and at the end.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, console: Console) -> None:
        self._wanted, self._console = config.report, console
        self._reader, self._target = RunReader(run_dir), run_dir / REPORT_FILE
        self._clock, self._first = Autosave(LEAST_MINUTES), True

    def callbacks(self) -> list[Callback]:
        return [self] if self._wanted else []

    def on_eval(self, event: EvalEvent) -> None:
        if self._first or self._clock.due():
            self._first = False
            self._write(ended=False)

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Write the last report after the block, however it ends."""
        try:
            yield
        finally:
            if self._wanted and self._write(ended=True):
                self._console.say(f"report: {self._target}")

    def _write(self, ended: bool) -> bool:
        """Write the report; a failure is a warning, because it must not end a run."""
        began = time.monotonic()
        try:
            write_report([self._reader.read(ended)], self._target)
        except (RLTrainingError, OSError) as error:
            self._console.say(f"warning: the report was not written: {error}")
            return False
        self._clock.saved(time.monotonic() - began)
        return True


def followed(
    folder: Path, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Run]:
    """The run as it is, again and again until it has ended; the last one is how it ended."""
    reader = RunReader(folder)
    while True:
        run = reader.read()
        yield run
        if run.status != "running":
            return
        sleep(seconds)
