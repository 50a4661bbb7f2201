"""metrics.csv: one row per event, one column per metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import IO, Any

from rl_training.experiment.config import Section
from rl_training.experiment.files import append_text, replace_text
from rl_training.experiment.sinks.base import MetricsEvent, RunInfo
from rl_training.experiment.tracking import reraise_os_error

CSV_FILE = "metrics.csv"


class CsvOptions(Section):
    """The CSV logger has no options."""


class CsvSink:
    """Writes metrics.csv; cells are empty if an event lacks the metric.

    The file is rewritten when a metric appears for the first time, which happens a few times at
    the start of a run.
    """

    Options = CsvOptions

    def __init__(self, options: CsvOptions) -> None:
        self._columns = ["event", "tick"]
        self._file: IO[str] | None = None

    def open(self, run: RunInfo) -> None:
        self.path = run.run_dir / CSV_FILE
        rows = self._stored()
        if run.resumed_at is not None:
            rows = [row for row in rows if int(row["tick"]) <= run.resumed_at]
        self._rewrite(rows)

    def write(self, event: MetricsEvent) -> None:
        row = {"event": event.kind, "tick": event.tick, **event.numbers}
        new = [key for key in row if key not in self._columns]
        if new:
            self._columns += new
            self._rewrite([*self._stored(), row])
            return
        assert self._file is not None
        with reraise_os_error(self.path):
            self._file.write(self._text([row]))
            self._file.flush()

    def close(self, status: str) -> None:
        with suppress(OSError):  # a failure was reported when it was written
            if self._file is not None:
                self._file.close()

    def _stored(self) -> list[dict[str, Any]]:
        """Read the complete rows of the file and its columns."""
        if not self.path.is_file():
            return []
        with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
            reader = csv.DictReader(file)
            self._columns += [c for c in reader.fieldnames or () if c not in self._columns]
            # a row truncated by a crash has fewer cells, or no numbers
            return [row for row in reader if None not in row.values() and row["tick"].isdecimal()]

    def _rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        header = dict(zip(self._columns, self._columns, strict=True))
        with reraise_os_error(self.path):
            replace_text(self.path, self._text([header, *rows]))
            self.close("")
            self._file = append_text(self.path)

    def _text(self, rows: Iterable[Mapping[str, Any]]) -> str:
        buffer = io.StringIO()
        csv.DictWriter(buffer, self._columns, restval="", lineterminator="\n").writerows(rows)
        return buffer.getvalue()
