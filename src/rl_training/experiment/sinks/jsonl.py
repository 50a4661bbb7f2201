"""metrics.jsonl: the record that every run keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rl_training.experiment.files import append_text, replace_text
from rl_training.experiment.sinks.base import MetricsEvent, RunInfo
from rl_training.experiment.tracking import METRICS_FILE, reraise_os_error


class JsonlSink:
    """One JSON object per event.

    After a crash the file may hold events later than the checkpoint from which the run continues,
    and a truncated line; they are dropped on opening.
    """

    def open(self, run: RunInfo) -> None:
        self.path = run.run_dir / METRICS_FILE
        if run.resumed_at is not None and self.path.is_file():
            kept = [line for line, event in whole_lines(self.path) if event[1] <= run.resumed_at]
            with reraise_os_error(self.path):
                replace_text(self.path, "".join(f"{line}\n" for line in kept))
        with reraise_os_error(self.path):
            self._file: IO[str] = append_text(self.path)

    def write(self, event: MetricsEvent) -> None:
        line = json.dumps({"event": event.kind, "tick": event.tick, **event.plain})
        with reraise_os_error(self.path):
            self._file.write(line + "\n")
            self._file.flush()

    def close(self, status: str) -> None:
        with suppress(OSError):  # a failure was reported when it was written
            self._file.close()


def whole_lines(path: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    """Each line that holds an event, with the event's kind and tick."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(
            ValueError, KeyError, TypeError
        ):  # truncated by a crash, or written by another program
            event: dict[str, Any] = json.loads(line)
            yield line, (str(event["event"]), int(event["tick"]))


def kept_events(run: RunInfo) -> Iterator[MetricsEvent]:
    """The events of earlier sessions that a resumed run does not repeat."""
    path, last = run.run_dir / METRICS_FILE, -1 if run.resumed_at is None else run.resumed_at
    for line, (kind, tick) in whole_lines(path) if path.is_file() else ():
        if tick <= last:
            values = json.loads(line)
            del values["event"], values["tick"]
            yield MetricsEvent(kind, tick, values)


def newest_ticks(path: Path, last: float = math.inf) -> dict[str, int]:
    """The newest tick per kind of event in the file, of those up to `last`."""
    newest: dict[str, int] = {}
    for _, (kind, tick) in whole_lines(path) if path.is_file() else ():
        if tick <= last:
            newest[kind] = max(tick, newest.get(kind, -1))
    return newest
