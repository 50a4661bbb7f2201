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
    """Writes a run's report at evaluations, so rarely that it takes little of the time."""

    def __init__(self, run_dir: Path, console: Console) -> None:
        self._reader, self._console = RunReader(run_dir), console
        self._clock, self._first = Autosave(LEAST_MINUTES), True

    def on_eval(self, event: EvalEvent) -> None:
        if self._first or self._clock.due():
            self._first = False
            self.write()

    def write(self) -> None:
        """Write it now; a failure is a warning, because it must not end a run."""
        began = time.monotonic()
        try:
            write_report([self._reader.read()], self._reader.folder / REPORT_FILE)
        except (RLTrainingError, OSError) as error:
            self._console.say(f"warning: the report was not written: {error}")
        self._clock.saved(time.monotonic() - began)


@contextmanager
def reported(config: TrainConfig, run_dir: Path, console: Console) -> Iterator[list[Callback]]:
    """While active, callbacks that keep the report of a run up to date, if its config asks for
    one; the last report is written at the end, however the run ends."""
    if not config.report:
        yield []
        return
    live = LiveReport(run_dir, console)
    try:
        yield [live]
    finally:
        live.write()
        console.say(f"report: {run_dir / REPORT_FILE}")


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
