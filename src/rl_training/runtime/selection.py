"""Evaluations during a run: the best of them, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from rl_training.algorithms.base import Algorithm
from rl_training.envs.global_random import untouched_randomness
from rl_training.envs.reference_scores import Reference, reference_of
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import EVAL_METRICS, TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.state import Stored
from rl_training.runtime.controls import EarlyStopping
from rl_training.runtime.evaluation import (
    HELD_OUT_STATES,
    SELECTION_STATES,
    ActFunction,
    EvalResult,
    Evaluator,
)
from rl_training.runtime.held_out import HeldOutData
from rl_training.runtime.policy import ActingPolicy
from rl_training.runtime.signals import Pause

CHOSEN_BY = (
    "eval/return_mean",
    "offline/td_error",
    "offline/log_likelihood",
    "offline/data_distance",
)
"""Metrics by which the best policy is chosen unless the config says otherwise: the first of them
that is measured."""


def measured(metrics: Mapping[str, float]) -> str:
    """Formats the measures on held-out episodes."""
    shown = (f"{short_name(name)} {value:.4g}" for name, value in metrics.items())
    return "held out: " + ", ".join(shown)


def short_name(metric: str) -> str:
    """The name of a metric in words."""
    words = metric.partition("/")[2].replace("_", " ")
    return "return" if words == "return mean" else words


class Evaluation(NamedTuple):
    """The results of one evaluation."""

    result: EvalResult | None
    """Of whole episodes; None in a run without an environment."""
    metrics: dict[str, float]
    """Everything that was measured, in the environment and on held-out episodes."""

    def __str__(self) -> str:
        return measured(self.metrics) if self.result is None else str(self.result)


class EvaluatorLike(Protocol):
    """What evaluates policies for a run."""

    def run(self, act: ActFunction, episodes: int) -> EvalResult: ...
    def start_from(self, seed: int) -> None: ...
    def close(self) -> None: ...


class Selection:
    """The evaluations of a run, and the best of them."""

    def __init__(
        self,
        config: TrainConfig,
        spaces: Spaces,
        pause: Pause,
        evaluator: EvaluatorLike | None = None,
        held_out_data: HeldOutData | None = None,
    ) -> None:
        self.config, self._spaces, self._pause = config, spaces, pause
        self.held_out_data = held_out_data
        self.evaluator = evaluator or self._evaluator(SELECTION_STATES)
        """None for a run without an environment."""
        self.start_states = SELECTION_STATES  # the seed of those that evaluations start from
        self.early_stopping = (
            EarlyStopping(config.early_stopping) if config.early_stopping else None
        )
        self.last: EvalResult | None = None
        self.last_metrics: dict[str, float] = {}
        self.last_tick = -1
        self.is_due = False  # one that a failure or a signal has prevented
        self.best_score, self.best_tick = -math.inf, -1
        self.held_out: EvalResult | None = None  # of the last policy, after training
        self.best_held_out: EvalResult | None = None

    @property
    def is_possible(self) -> bool:
        """Whether there is an environment or held-out data to evaluate on."""
        return self.evaluator is not None or self.held_out_data is not None

    def evaluate(self, algorithm: Algorithm) -> Evaluation:
        """Measure everything that can be measured of a policy."""
        result = None if self.evaluator is None else self.play(algorithm)
        metrics = {} if result is None else result.metrics()
        if self.held_out_data is not None:
            with untouched_randomness():
                metrics |= self.held_out_data.measure(algorithm)
        return Evaluation(result, metrics)

    def play(self, algorithm: Algorithm) -> EvalResult:
        """Run episodes of a policy; aborted if the run should end."""
        assert self.evaluator is not None
        with untouched_randomness(), self._pause:
            return self.evaluator.run(
                ActingPolicy(algorithm, repeats=True), self.config.eval_episodes
            )

    def take(self, found: Evaluation, tick: int) -> bool:
        """Record the evaluation at `tick`; returns whether it is the best so far."""
        self.last, self.last_metrics, self.last_tick = found.result, found.metrics, tick
        score = self.score(found.metrics)
        is_best = score > self.best_score
        if is_best:
            self.best_score, self.best_tick = score, tick
        return is_best

    def stop_reason(self, found: Evaluation) -> str | None:
        """The reason to stop after this evaluation, or None."""
        return self.early_stopping.observe(found.metrics) if self.early_stopping else None

    def score_at(self, tick: int) -> float | None:
        """The score of the last evaluation if it was at `tick`."""
        return self.score(self.last_metrics) if self.last_tick == tick else None

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

    def score(self, metrics: Mapping[str, float]) -> float:
        """Larger is better."""
        name, watched = self.best_metric(metrics), self.config.early_stopping
        mode = watched.mode if watched and watched.metric == name else EVAL_METRICS[name]
        score = -metrics[name] if mode == "min" else metrics[name]
        return score if math.isfinite(score) else -math.inf

    def hold_out(self) -> None:
        """From now on, evaluate from start states that were not used for selection."""
        self.close()
        self.evaluator = self._evaluator(HELD_OUT_STATES)

    def _reference(self) -> Reference | None:
        c = self.config
        return None if c.env_id is None else reference_of(c.env_id, c.task_kwargs)

    def _evaluator(self, start_states: int) -> EvaluatorLike | None:
        c = self.config
        if c.env_id is None:
            return None
        return Evaluator(c.env_id, c.task_kwargs, self._spaces, [start_states], c.eval_max_steps)

    def close(self) -> None:
        if self.evaluator is not None:
            self.evaluator.close()

    def training_state(self) -> dict[str, Any]:
        last = self.last
        columns = (last.returns, last.lengths, last.cut, last.successes) if last else ()
        return {
            "last_eval": [list(column) for column in columns] or None,
            "last_metrics": self.last_metrics,
            "start_states": self.start_states,
            "last_eval_tick": self.last_tick,
            "evaluation_due": self.is_due,
            "best_score": self.best_score,
            "best_tick": self.best_tick,
            "early_stopping": self.early_stopping.training_state() if self.early_stopping else None,
        }

    def load(self, stored: Stored) -> str | None:
        """Restore a stored state; returns the reason for an early stop, if there was one."""
        if stored["last_eval"]:
            self.last = replace(_stored_result(stored), reference=self._reference())
            self.last_metrics = self.last.metrics()
        if "last_metrics" in stored:
            measures = stored.section("last_metrics")
            self.last_metrics = {name: measures.number(name) for name in measures.values}
        # a run of an earlier version compares its policies on start states of its own seed
        own = self.config.seed
        self.start_states = stored.whole("start_states") if "start_states" in stored else own
        if self.evaluator is not None:
            self.evaluator.start_from(self.start_states)
        self.last_tick = stored.whole("last_eval_tick", least=-1)
        self.is_due = stored.flag("evaluation_due")
        self.best_score = stored.number("best_score")
        self.best_tick = stored.whole("best_tick", least=-1)
        if self.early_stopping and stored["early_stopping"]:
            self.early_stopping.load_training_state(stored["early_stopping"])
            return self.early_stopping.reason()
        return None


def _stored_result(stored: Stored) -> EvalResult:
    names = ("returns", "lengths", "cut", "successes")
    columns = dict(zip(names, stored.entries("last_eval"), strict=False))
    result = Stored(columns, "trainer.last_eval")
    returns = result.numbers("returns")
    if not returns:
        raise result.wrong("returns", "those of one episode at least")
    lengths = result.wholes("lengths", len(returns), least=1)
    cut = result.flags("cut") if "cut" in result else []
    reported = result.entries("successes") if "successes" in result else []
    if not all(success in (True, False, None) for success in reported):
        raise result.wrong("successes", "true, false or none")
    return EvalResult(tuple(returns), tuple(lengths), tuple(cut), tuple(reported))
