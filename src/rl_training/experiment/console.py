"""Progress output of a run: a progress bar, or plain lines."""

from __future__ import annotations

import time
from typing import Any


class Console:
    """Receives the progress reports of a trainer. This one prints nothing."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        """Those among the lines so far, each once, for the result of the run."""

    def start(self, title: str, total: int, done: int, unit: str) -> None:
        """The run begins, with `done` of `total` units behind it."""

    def advance(self, done: int, episodes: str = "") -> None:
        """`episodes` summarises the latest training episodes."""

    def busy(self, text: str) -> None:
        """Show what a slow tick is doing."""

    def evaluated(
        self, tick: int, score: float, text: str, best: bool, name: str = "return"
    ) -> None:
        """The policy was evaluated; `name` is the metric of `score`."""

    def say(self, text: str) -> None:
        """Print one line."""
        if "warning: " in text:
            warning = text.replace("warning: ", "", 1)
            if warning not in self.warnings:
                self.warnings.append(warning)

    def stop(self) -> None:
        """The run has ended."""


class ProgressConsole(Console):
    """A progress bar with rate, time left, training episodes and last evaluation; plain lines if
    the output is not a terminal.

    Failures of the output never end the run.
    """

    PLAIN_LINE_SECONDS = 10.0

    def __init__(self) -> None:
        from rl_training.experiment.terminal import terminal

        super().__init__()
        self._rich = terminal("stderr", forgiving=True)
        self._bar: Any = None
        self._episodes = self._score = ""

    def start(self, title: str, total: int, done: int, unit: str) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._total, self._unit = total, unit
        self._began, self._done_at_start = time.monotonic(), done
        self._last_line = self._began
        if not self._rich.is_terminal:
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=self._rich,
        )
        self._task = self._bar.add_task(title, total=total, completed=done, rate="", state="")
        self._bar.start()

    def advance(self, done: int, episodes: str = "") -> None:
        now = time.monotonic()
        rate = (done - self._done_at_start) / max(now - self._began, 1e-9)
        self._episodes = episodes
        if self._bar is not None:
            self._bar.update(
                self._task, completed=done, rate=f"{rate:,.0f} {self._unit}/s", state=self._state
            )
        elif now - self._last_line >= self.PLAIN_LINE_SECONDS:
            self._last_line = now
            left = f", {(self._total - done) / rate:,.0f} s left" if rate > 0 else ""
            self.say(
                f"{done:,}/{self._total:,} {self._unit}, {rate:,.0f}/s{left}"
                + (f", {self._state}" if self._state else "")
            )

    @property
    def _state(self) -> str:
        return ", ".join(text for text in (self._episodes, self._score) if text)

    def busy(self, text: str) -> None:
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, state=text)
        elif now - self._last_line >= self.PLAIN_LINE_SECONDS:
            self._last_line = now
            self.say(text)

    def evaluated(
        self, tick: int, score: float, text: str, best: bool, name: str = "return"
    ) -> None:
        number = f"{score:,.1f}" if name == "return" else f"{score:.4g}"
        self._score = f"evaluation {number}" if name == "return" else f"{name} {number}"
        if self._bar is not None:
            self._bar.update(self._task, state=self._state)
        self.say(f"{self._unit} {tick:,}: {text}{' (best so far)' if best else ''}")

    def say(self, text: str) -> None:
        super().say(text)
        (self._bar.console if self._bar is not None else self._rich).print(text, soft_wrap=True)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
