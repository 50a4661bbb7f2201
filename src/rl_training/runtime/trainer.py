"""The one loop that counts: learning rate, step, log, evaluate, save, stop.

Knows nothing about replay, rollouts or models; a loop moves the clock and this file
decides what happens when.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics, collapsed_weights
from rl_training.envs.global_random import untouched_randomness
from rl_training.experiment.checkpoint import (
    CheckpointInfo,
    CheckpointStore,
    read_checkpoint,
)
from rl_training.experiment.config import EVAL_METRICS, Schedule, Section, TrainConfig
from rl_training.experiment.console import Console
from rl_training.experiment.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    RLTrainingError,
    TrainingDivergedError,
)
from rl_training.experiment.sinks import MetricsLog
from rl_training.experiment.state import Stored
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    RESULT_FILE,
    hardware,
    resume_command,
    versions,
    write_json,
)
from rl_training.runtime.build import build_algorithm
from rl_training.runtime.callbacks import (
    Callback,
    EvalEvent,
    LogEvent,
    SaveEvent,
    StartEvent,
    StepEvent,
    TrainResult,
)
from rl_training.runtime.controls import (
    EarlyStopping,
    crossed,
    lr_grid_step,
    schedule_factor,
    until_next,
)
from rl_training.runtime.evaluation import (
    HELD_OUT_STATES,
    SELECTION_STATES,
    ActFunction,
    EvalResult,
    Evaluator,
)
from rl_training.runtime.held_out import HeldOutData
from rl_training.runtime.loops import Component, Loop
from rl_training.runtime.policy import ActingPolicy
from rl_training.runtime.profile import Part, Profile
from rl_training.runtime.randomness import TorchRandom
from rl_training.runtime.signals import Pause, StepInterrupted, end_by, interruptible

STRIDE_SECONDS = 0.1
"""Time between two looks at callbacks, the progress bar and the clock, unless one environment
step or one update takes longer."""
PROFILE_AFTER_S = 15.0
"""Seconds after which a profile is shown for the first time."""


def checkpoint_header(config: TrainConfig, algorithm: Algorithm) -> dict[str, Any]:
    """What every checkpoint says about itself, whoever writes it."""
    return {
        "algo": config.algo,
        "config": config.to_dict(),
        "config_hash": config.hash(),
        "spaces": algorithm.spaces.to_dict(),
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


CHOSEN_BY = (
    "eval/return_mean",
    "offline/td_error",
    "offline/log_likelihood",
    "offline/data_distance",
)
"""Metrics by which the best policy is chosen unless the config says otherwise: the first of them
that is measured."""


def measured(metrics: Mapping[str, float]) -> str:
    """Measures on held-out episodes, for people."""
    shown = (f"{short_name(name)} {value:.4g}" for name, value in metrics.items())
    return "held out: " + ", ".join(shown)


def short_name(metric: str) -> str:
    """A metric in words."""
    words = metric.partition("/")[2].replace("_", " ")
    return "return" if words == "return mean" else words


BUDGETS = ("total_updates", "total_epochs", "total_timesteps")


def refuse_moved_schedules(old: Mapping[str, Any], config: TrainConfig) -> None:
    """Refuse another budget on resume where a schedule is over the budget of the run."""
    key = next((key for key in BUDGETS if old[key] != getattr(config, key)), None)
    if key is None:
        return
    sections = {"lr_schedule": config.lr_schedule, **schedules_of(config.params, "algo_kwargs")}
    for name, schedule in sections.items():
        if not (schedule.is_constant or schedule.over):
            raise ConfigError(
                f"{key}: changing the budget on resume would stretch {name}, whose horizon is the "
                f"budget; keep {key}={old[key]}, or start a run with {name}.over set"
            )


def schedules_of(section: Section, prefix: str) -> dict[str, Schedule]:
    """Every schedule in a section and below it, by the key that names it."""
    found: dict[str, Schedule] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Schedule):
            found[f"{prefix}.{name}"] = value
        elif isinstance(value, Section):
            found |= schedules_of(value, f"{prefix}.{name}")
    return found


class Autosave:
    """When a checkpoint is due by the clock on the wall: every so many minutes, and so rarely
    that saving takes no more than a twentieth of the time."""

    MOST_OF_THE_TIME = 0.05

    def __init__(self, minutes: float) -> None:
        self.seconds = 60.0 * minutes
        self._next = time.monotonic() + self.seconds

    def due(self) -> bool:
        return self.seconds > 0.0 and time.monotonic() >= self._next

    def saved(self, took: float) -> None:
        """Count from a checkpoint that has just been written."""
        self._next = time.monotonic() + max(self.seconds, took / self.MOST_OF_THE_TIME)


class SomeEvaluator(Protocol):
    """What evaluates policies for a trainer."""

    def run(self, act: ActFunction, episodes: int) -> EvalResult: ...
    def start_from(self, seed: int) -> None: ...
    def close(self) -> None: ...


class Trainer:
    """Runs one loop to the end of its budget."""

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm,
        loop: Loop,
        run_dir: Path,
        console: Console,
        callbacks: Sequence[Callback] = (),
        evaluator: SomeEvaluator | None = None,
        agent: Any = None,
    ) -> None:
        self.config, self.algorithm, self.loop = config, algorithm, loop
        self.run_dir, self.console, self.callbacks = run_dir, console, callbacks
        self.agent = agent
        """What callbacks know the policy by."""
        self.status = "failed"
        """How the run has ended: "finished", "interrupted" or, until then, "failed"."""
        self.store = CheckpointStore(
            run_dir / CHECKPOINT_FOLDER, config.keep_last, config.keep_best
        )
        self.evaluator = evaluator or self._evaluator(SELECTION_STATES)
        """None for a run without an environment."""
        self.start_states = SELECTION_STATES  # the seed of those that evaluations start from
        self.early_stopping = (
            EarlyStopping(config.early_stopping) if config.early_stopping else None
        )
        self.held_out_data: HeldOutData | None = getattr(loop, "held_out", None)
        self.last_eval: EvalResult | None = None
        self.last_metrics: dict[str, float] = {}
        self.last_eval_tick = -1
        self.evaluation_due = False  # one that a failure or a signal has prevented
        self.held_out: EvalResult | None = None  # of the last policy, after training
        self.best_held_out: EvalResult | None = None
        self.last_saved: CheckpointInfo | None = None
        self.saved_done: dict[str, int] = {}  # its counters
        self.best_score, self.best_tick = -math.inf, -1
        self.profile: Profile | None = None
        self.profile_from = 0  # the tick at which it began
        self.profile_shown = False
        self.warned_of_collapse = False
        self.stop_reason: str | None = None
        self.signal: int | None = None
        """Number of the signal that ends the run."""
        self.autosave: Autosave | None = Autosave(config.checkpoint_minutes)
        self.began, self.elapsed_before = time.monotonic(), 0.0
        self.resumed_at: int | None = None
        self.resume_dir = run_dir
        """What to resume after a failure: the run itself, unless it is part of a larger one."""

    @property
    def pause(self) -> Pause:
        return self.loop.link.pause

    # --- running ------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Train to the end; the result is also written to result.json.

        Once a run that a signal has ended is saved, the signal goes on to end the program.
        """
        self.open()
        try:
            start = StartEvent(
                self.loop.tick, self.loop.total, self.run_dir, self.config, self.agent
            )
            self._notify(lambda callback: callback.on_start(start))
            with interruptible(self.interrupt):
                while self.is_running():
                    self._advance()
                result = self.finish()
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self.close()
        if self.signal is not None:
            raise end_by(self.signal, result)
        return result

    def open(self) -> None:
        """Begin, or go on after `restore`."""
        self.began = time.monotonic()
        with untouched_randomness():
            self.log = MetricsLog(self.run_dir, self.config, self.resumed_at, self.console.say)
        self.log_mark = (self.began, self.loop.progress.to_dict())
        if self.config.profile:
            self._begin_profile()
        name = self.algorithm.name()
        self.console.start(name, self.loop.total, self.loop.tick, self.loop.unit)
        self.loop.link.tell = self.console.busy
        for part in self._components().values():
            for note in getattr(part, "notes", ()):
                self.console.say(f"warning: {note}")

    def is_running(self) -> bool:
        """Whether there is more to do; an evaluation that is due is made first."""
        if self.evaluation_due and self.signal is None:
            self._evaluate()
        if self.stop_reason is None and self.loop.tick >= self.loop.total:
            self.stop_reason = f"budget of {self.loop.total:,} {self.loop.unit} spent"
        return self.stop_reason is None

    def is_over(self) -> bool:
        """Whether a run that was restored has nothing left to do."""
        spent = self.loop.tick >= self.loop.total
        return not self.evaluation_due and (spent or self.stop_reason is not None)

    def finish(self) -> TrainResult:
        """The last evaluation, checkpoint and result."""
        if self.signal is None and self.config.final_eval:
            self._evaluate()
        if self.signal is not None:
            self.last_saved = None  # the clock alone does not say how far a step has come
        self.save()
        if self.signal is None and self.config.final_eval:
            self._evaluate_held_out()
        if self.profile:
            self._show_profile()
        result = self.result()
        self._notify(lambda callback: callback.on_end(result))
        self._write_result("interrupted" if result.interrupted else "finished")
        return result

    def fail(self, error: BaseException) -> None:
        """Leave word of what ended the run."""
        self.stop_reason = f"{type(error).__name__}: {error}"
        with suppress(RLTrainingError, OSError):  # must not hide what went wrong first
            self._write_result("failed")

    def close(self) -> None:
        self.console.stop()
        self.log.close(self.status)
        if self.evaluator is not None:
            self.evaluator.close()
        self.loop.close()

    def _advance(self) -> None:
        before = self.loop.tick
        self.follow_schedule()
        self.pause.until = time.monotonic() + STRIDE_SECONDS
        try:
            metrics = self.loop.advance(self.stride())
        except EnvironmentFailure as failure:
            raise self._saved_after(failure) from failure
        except StepInterrupted:
            return  # nothing is due before the step is complete
        self.advanced(before, metrics)

    def follow_schedule(self) -> None:
        """Set the learning rates of the next ticks."""
        schedule = self.config.lr_schedule
        if not schedule.is_constant:
            factor = schedule_factor(schedule, self.loop.tick, self.loop.horizon)
            self.algorithm.set_lr_factor(factor, schedule.optimizers)

    def advanced(self, before: int, metrics: Metrics) -> None:
        """Do what is due since the loop was at the tick `before`, which it may still be."""
        c, now = self.config, self.loop.tick
        while self.loop.link.notes:
            self.console.say(f"warning: {self.loop.link.notes.pop()}")
        self._check_finite_losses()
        if crossed(before, now, c.log_interval) or now >= self.loop.total:
            self._log_training(metrics)
        if crossed(before, now, c.eval_interval):
            self._evaluate()
        # the last tick is saved by `run`, after its evaluation
        by_clock = self.autosave is not None and self.autosave.due()
        if by_clock or (crossed(before, now, c.checkpoint_interval) and now < self.loop.total):
            self.save()
        self.console.advance(self.loop.position, self.loop.episodes())
        if self.profile and not self.profile_shown and self.profile.total > PROFILE_AFTER_S:
            self._show_profile()
        event = StepEvent(now, self.loop.progress, self.request_stop)
        self._notify(lambda callback: callback.on_step(event))

    def stride(self) -> int:
        """Ticks to the next thing that has to happen at an exact tick."""
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

    def request_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def interrupt(self, number: int) -> None:
        """End the run soon, for a signal: no evaluation and no step is finished."""
        self.signal, name = number, signal.Signals(number).name
        self.stop_reason = f"interrupted by {name}"
        self.console.say(f"{name}: saving, then ending (once more to end at once)")
        self.pause.request()

    def _begin_profile(self) -> None:
        self.profile = Profile(self.algorithm.update_count.device)
        self.profile_from = self.loop.tick
        evaluated = [] if self.evaluator is None else [Part(self.evaluator, "run", "evaluation")]
        self.profile.watch(
            [
                *self.loop.parts(),
                *evaluated,
                Part(self.store, "save", "checkpoints"),
                Part(self.log, "write", "logging"),
            ]
        )

    def _show_profile(self) -> None:
        assert self.profile is not None
        self.profile_shown = True
        done = self.loop.tick - self.profile_from
        for line in self.profile.lines(done / max(self.loop.total - self.profile_from, 1)):
            self.console.say(line)

    # --- the things that happen -----------------------------------------------------------------

    def _log_training(self, metrics: Metrics) -> None:
        numbers = {key: float(value) for key, value in metrics.items()}
        self._warn_of_collapse(numbers)
        values: dict[str, Any] = {f"train/{key}": value for key, value in numbers.items()}
        values |= self.loop.report()
        for name, optimizer in self.algorithm.optimizers.items():
            values[f"lr/{name}"] = float(optimizer.lr)
        values["time/elapsed_seconds"] = self._elapsed()
        self._log("train", {**self.loop.progress.to_dict(), **values, **self._rates()})

    def _rates(self) -> dict[str, float]:
        """Environment steps and updates per second since the last call."""
        (before, then), now = self.log_mark, (time.monotonic(), self.loop.progress.to_dict())
        self.log_mark = now
        return {
            f"time/{key}_per_second": (now[1][key] - then[key]) / max(now[0] - before, 1e-9)
            for key in ("env_steps", "updates")
            if now[1][key] > then[key]
        }

    def _log(self, kind: str, values: dict[str, Any]) -> None:
        with untouched_randomness():
            logged = self.log.write(kind, self.loop.tick, values)
        event = LogEvent(
            kind,
            logged.tick,
            logged.numbers,
            self.run_dir,
            self.config,
            self.agent,
            self.request_stop,
        )
        self._notify(lambda callback: callback.on_log(event))

    def _warn_of_collapse(self, metrics: dict[str, float]) -> None:
        collapse = None if self.warned_of_collapse else collapsed_weights(metrics)
        if collapse:
            self.warned_of_collapse = True
            self.console.say(
                f"warning: at {self.loop.tick:,} {self.loop.unit} {collapse}, so the policy learns "
                f"from few rows; {self.algorithm.softer_weights}"
            )

    def _evaluate(self) -> None:
        tick = self.loop.tick
        if tick == self.last_eval_tick or (self.evaluator is None and self.held_out_data is None):
            return
        self._check_finite_weights()
        self.evaluation_due = True
        try:
            result = None if self.evaluator is None else self._evaluation_of(self.algorithm)
        except EnvironmentFailure as failure:
            raise self._saved_after(failure) from failure
        except StepInterrupted:
            self.console.say("the evaluation is left for the resumed run")
            return
        self.evaluation_due = False
        if self.last_saved is not None and self.last_saved.tick == tick:
            self.last_saved = None  # it knows nothing of this evaluation
        metrics = {} if result is None else result.metrics()
        if self.held_out_data is not None:
            with untouched_randomness():
                metrics |= self.held_out_data.measure(self.algorithm)
        self.last_eval, self.last_eval_tick, self.last_metrics = result, tick, metrics
        score = self._score(metrics)
        is_best = score > self.best_score
        if is_best:
            self.best_score, self.best_tick = score, tick
        returns = {} if result is None else {"eval/returns": list(result.returns)}
        self._log("eval", {**metrics, **returns, "best": is_best})
        chosen = self.best_metric(metrics)
        text = measured(metrics) if result is None else str(result)
        self.console.evaluated(tick, metrics[chosen], text, is_best, short_name(chosen))
        note = None if result is None else result.note()
        if note:
            self.console.say(f"warning: {note}")
        if self.early_stopping:
            reason = self.early_stopping.observe(metrics)
            if reason:
                self.request_stop(reason)
        event = EvalEvent(tick, result, is_best, self.request_stop, metrics)
        self._notify(lambda callback: callback.on_eval(event))
        if (is_best and self.config.keep_best) or self.last_saved is None:
            self.save()  # the first one in any case: a run that is killed later begins with it

    def _evaluation_of(self, algorithm: Algorithm) -> EvalResult:
        """Episodes of a policy, broken off where the run is to end."""
        assert self.evaluator is not None
        with untouched_randomness(), self.pause:
            return self.evaluator.run(ActingPolicy(algorithm), self.config.eval_episodes)

    def _evaluator(self, start_states: int) -> SomeEvaluator | None:
        c = self.config
        if c.env_id is None:
            return None
        return Evaluator(
            c.env_id, c.env_kwargs, self.algorithm.spaces, [start_states], c.eval_max_steps
        )

    def _evaluate_held_out(self) -> None:
        """What the last and the best policy are worth from start states that chose neither."""
        if self.evaluator is None:
            return
        self.evaluator.close()
        self.evaluator = self._evaluator(HELD_OUT_STATES)
        if self.profile:
            self.profile.watch([Part(self.evaluator, "run", "evaluation")])
        try:
            self.held_out = self._evaluation_of(self.algorithm)
            best = self.store.best() if self.config.keep_best else None
            if best is not None and best.tick == self.loop.tick:
                self.best_held_out = self.held_out
            elif best is not None:
                algorithm = build_algorithm(self.config, self.algorithm.spaces)
                algorithm.load_training_state(
                    read_checkpoint(best.path, ("algorithm",))[1]["algorithm"]
                )
                self.best_held_out = self._evaluation_of(algorithm)
        except EnvironmentFailure as failure:
            raise self._saved_after(failure) from failure
        except StepInterrupted:
            self.console.say("the evaluation on held-out start states is left for a resumed run")
        except CheckpointError as error:
            self.console.say(f"warning: {error}")

    def best_metric(self, metrics: Mapping[str, float]) -> str:
        """The metric by which the best policy is chosen."""
        watched = self.config.early_stopping
        chosen = self.config.best_metric or (watched and watched.metric)
        if chosen and chosen not in metrics:
            raise ConfigError(
                f"{'best_metric' if self.config.best_metric else 'early_stopping.metric'}: the "
                f"environment '{self.config.env_id}' does not report info['is_success'] at the end "
                "of an episode; watch eval/return_mean instead"
            )
        return chosen or next(name for name in CHOSEN_BY if name in metrics)

    def _score(self, metrics: Mapping[str, float]) -> float:
        """Larger is better."""
        name, watched = self.best_metric(metrics), self.config.early_stopping
        mode = watched.mode if watched and watched.metric == name else EVAL_METRICS[name]
        score = -metrics[name] if mode == "min" else metrics[name]
        return score if math.isfinite(score) else -math.inf

    def _check_finite_losses(self) -> None:
        bad = self.algorithm.first_nonfinite()
        if bad:
            name, update = bad
            raise TrainingDivergedError(
                f"the {name} became NaN or infinite at update {update}; "
                f"{self._last_good()}, lower the learning rate, set algo_kwargs.grad_clip, "
                "or scale the rewards"
            )

    def _check_finite_weights(self) -> None:
        weight = self.algorithm.nonfinite_weight()
        if weight:
            raise TrainingDivergedError(
                f"the weight '{weight}' became NaN or infinite by update "
                f"{self.loop.progress.updates}; {self._last_good()}, lower the learning rate or "
                "set algo_kwargs.grad_clip"
            )

    def _last_good(self) -> str:
        latest = self.store.latest()
        return f"the last good checkpoint is '{latest.path}'" if latest else "none was saved yet"

    def save(self) -> CheckpointInfo:
        """The checkpoint of now, written unless it is there already."""
        now, done = self.loop.position, self.loop.progress.to_dict()
        if self.last_saved is not None and (now, done) == (self.last_saved.tick, self.saved_done):
            return self.last_saved
        began = time.monotonic()
        self._check_finite_weights()
        evaluated_here = self.last_eval_tick == now
        info = self.store.save(
            now,
            {name: part.training_state() for name, part in self._components().items()},
            {
                **checkpoint_header(self.config, self.algorithm),
                "progress": done,
                "score": self._score(self.last_metrics) if evaluated_here else None,
                **self._exactness(),
            },
        )
        self.last_saved, self.saved_done = info, done
        if self.autosave is not None:
            self.autosave.saved(time.monotonic() - began)
        event = SaveEvent(now, info.path)
        self._notify(lambda callback: callback.on_save(event))
        return info

    def _saved_after(self, failure: EnvironmentFailure) -> EnvironmentFailure:
        """Save what was learned before an environment failed; the sentence with where it is."""
        self._check_finite_losses()  # a policy that has diverged breaks environments, too
        done = f"{self.loop.position:,} {self.loop.unit}"
        try:
            kept = self.save().path
        except CheckpointError as error:
            return EnvironmentFailure(f"{failure} (and the state after {done} is lost: {error})")
        return EnvironmentFailure(
            f"{failure}; the state after {done} is kept in '{kept}', go on from it with: "
            f"{resume_command(self.resume_dir)}"
        )

    def _notify(self, call: Callable[[Callback], None]) -> None:
        with untouched_randomness():
            for callback in self.callbacks:
                call(callback)

    # --- state ----------------------------------------------------------------------------------

    def _components(self) -> dict[str, Component]:
        return {
            "algorithm": self.algorithm,
            "trainer": self,
            **self.loop.components(),
            # last, because environments that are brought back may draw from these streams
            "random": TorchRandom(),
        }

    def _exactness(self) -> dict[str, Any]:
        """Whether a resumed run is an uninterrupted one bit for bit, and if not, why."""
        reasons = [getattr(part, "inexact_because", None) for part in self._components().values()]
        reason = "; ".join(reason for reason in reasons if reason) or None
        return {"exact": reason is None, "inexact_because": reason}

    def training_state(self) -> dict[str, Any]:
        last = self.last_eval
        return {
            "progress": self.loop.progress.to_dict(),
            "elapsed_seconds": self._elapsed(),
            "last_eval": [
                list(column) for column in (last.returns, last.lengths, last.cut, last.successes)
            ]
            if last
            else None,
            "last_metrics": self.last_metrics,
            "start_states": self.start_states,
            "last_eval_tick": self.last_eval_tick,
            "evaluation_due": self.evaluation_due,
            "best_score": self.best_score,
            "best_tick": self.best_tick,
            "horizon": self.loop.horizon,
            "early_stopping": self.early_stopping.training_state() if self.early_stopping else None,
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "trainer")
        self.loop.progress.load(stored.section("progress"))
        self.elapsed_before = stored.number("elapsed_seconds", least=0.0)
        if stored["last_eval"]:
            names = ("returns", "lengths", "cut", "successes")
            columns = dict(zip(names, stored.entries("last_eval"), strict=False))
            result = Stored(columns, "trainer.last_eval")
            returns = result.numbers("returns")
            lengths = result.wholes("lengths", max(len(returns), 1), least=1)
            cut = result.flags("cut") if "cut" in result else []
            reported = result.entries("successes") if "successes" in result else []
            if not all(success in (True, False, None) for success in reported):
                raise result.wrong("successes", "true, false or none")
            self.last_eval = EvalResult(tuple(returns), tuple(lengths), tuple(cut), tuple(reported))
            self.last_metrics = self.last_eval.metrics()
        if "last_metrics" in stored:
            measures = stored.section("last_metrics")
            self.last_metrics = {name: measures.number(name) for name in measures.values}
        # a run of an earlier version compares its policies on start states of its own seed
        own = self.config.seed
        self.start_states = stored.whole("start_states") if "start_states" in stored else own
        if self.evaluator is not None:
            self.evaluator.start_from(self.start_states)
        self.last_eval_tick = stored.whole("last_eval_tick", least=-1)
        self.evaluation_due = stored.flag("evaluation_due")
        self.best_score = stored.number("best_score")
        self.best_tick = stored.whole("best_tick", least=-1)
        if "horizon" in stored:
            self.loop.horizon = stored.whole("horizon", least=1)
        if self.early_stopping and stored["early_stopping"]:
            self.early_stopping.load_training_state(stored["early_stopping"])
            self.stop_reason = self.early_stopping.reason()

    def restore(self, tick: int | None = None) -> None:
        """Go on from the newest checkpoint that is whole, from the start if there is none; or
        from the one at `tick` and no other."""
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
                if name in stored or not getattr(component, "optional", False):
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
        self.console.say("no usable checkpoint in this run: starting from the beginning")
        self.resumed_at = -1

    def _elapsed(self) -> float:
        return self.elapsed_before + time.monotonic() - self.began

    def result(self) -> TrainResult:
        return TrainResult(
            run_dir=self.run_dir,
            stop_reason=self.stop_reason or "",
            signal=self.signal,
            updates=self.loop.progress.updates,
            env_steps=self.loop.progress.env_steps,
            wall_seconds=self._elapsed(),
            last_eval=self.last_eval,
            best_score=self.best_score if self.best_tick >= 0 else None,
            best_tick=self.best_tick if self.best_tick >= 0 else None,
            data_notes=self.loop.data_notes,
            held_out=self.held_out,
            best_held_out=self.best_held_out,
            metrics=self.last_metrics,
            best_metric=self.best_metric(self.last_metrics) if self.best_tick >= 0 else None,
        )

    def _write_result(self, status: str) -> None:
        self.status, result = status, self.result()
        write_json(
            self.run_dir / RESULT_FILE,
            {
                "status": status,
                "stop_reason": result.stop_reason,
                **self.loop.progress.to_dict(),
                "last_eval": self.last_metrics or None,
                "last_eval_tick": self.last_eval_tick,
                "best": {
                    "tick": result.best_tick,
                    "score": result.best_score,
                    "metric": result.best_metric,
                },
                "data_notes": list(result.data_notes),
                "held_out": {
                    "last": self.held_out.metrics() if self.held_out else None,
                    "best": self.best_held_out.metrics() if self.best_held_out else None,
                },
                **self._exactness(),
                "wall_seconds": round(result.wall_seconds, 3),
                "profile": self.profile.to_dict() if self.profile else None,
                "config_hash": self.config.hash(),
                "versions": versions(),
                "hardware": hardware(),
            },
        )
