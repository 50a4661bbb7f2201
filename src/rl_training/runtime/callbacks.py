"""Where user code meets a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_training.runtime.controls import Progress
from rl_training.runtime.evaluation import EvalResult


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    run_dir: Path
    stop_reason: str
    interrupted: bool
    updates: int
    env_steps: int
    wall_seconds: float
    last_eval: EvalResult | None
    best_score: float | None
    best_tick: int | None

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last evaluation; None if there was none."""
        return self.last_eval.return_mean if self.last_eval else None


@dataclass(frozen=True)
class StepEvent:
    """The clock has moved."""

    tick: int
    progress: Progress
    request_stop: Callable[[str], None]
    """Ends the run after this step, with the given reason."""


@dataclass(frozen=True)
class EvalEvent:
    """The policy was evaluated."""

    tick: int
    result: EvalResult
    is_best: bool
    request_stop: Callable[[str], None]


@dataclass(frozen=True)
class SaveEvent:
    """A checkpoint was written."""

    tick: int
    path: Path


class Callback:
    """Override what you need. Nothing done here can disturb the run's random streams."""

    def on_step(self, event: StepEvent) -> None:
        """After every few updates, at least every 100."""

    def on_eval(self, event: EvalEvent) -> None:
        """After every evaluation."""

    def on_save(self, event: SaveEvent) -> None:
        """After every checkpoint."""

    def on_end(self, event: TrainResult) -> None:
        """Once, when the run has ended."""
