"""The folder of a tuning, and its record of trials in Optuna's journal.

The journal is a file of JSON lines, so that reading it executes nothing. Optuna does not see when
a worker dies: a trial belongs to the process that holds the lock of its folder, and one that
nobody holds is gone on with under its own number and values.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.experiment.config import EVAL_METRICS, TrainConfig
from rl_training.experiment.errors import ConfigError, MissingExtraError
from rl_training.experiment.lock import alone_in
from rl_training.experiment.ranges import Choices
from rl_training.experiment.tracking import reraise_os_error
from rl_training.runtime.statistics import Interval
from rl_training.search.space import Space, is_whole, value_of
from rl_training.search.study import (
    SAME_COMMAND,
    TRIALS_FOLDER,
    StudyFolder,
    identity,
    refuse_difference,
)

if TYPE_CHECKING:
    import optuna

JOURNAL_FILE = "study.journal"
LOW, SEEDS = "lower end at", "seeds at"
"""Of a trial's attributes, before a tick."""


@dataclass(frozen=True)
class TuningPlan:
    """What identifies a tuning. How many trials it has may grow."""

    config: TrainConfig
    space: Space
    seeds: tuple[int, ...]
    test_seeds: tuple[int, ...]
    metric: str
    prune: bool
    sampler_seed: int = 0

    @property
    def sign(self) -> float:
        """-1 where less of the metric is better."""
        return -1.0 if EVAL_METRICS.get(self.metric) == "min" else 1.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": identity(self.config),
            "search": {key: str(one) for key, one in self.space.items()},
            "seeds": list(self.seeds),
            "test_seeds": list(self.test_seeds),
            "metric": self.metric,
            "prune": self.prune,
            "sampler_seed": self.sampler_seed,
        }


@dataclass
class Claim:
    """A trial that this process works on."""

    number: int
    values: dict[str, Any]
    """Values of the searched keys."""
    begun: bool
    """Whether another process had begun it."""
    lock: ExitStack = field(repr=False)


@dataclass(frozen=True)
class EndedTrial:
    """A trial that has ended."""

    number: int
    state: str
    """finished, pruned or failed."""
    values: dict[str, Any]
    objective: float | None
    rungs: dict[int, float]
    """Interquartile means over the seeds, by tick."""
    lows: dict[int, float]
    """Lower ends of their intervals."""
    seeds: dict[int, tuple[float, ...]]
    """Scores of the seeds, by tick; here more is better, whatever the metric."""
    scores: tuple[float, ...]
    why: str


class TuningFolder(StudyFolder):
    """The folder of a tuning; several processes may open it."""

    kind = "tune"

    def __init__(self, folder: Path, plan: TuningPlan) -> None:
        self._optuna = _import_optuna()
        self.plan = plan
        super().__init__(folder, plan.to_dict())
        with self._alone():
            self._study = self._open()
            if not self._study.get_trials(deepcopy=False):
                self._study.enqueue_trial(self._own_values())

    def refuse_other_plan(self, stored: dict[str, Any], plan: dict[str, Any]) -> None:
        refuse_difference(stored.get("config"), plan["config"], "the config", self.folder)
        rest = {key: value for key, value in plan.items() if key != "config"}
        refuse_difference({key: stored.get(key) for key in rest}, rest, "the study", self.folder)

    # --- trials ---------------------------------------------------------------------------------

    def claim(self, trials: int) -> Claim | None:
        """A trial that nobody works on: one whose process died, or a new one of so many."""
        with self._alone():
            known = self._study.get_trials(deepcopy=False)
            states = self._optuna.trial.TrialState
            for trial in known:
                if trial.state is states.RUNNING and (lock := self.held(_name(trial.number))):
                    self._seed_sampler(trial.number)
                    begun = self._optuna.trial.Trial(self._study, trial._trial_id)
                    return self._claimed(begun, True, lock)
            waiting = [trial.number for trial in known if trial.state is states.WAITING]
            if len(known) - len(waiting) >= trials:
                return None
            self._seed_sampler(waiting[0] if waiting else len(known))
            asked = self._study.ask()
            lock = self.held(_name(asked.number))
            assert lock is not None  # nobody else claims while this process is alone
            return self._claimed(asked, False, lock)

    def _seed_sampler(self, number: int) -> None:
        """By the trial's number alone: a study that was stopped draws as if it had not been."""
        drawn = np.random.SeedSequence([self.plan.sampler_seed, number]).generate_state(1)
        self._study.sampler = self._optuna.samplers.TPESampler(seed=int(drawn[0]))

    def report(self, claim: Claim, tick: int, here: Interval, seeds: Sequence[float]) -> None:
        """Note the scores of the seeds at a rung, of which more is better, and the interval of
        their interquartile mean."""
        with self._alone():
            trial = self._study.get_trials(deepcopy=False)[claim.number]
            if tick not in trial.intermediate_values:
                storage = self._study._storage
                storage.set_trial_user_attr(trial._trial_id, f"{LOW} {tick}", here.low)
                storage.set_trial_user_attr(trial._trial_id, f"{SEEDS} {tick}", list(seeds))
                storage.set_trial_intermediate_value(trial._trial_id, tick, here.value)

    def tell(
        self, claim: Claim, state: str, objective: float | None, scores: list[float], why: str = ""
    ) -> None:
        """Record the end of a trial and give it up."""
        states = self._optuna.trial.TrialState
        with self._alone():
            trial_id = self._study.get_trials(deepcopy=False)[claim.number]._trial_id
            for key, value in (("state", state), ("scores", scores), ("why", why)):
                self._study._storage.set_trial_user_attr(trial_id, key, value)
            # a failed trial counts as a bad one: Optuna would draw values of a FAIL again
            final = states.COMPLETE if state == "finished" else states.PRUNED
            self._study.tell(claim.number, objective, state=final)
        claim.lock.close()

    def ended(self) -> list[EndedTrial]:
        """All trials that have ended, by their number."""
        with self._alone():
            trials = self._study.get_trials(deepcopy=False)
        return [
            EndedTrial(
                trial.number,
                str(trial.user_attrs.get("state", "failed")),
                {key: self._value(key, value) for key, value in trial.params.items()},
                trial.value if trial.user_attrs.get("state") == "finished" else None,
                dict(trial.intermediate_values),
                {
                    tick: float(trial.user_attrs.get(f"{LOW} {tick}", -math.inf))
                    for tick in trial.intermediate_values
                },
                {
                    tick: tuple(trial.user_attrs.get(f"{SEEDS} {tick}", ()))
                    for tick in trial.intermediate_values
                },
                tuple(trial.user_attrs.get("scores", ())),
                str(trial.user_attrs.get("why", "")),
            )
            for trial in trials
            if trial.state.is_finished()
        ]

    def others_at_work(self) -> bool:
        """Whether trials are left that other processes work on."""
        with self._alone():
            return any(not t.state.is_finished() for t in self._study.get_trials(deepcopy=False))

    def _claimed(self, trial: optuna.trial.Trial, begun: bool, lock: ExitStack) -> Claim:
        values = {}
        for key, one in self.plan.space.items():  # values that are stored already are kept
            if isinstance(one, Choices):
                drawn: Any = trial.suggest_categorical(key, [json.dumps(v) for v in one.values])
            elif is_whole(self.plan.config, key):
                drawn = trial.suggest_int(key, round(one.low), round(one.high), log=one.logarithmic)
            else:
                drawn = trial.suggest_float(key, one.low, one.high, log=one.logarithmic)
            values[key] = self._value(key, drawn)
        return Claim(trial.number, values, begun, lock)

    def _value(self, key: str, drawn: Any) -> Any:
        return json.loads(drawn) if isinstance(self.plan.space.get(key), Choices) else drawn

    def _own_values(self) -> dict[str, Any]:
        """The config's own values, with which the search begins."""
        found = {}
        for key, one in self.plan.space.items():
            value = value_of(self.plan.config, key)
            if isinstance(one, Choices):
                found[key] = json.dumps(value)
            elif value is not None and one.low <= value <= one.high:
                found[key] = value
        return found

    # --- the journal ----------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While active, no other process reads or writes the journal, and its end is whole."""
        path = self.folder / JOURNAL_FILE
        with alone_in(self.folder / TRIALS_FOLDER), reraise_os_error(path, SAME_COMMAND):
            _drop_half_line(path)
            yield

    def _open(self) -> optuna.Study:
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        journal = self._optuna.storages.journal
        path = self.folder / JOURNAL_FILE
        try:
            study: optuna.Study = self._optuna.create_study(
                storage=journal.JournalStorage(journal.JournalFileBackend(str(path))),
                study_name="tune",
                direction="maximize",
                load_if_exists=True,
            )
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ):  # whatever Optuna trips over
            raise ConfigError(
                f"'{path}' is damaged; choose another folder with --out, or remove the file to "
                "begin the trials again"
            ) from None
        return study


def _name(number: int) -> str:
    return f"{number:04d}"


def _drop_half_line(path: Path) -> None:
    """Remove a line that a full disk or a kill cut off, to which another would be joined."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = kept = file.seek(0, os.SEEK_END)
        while kept:
            start = max(0, kept - 4096)
            file.seek(start)
            newline = file.read(kept - start).rfind(b"\n")
            if newline >= 0:
                kept = start + newline + 1
                break
            kept = start
        if kept < end:
            file.truncate(kept)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("optuna", "tune", "rl-training tune") from None
    return optuna
