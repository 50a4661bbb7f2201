"""The run of one agent: logs, evaluates, saves and restores it.

Its folder, checkpoints, curve and result are its own, whether it is trained alone or with others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.envs.atari_rules import protocol_of
from rl_training.envs.collector import Collector
from rl_training.envs.device.worlds import WorldsOfRun
from rl_training.experiment.checkpoint import CheckpointInfo, read_checkpoint
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.console import Console
from rl_training.experiment.errors import (
    CheckpointError,
    EnvironmentFailure,
    RLTrainingError,
)
from rl_training.experiment.state import Stored
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    resume_command,
)
from rl_training.runtime.build import build_algorithm
from rl_training.runtime.callbacks import (
    Callback,
    EvalEvent,
    SaveEvent,
    StartEvent,
    StepEvent,
    TrainResult,
)
from rl_training.runtime.controls import crossed, lr_grid_step, schedule_factor, until_next
from rl_training.runtime.health import Health
from rl_training.runtime.loops import Component, Loop, OptionalComponent
from rl_training.runtime.profile import Part, Profile
from rl_training.runtime.randomness import TorchRandom
from rl_training.runtime.results import train_result, write_result
from rl_training.runtime.run_log import RunLog
from rl_training.runtime.saving import Autosave, checkpoint_header, refuse_moved_schedules
from rl_training.runtime.selection import EvaluatorLike, Selection, short_name
from rl_training.runtime.signals import StepInterrupted


class Record:
    """The run of one agent. A trainer advances its loop and calls the methods below."""

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm,
        loop: Loop,
        run_dir: Path,
        console: Console,
        callbacks: Sequence[Callback] = (),
        evaluator: EvaluatorLike | None = None,
        agent: Any = None,
        resume_dir: Path | None = None,
        autosave: Autosave | None = None,
    ) -> None:
        """`agent` is what callbacks know the policy by; `resume_dir` is what to resume after a
        failure, where the run is part of a larger one; `autosave` hears of every checkpoint."""
        self.config, self.algorithm, self.loop = config, algorithm, loop
        self.run_dir, self.console = run_dir, console
        self.agent, self._resume_dir, self._autosave = agent, resume_dir or run_dir, autosave
        self.status = "failed"
        """How the run has ended: "finished", "interrupted" or, until then, "failed"."""
        self.store = CheckpointStore(
            run_dir / CHECKPOINT_FOLDER, config.keep_last, config.keep_best
        )
        self.health = Health(algorithm, loop, self.store)
        self.log = RunLog(config, algorithm, loop, run_dir, callbacks, agent, self.request_stop)
        self.selection = Selection(
            config, algorithm.spaces, loop.link.pause, evaluator, loop.held_out
        )
        self.last_saved: CheckpointInfo | None = None
        self.saved_done: dict[str, int] = {}  # its counters
        self.profile: Profile | None = None
        """Where the time goes, if that is asked of this run alone."""
        self.stop_reason: str | None = None
        self.signal: int | None = None
        """Number of the signal that ends the run."""
        self.began, self.elapsed_before = time.monotonic(), 0.0
        self.resumed_at: int | None = None
        self._delayed: Metrics = {}
        """The latest metrics, where those of delayed steps are not of every update."""

    # --- from the first to the last step --------------------------------------------------------

    def open(self) -> None:
        """Start, or continue after `restore`."""
        self.began = time.monotonic()
        self.log.open(self.resumed_at, self.console.say)

    def start(self) -> None:
        """Print warnings and notify callbacks before the first step."""
        for collector in self._collectors():
            for note in collector.notes:
                self.console.say(f"warning: {note}")
        config = self.config
        protocol = protocol_of(config.env_id, config.env_kwargs, config.train_env_kwargs)
        if protocol:
            self.console.say(f"rules of the game: {protocol}")
        loop = self.loop
        event = StartEvent(loop.tick, loop.total, self.run_dir, self.config, self.agent)
        self.log.notify(lambda callback: callback.on_start(event))

    def is_running(self) -> bool:
        """Whether the run continues; a due evaluation is run first."""
        if self.selection.is_due and self.signal is None:
            self._evaluate()
        if self.stop_reason is None and self.loop.tick >= self.loop.total:
            self.stop_reason = f"budget of {self.loop.total:,} {self.loop.unit} spent"
        return self.stop_reason is None

    def is_over(self) -> bool:
        """Whether a restored run is complete."""
        spent = self.loop.tick >= self.loop.total
        return not self.selection.is_due and (spent or self.stop_reason is not None)

    def finish(self) -> TrainResult:
        """Run the last evaluation, and write the last checkpoint and the result."""
        if self.signal is None and self.config.final_eval:
            self._evaluate()
        if self.signal is not None:
            self.last_saved = None  # the clock alone does not say how far a step has come
        self.save()
        if self.signal is None and self.config.final_eval:
            self.evaluate_held_out()
        result = self.result()
        self.log.notify(lambda callback: callback.on_end(result))
        self._write_result("interrupted" if result.interrupted else "finished")
        return result

    def fail(self, error: BaseException) -> None:
        """Record the failure that ended the run."""
        self.stop_reason = f"{type(error).__name__}: {error}"
        with suppress(RLTrainingError, OSError):  # must not hide what went wrong first
            self._write_result("failed")

    def close(self) -> None:
        self.log.close(self.status)
        self.selection.close()
        self.loop.close()

    def parts(self) -> list[Part]:
        """The parts beside the loop that a profile measures."""
        own = [Part(self.store, "save", "checkpoints"), Part(self.log.metrics, "write", "logging")]
        return own + self._evaluation_parts()

    def _evaluation_parts(self) -> list[Part]:
        evaluator = self.selection.evaluator
        return [] if evaluator is None else [Part(evaluator, "run", "evaluation")]

    # --- steps ----------------------------------------------------------------------------------

    def stride(self) -> int:
        """Ticks until the next log, evaluation or checkpoint that is due at an exact tick."""
        c, now = self.config, self.loop.tick
        limits = [
            until_next(now, every)
            for every in (
                c.log_interval,
                c.eval_interval,
                c.checkpoint_interval,
                lr_grid_step(c.lr_schedule, self.loop.horizon),
            )
        ]
        return min(self.loop.total - now, *(x for x in limits if x is not None))

    def follow_schedule(self) -> None:
        """Set the learning rates of the next ticks."""
        schedule = self.config.lr_schedule
        if not schedule.is_constant:
            factor = schedule_factor(schedule, self.loop.tick, self.loop.horizon)
            self.algorithm.set_lr_factor(factor, schedule.optimizers)

    def advanced(self, before: int, metrics: Metrics) -> None:
        """Log, evaluate and save what became due since tick `before`."""
        c, now = self.config, self.loop.tick
        if self.algorithm.cycle > 1:
            metrics = self._delayed = {**self._delayed, **metrics}
        self.health.check_losses()
        if crossed(before, now, c.log_interval) or now >= self.loop.total:
            self._log_training(metrics)
        if crossed(before, now, c.eval_interval):
            self._evaluate()
        # the last tick is saved by `finish`, after its evaluation
        if crossed(before, now, c.checkpoint_interval) and now < self.loop.total:
            self.save()

    def stepped(self) -> None:
        """Notify callbacks that the run has advanced."""
        event = StepEvent(self.loop.tick, self.loop.progress, self.request_stop)
        self.log.notify(lambda callback: callback.on_step(event))

    def request_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def interrupt(self, number: int, name: str) -> None:
        """End the run soon because of a signal; evaluations and steps are aborted."""
        self.signal, self.stop_reason = number, f"interrupted by {name}"

    # --- the things that happen -----------------------------------------------------------------

    def _log_training(self, metrics: Metrics) -> None:
        numbers = {key: float(value) for key, value in metrics.items()}
        if warning := self.health.collapse(numbers):
            self.console.say(warning)
        self.log.write_training(numbers, self.elapsed())

    def _evaluate(self) -> None:
        tick, selection = self.loop.tick, self.selection
        if tick == selection.last_tick or not selection.is_possible:
            return
        self.health.check_weights()
        selection.is_due = True
        try:
            found = selection.evaluate(self.algorithm)
        except EnvironmentFailure as failure:
            raise self.saved_after(failure) from failure
        except StepInterrupted:
            self.console.say("the evaluation is left for the resumed run")
            return
        selection.is_due = False
        if self.last_saved is not None and self.last_saved.tick == tick:
            self.last_saved = None  # it was written before this evaluation
        is_best, result, metrics = selection.take(found, tick), found.result, found.metrics
        returns = {} if result is None else {"eval/returns": list(result.returns)}
        self.log.write("eval", {**metrics, **returns, "best": is_best})
        chosen = selection.best_metric(metrics)
        self.console.evaluated(tick, metrics[chosen], str(found), is_best, short_name(chosen))
        if result is not None and (note := result.note()):
            self.console.say(f"warning: {note}")
        if reason := selection.stop_reason(found):
            self.request_stop(reason)
        event = EvalEvent(tick, result, is_best, self.request_stop, metrics)
        self.log.notify(lambda callback: callback.on_eval(event))
        if (is_best and self.config.keep_best) or self.last_saved is None:
            self.save()  # the first one in any case: a run that is killed later begins with it

    def evaluate_held_out(self) -> None:
        """Evaluate the last and the best policy from start states not used for selection."""
        selection = self.selection
        if selection.evaluator is None:
            return
        selection.hold_out()
        if self.profile:
            self.profile.watch(self._evaluation_parts())
        try:
            selection.held_out = selection.play(self.algorithm)
            best = self.store.best() if self.config.keep_best else None
            if best is not None and best.tick == self.loop.tick:
                selection.best_held_out = selection.held_out
            elif best is not None:
                algorithm = build_algorithm(self.config, self.algorithm.spaces)
                algorithm.load_training_state(
                    read_checkpoint(best.path, ("algorithm",))[1]["algorithm"]
                )
                selection.best_held_out = selection.play(algorithm)
        except EnvironmentFailure as failure:
            raise self.saved_after(failure) from failure
        except StepInterrupted:
            self.console.say("the evaluation on held-out start states is left for a resumed run")
        except CheckpointError as error:
            self.console.say(f"warning: {error}")

    def save(self) -> CheckpointInfo:
        """Write a checkpoint of the current state, unless it exists."""
        now, done = self.loop.position, self.loop.progress.to_dict()
        if self.last_saved is not None and (now, done) == (self.last_saved.tick, self.saved_done):
            return self.last_saved
        began = time.monotonic()
        self.health.check_weights()
        info = self.store.save(
            now,
            {name: part.training_state() for name, part in self._components().items()},
            {
                **checkpoint_header(self.config, self.algorithm),
                "progress": done,
                "score": self.selection.score_at(now),
                **self.exactness(),
            },
        )
        self.last_saved, self.saved_done = info, done
        if self._autosave is not None:
            self._autosave.saved(time.monotonic() - began)
        event = SaveEvent(now, info.path)
        self.log.notify(lambda callback: callback.on_save(event))
        return info

    def saved_after(self, failure: EnvironmentFailure) -> EnvironmentFailure:
        """Save the state before an environment failed; returns a sentence with its path."""
        self.health.check_losses()  # a policy that has diverged breaks environments, too
        done = f"{self.loop.position:,} {self.loop.unit}"
        try:
            kept = self.save().path
        except CheckpointError as error:
            return EnvironmentFailure(f"{failure} (and the state after {done} is lost: {error})")
        return EnvironmentFailure(
            f"{failure}; the state after {done} is kept in '{kept}', go on from it with: "
            f"{resume_command(self._resume_dir)}"
        )

    # --- state ----------------------------------------------------------------------------------

    def _components(self) -> dict[str, Component]:
        return {
            "algorithm": self.algorithm,
            "trainer": self,
            **self.loop.components(),
            # last, because environments that are brought back may draw from these streams
            "random": TorchRandom(),
        }

    def _collectors(self) -> list[Collector | WorldsOfRun]:
        parts = self._components().values()
        return [part for part in parts if isinstance(part, (Collector, WorldsOfRun))]

    def exactness(self) -> dict[str, Any]:
        """Whether a resumed run equals an uninterrupted one bit for bit, and if not, why."""
        reasons = [collector.inexact_because for collector in self._collectors()]
        reason = "; ".join(reason for reason in reasons if reason) or None
        return {"exact": reason is None, "inexact_because": reason}

    def training_state(self) -> dict[str, Any]:
        return {
            "progress": self.loop.progress.to_dict(),
            "elapsed_seconds": self.elapsed(),
            "horizon": self.loop.horizon,
            "delayed_metrics": {name: float(value) for name, value in self._delayed.items()},
            **self.selection.training_state(),
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "trainer")
        self.loop.progress.load(stored.section("progress"))
        self.elapsed_before = stored.number("elapsed_seconds", least=0.0)
        self.stop_reason = self.selection.load(stored) or self.stop_reason
        if "horizon" in stored:
            self.loop.horizon = stored.whole("horizon", least=1)
        if "delayed_metrics" in stored:
            kept = stored.section("delayed_metrics")
            self._delayed = {name: torch.tensor(kept.measure(name)) for name in kept.names()}

    def restore(self, tick: int | None = None) -> None:
        """Go on from the newest checkpoint that is whole, or from the one at `tick` and no other;
        without any, `resumed_at` is -1 and nothing changes."""
        for info in reversed(self.store.all()):
            if tick is not None and info.tick != tick:
                continue
            try:
                _, parts = read_checkpoint(info.path)
            except CheckpointError as error:
                if tick is not None:
                    raise
                self.console.say(f"warning: {error}")
                continue
            manifest = Stored(info.manifest).section("config")
            refuse_moved_schedules(manifest.values, self.config)
            # schedules of a run that was saved without its horizon are over its budget then
            self.loop.horizon += manifest["total_timesteps"] or 0
            self.loop.horizon -= self.config.total_timesteps or 0
            stored = Stored(parts)
            for name, component in self._components().items():
                if name in stored or not isinstance(component, OptionalComponent):
                    component.load_training_state(stored[name])
            if self.loop.position != info.tick:
                raise stored.wrong("trainer.progress", f"that of tick {info.tick}")
            weight = self.algorithm.nonfinite_weight()
            if weight:
                raise CheckpointError(
                    f"checkpoint '{info.path}': the weight '{weight}' is NaN or infinite; remove "
                    "this checkpoint to go on from an earlier one"
                )
            self.resumed_at, self.last_saved = self.loop.tick, info
            self.saved_done = self.loop.progress.to_dict()
            return
        self.resumed_at = -1

    def elapsed(self) -> float:
        return self.elapsed_before + time.monotonic() - self.began

    def result(self) -> TrainResult:
        return train_result(self)

    def _write_result(self, status: str) -> None:
        self.status = status
        write_result(self, status)
