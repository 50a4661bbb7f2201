"""Callbacks of a run for user code, and their events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.config import EVAL_METRICS, TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.runtime.controls import Progress
from rl_training.runtime.evaluation import EvalResult


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    run_dir: Path
    stop_reason: str
    signal: int | None
    """Number of the signal that ended it; None for any other end."""
    updates: int
    env_steps: int
    wall_seconds: float
    last_eval: EvalResult | None
    best_score: float | None
    best_tick: int | None
    data_notes: tuple[str, ...] = ()
    """Assumptions about the data, one sentence each; as `dataset.notes`."""
    held_out: EvalResult | None = None
    """Evaluation of the last policy from held-out start states."""
    best_held_out: EvalResult | None = None
    """Evaluation of the best checkpoint's policy from the same states."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics of the last evaluation, in the environment and on held-out episodes."""
    best_metric: str | None = None
    """The metric of `best_score`, whose sign is flipped if smaller is better."""

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run."""
        return self.signal is not None

    @property
    def best_value(self) -> float | None:
        """The best policy's value of `best_metric`, with the sign of the metric itself."""
        if self.best_score is None or self.best_metric is None:
            return None
        return -self.best_score if EVAL_METRICS[self.best_metric] == "min" else self.best_score

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last evaluation; None if there was none."""
        return self.last_eval.return_mean if self.last_eval else None


@dataclass(frozen=True)
class StartEvent:
    """A run starts, or continues after a resume."""

    tick: int
    """Updates (offline) or environment steps (online) so far: 0 unless the run is resumed."""
    total: int
    """The tick at which the budget is spent."""
    run_dir: Path
    config: TrainConfig
    agent: Any
    """The agent that is trained; it can predict, evaluate and save."""


@dataclass(frozen=True)
class LogEvent:
    """Metrics were logged."""

    kind: str
    """"train", every `log_interval`, or "eval", after an evaluation."""
    tick: int
    metrics: Mapping[str, float]
    """All logged numbers, by their names in metrics.jsonl."""
    run_dir: Path
    config: TrainConfig
    agent: Any
    """As in `StartEvent`."""
    request_stop: Callable[[str], None]
    """Ends the run after this step, with the given reason."""


@dataclass(frozen=True)
class StepEvent:
    """The run has advanced."""

    tick: int
    """The tick of the last complete step; it does not change during a rollout."""
    progress: Progress
    request_stop: Callable[[str], None]
    """Ends the run after this step, with the given reason."""


@dataclass(frozen=True)
class EvalEvent:
    """The policy was evaluated."""

    tick: int
    result: EvalResult | None
    """Result of whole episodes; None without an environment."""
    is_best: bool
    request_stop: Callable[[str], None]
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics, in the environment and on held-out episodes."""


@dataclass(frozen=True)
class SaveEvent:
    """A checkpoint was written."""

    tick: int
    path: Path


class Callback:
    """Override the methods you need. They cannot affect the run's random numbers."""

    def on_start(self, event: StartEvent) -> None:
        """Once, before the first step of a run, and again when it is resumed."""

    def on_log(self, event: LogEvent) -> None:
        """Whenever metrics are logged, of training or of an evaluation."""

    def on_step(self, event: StepEvent) -> None:
        """After some updates or environment steps, about ten times a second; less often only if
        one of them takes longer."""

    def on_eval(self, event: EvalEvent) -> None:
        """After every evaluation."""

    def on_save(self, event: SaveEvent) -> None:
        """After every checkpoint."""

    def on_end(self, event: TrainResult) -> None:
        """Once, when the run has ended."""


def checked_callbacks(callbacks: Callback | Sequence[Callback]) -> tuple[Callback, ...]:
    """Check the callbacks of a run, given as one object or several."""
    several = isinstance(callbacks, Sequence)
    chosen = tuple(callbacks) if isinstance(callbacks, Sequence) else (callbacks,)
    methods = [name for name in vars(Callback) if name.startswith("on_")]
    for callback in chosen:
        # a class also has the methods
        if isinstance(callback, type) or not all(hasattr(callback, name) for name in methods):
            kind = callback.__name__ if isinstance(callback, type) else type(callback).__name__
            given = f"the {'class' if isinstance(callback, type) else 'type'} {kind}"
            raise ConfigError(
                f"callbacks: expected objects of rl_training.Callback, got {given}"
                f"{' in the list' if several else ''}; write "
                "class Mine(rl_training.Callback) with a method such as on_eval(self, event), and "
                "give callbacks=[Mine()]"
            )
    return chosen
