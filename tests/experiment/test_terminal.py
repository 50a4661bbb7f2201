"""Output for a watching person: any encoding, any width, and never the end of a run."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from rl_training.experiment.console import ProgressConsole
from rl_training.experiment.terminal import terminal


def ascii_stream(errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)


def test_signs_that_cannot_be_encoded_are_spelt() -> None:
    for errors in ("strict", "backslashreplace"):
        stream = ascii_stream(errors)
        with redirect_stdout(stream):
            terminal("stdout").print("return -12.0 ± 3.0, 世")
        stream.flush()
        assert stream.buffer.getvalue() == b"return -12.0 +- 3.0, ?\n"  # type: ignore[attr-defined]


def test_no_columns_are_taken_for_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setenv("COLUMNS", "0")
    with redirect_stdout(stream):
        terminal("stdout").print("to be read")
    assert stream.getvalue() == "to be read\n"


class Failing(io.StringIO):
    """Cannot be written to."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.tried = error, 0

    def write(self, text: str) -> int:
        self.tried += 1
        raise self.error


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(28, "No space left on device"), ValueError("closed")]
)
def test_progress_goes_on_where_nothing_can_be_written(error: Exception) -> None:
    stream = Failing(error)
    with redirect_stderr(stream):
        console = ProgressConsole()
        console.start("BC", 10, 0, "updates")
        console.say("one line")
        console.evaluated(5, 1.0, "return 1.0 ± 0.0", best=True)
        console.advance(10)
        console.stop()
    assert stream.tried > 1


def test_a_full_disk_under_a_report_is_no_secret() -> None:
    stream = Failing(OSError(28, "No space left on device"))
    with redirect_stdout(stream), pytest.raises(OSError, match="No space left"):
        terminal("stdout").print("a report")


def test_a_reader_that_has_gone_silences_a_stream() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, redirect_stdout(stream):
        console = terminal("stdout")
        console.print("to nobody")
        console.print("again")
        stream.flush()  # as the interpreter does at its end


def test_the_bar_ends_with_the_last_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream: Any = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with redirect_stderr(stream):
        console = ProgressConsole()
        console.start("BC", 10, 0, "updates")
        console.evaluated(5, -1504.0, "return -1,504.0", best=True)
        console.advance(10, "return -1,200.5, length 200")
        console.evaluated(10, -1340.0, "return -1,340.0", best=True)
        console.stop()
    *_, last = (line for line in stream.getvalue().splitlines() if "updates/s" in line)
    assert "return -1,200.5, length 200, evaluation -1,340.0" in last
    assert "-1,504.0" not in last
