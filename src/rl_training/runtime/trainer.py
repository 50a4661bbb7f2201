"""The training loop: learning rate, step, log, evaluate, save, stop.

Trains one agent, or several together. It is independent of replay and models: loops advance the
clock, this file decides when, and a `Record` per agent does what is due.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.console import Console
from rl_training.experiment.errors import (
    CheckpointError,
    EnvironmentFailure,
    RLTrainingError,
    TrainingDivergedError,
)
from rl_training.runtime.callbacks import Callback, TrainResult
from rl_training.runtime.loops import Loop
from rl_training.runtime.profile import Part, Profile
from rl_training.runtime.record import Record
from rl_training.runtime.saving import Autosave
from rl_training.runtime.signals import RunLink, StepInterrupted, end_by, interruptible

STARTING_OVER = "no usable checkpoint in this run: starting from the beginning"
"""Of a resume, once it is sure that nothing which was saved is lost."""
STRIDE_SECONDS = 0.1
"""Time between two calls of callbacks, progress bar and autosave, unless one environment step or
one update takes longer."""
PROFILE_AFTER_S = 15.0
"""Seconds after which a profile is shown for the first time."""


class Clock(Protocol):
    """Moves the loops of all agents together."""

    link: RunLink

    def advance(self, ticks: int) -> list[Metrics]:
        """Advance every loop as `Loop.advance` does; returns the latest metrics of each."""

    def parts(self) -> list[Part]:
        """The parts that a profile measures."""


R = TypeVar("R")


class Form(Protocol[R]):
    """The differences between a run of one agent and a run of several."""

    def title(self, active: Sequence[Record]) -> str:
        """The title of the progress bar."""

    def open(self, resumed_at: int | None) -> None:
        """Start or continue the run."""

    def diverged(self, position: int, error: TrainingDivergedError) -> None:
        """Handle the divergence of an agent, given by its position; raises if that ends the run."""

    def stepped(self, trainer: Trainer[R]) -> None:
        """Called after all active agents have advanced and due work is done."""

    def result(self, trainer: Trainer[R]) -> R:
        """The result of the run; raises if no agent was trained to its end."""

    def write_result(self, status: str, trainer: Trainer[R]) -> None:
        """Write the result to the run folder."""

    def restore(self, trainer: Trainer[R]) -> None:
        """Continue from saved state, or start from scratch if there is none."""

    def close(self) -> None: ...


class Trainer(Generic[R]):
    """Runs the loops of one agent or several to the end of their budget."""

    def __init__(
        self,
        config: TrainConfig,
        clock: Clock,
        records: Sequence[Record],
        console: Console,
        form: Form[R],
        autosave: Autosave,
    ) -> None:
        self.config, self.clock, self.records = config, clock, records
        self.console, self.form = console, form
        self.results: dict[int, TrainResult] = {}
        """Why agents have ended, by position."""
        self.failures: dict[int, str] = {}
        """Why agents have failed, by position."""
        self.signal: int | None = None
        self.autosave = autosave
        self.profile: Profile | None = None
        self.began = time.monotonic()
        self._profile_from, self._profile_shown = 0, False

    @property
    def active(self) -> dict[int, Record]:
        """Positions of the agents that still learn."""
        over = {**self.results, **self.failures}
        return {i: record for i, record in enumerate(self.records) if i not in over}

    @property
    def tick(self) -> int:
        return max(record.loop.tick for record in self.records)

    @property
    def started_anew(self) -> bool:
        """Whether `restore` found no checkpoint."""
        return all(record.resumed_at == -1 for record in self.records)

    def restore(self) -> None:
        """Continue from the newest intact checkpoints."""
        self.form.restore(self)

    def run(self) -> R:
        """Train to the end; the result is also written to result.json.

        After a signal the run is saved, then the signal ends the program.
        """
        opened = list(self.active.values())
        self._open(opened)
        try:
            for record in opened:
                record.start()
            with interruptible(self.interrupt):
                self._end_finished()
                while self.active:
                    self._advance()
                    self._end_finished()
            if self.profile is not None:
                self._show_profile(self.profile)
            result = self.form.result(self)
            self.form.write_result("finished" if self.signal is None else "interrupted", self)
        except BaseException as error:
            for record in self.active.values():
                record.fail(error)
            with suppress(RLTrainingError, OSError):  # must not hide the first error
                self.form.write_result("failed", self)
            raise
        finally:
            self.console.stop()
            for record in opened:
                record.close()
            self.form.close()
        if self.signal is not None:
            raise end_by(self.signal, result)
        return result

    def _open(self, active: Sequence[Record]) -> None:
        self.began = time.monotonic()
        first = next(iter(active), self.records[0])
        self.form.open(first.resumed_at)
        for record in active:
            record.open()
        if self.config.profile:
            self._begin_profile(active)
        self.console.start(self.form.title(active), first.loop.total, self.tick, first.loop.unit)
        self.clock.link.tell = self.console.busy

    def _advance(self) -> None:
        active, before = self.active, self.tick
        for record in active.values():
            record.follow_schedule()
        stride = min(record.stride() for record in active.values())
        self.clock.link.pause.until = time.monotonic() + STRIDE_SECONDS
        try:
            metrics = self.clock.advance(stride)
        except EnvironmentFailure as failure:
            first, *others = active.values()
            for record in others:
                with suppress(RLTrainingError):  # must not hide what went wrong first
                    record.save()
            raise first.saved_after(failure) from failure
        except StepInterrupted:
            return  # nothing is due before the step is complete
        while self.clock.link.notes:
            self.console.say(f"warning: {self.clock.link.notes.pop()}")
        for i, record in active.items():
            with self._alone(i):
                record.advanced(before, metrics[i])
        if self.autosave.due():
            self._save_all()
        loop = next(iter(active.values())).loop
        self.console.advance(loop.position, loop.episodes())
        profile = None if self._profile_shown else self.profile
        if profile is not None and profile.total > PROFILE_AFTER_S:
            self._show_profile(profile)
        for record in self.active.values():
            record.stepped()

    def _end_finished(self) -> None:
        for i, record in self.active.items():
            with self._alone(i):
                if not record.is_running():
                    self.results[i] = record.finish()
        self.form.stepped(self)

    def _save_all(self) -> None:
        began = time.monotonic()
        for i, record in self.active.items():
            with self._alone(i):
                record.save()
        self.autosave.saved(time.monotonic() - began)

    @contextmanager
    def _alone(self, position: int) -> Iterator[None]:
        """Let a diverged agent end alone if there are others; a failed environment ends all."""
        try:
            yield
        except TrainingDivergedError as error:
            self.form.diverged(position, error)
            self.records[position].fail(error)
            self.failures[position] = str(error)
        except EnvironmentFailure:
            for i, record in self.active.items():
                if i != position:
                    with suppress(CheckpointError):
                        record.save()
            raise

    def interrupt(self, number: int) -> None:
        """End the run soon because of a signal."""
        self.signal, name = number, signal.Signals(number).name
        for record in self.active.values():
            record.interrupt(number, name)
        self.console.say(f"{name}: saving, then stopping (send it again to stop at once)")
        self.clock.link.pause.request()

    def _begin_profile(self, active: Sequence[Record]) -> None:
        self.profile = Profile(self.records[0].algorithm.update_count.device)
        self._profile_from = self.tick
        self.profile.watch(self.clock.parts())
        for record in active:
            self.profile.watch(record.parts())
            if record.config.profile:
                record.profile = self.profile

    def _show_profile(self, profile: Profile) -> None:
        self._profile_shown = True
        done, total = self.tick - self._profile_from, self.records[0].loop.total
        for line in profile.lines(done / max(total - self._profile_from, 1)):
            self.console.say(line)


class OneLoop:
    """The clock of one agent."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.link = loop, loop.link

    def advance(self, ticks: int) -> list[Metrics]:
        return [self.loop.advance(ticks)]

    def parts(self) -> list[Part]:
        return self.loop.parts()


class OneAgentForm:
    """A run of one agent, with one record."""

    def title(self, active: Sequence[Record]) -> str:
        return " ".join(record.algorithm.name() for record in active)

    def open(self, resumed_at: int | None) -> None:
        pass

    def diverged(self, position: int, error: TrainingDivergedError) -> None:
        raise error

    def stepped(self, trainer: Trainer[TrainResult]) -> None:
        pass

    def result(self, trainer: Trainer[TrainResult]) -> TrainResult:
        return trainer.results[0]

    def write_result(self, status: str, trainer: Trainer[TrainResult]) -> None:
        pass  # the record has

    def restore(self, trainer: Trainer[TrainResult]) -> None:
        trainer.records[0].restore()

    def close(self) -> None:
        pass


def one_agent(
    config: TrainConfig,
    algorithm: Algorithm,
    loop: Loop,
    run_dir: Path,
    console: Console,
    callbacks: Sequence[Callback] = (),
    agent: Any = None,
) -> Trainer[TrainResult]:
    """The trainer of a run of one agent."""
    autosave = Autosave(config.checkpoint_minutes)
    record = Record(
        config, algorithm, loop, run_dir, console, callbacks, agent=agent, autosave=autosave
    )
    return Trainer(config, OneLoop(loop), [record], console, OneAgentForm(), autosave)
