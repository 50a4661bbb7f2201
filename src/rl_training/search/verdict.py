"""The test of a tuning: its winner against the defaults, on seeds that no trial had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import RLTrainingError
from rl_training.reports.comparison import probability_of_improvement
from rl_training.reports.runs import SeedRun, read_run
from rl_training.runtime.statistics import Interval, Summary
from rl_training.search.grid import with_seeds
from rl_training.search.launch import Launcher
from rl_training.search.runner import StudyRunner
from rl_training.search.space import configured, value_of
from rl_training.search.study import Study, Trial
from rl_training.search.tuning import EndedTrial, TuningFolder

FEWEST_SEEDS = 3
"""Fewer seeds show no noise, so that nothing is pruned, and no difference is claimed."""


@dataclass(frozen=True)
class Verdict:
    """The winner against the defaults, on seeds that tuning never saw."""

    winner: EndedTrial
    metric: str
    winner_scores: Summary
    defaults_scores: Summary
    improvement: Interval | None
    """Probability that a seed of the winner is better; None if the winner is the defaults."""
    looks: int
    """Evaluations of all trials by the metric."""

    @property
    def sentence(self) -> str:
        if self.improvement is None:
            return "no better than the defaults: no trial scored more than they do"
        seeds = min(len(self.winner_scores.scores), len(self.defaults_scores.scores))
        if seeds < FEWEST_SEEDS:
            return (
                f"no better than the defaults: fewer than {FEWEST_SEEDS} test seeds show no "
                "difference; give more in a new study"
            )
        if self.improvement.low > 0.5:
            return "better than the defaults"
        if self.improvement.high < 0.5:
            return "worse than the defaults"
        return "no better than the defaults: the test seeds do not show a difference"

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.sentence,
            "winner": self.winner.number,
            "values": self.winner.values,
            "metric": self.metric,
            "looks": self.looks,
            "winner_scores": self.winner_scores.to_dict(),
            "defaults_scores": self.defaults_scores.to_dict(),
            "improvement": None if self.improvement is None else vars(self.improvement),
        }


def judged(
    folder: TuningFolder,
    launcher: Launcher[Any],
    say: Callable[[str], None],
    ended: Sequence[EndedTrial],
) -> Verdict:
    """Train the winner and the defaults on the test seeds, and compare them."""
    winner = best_of(ended)
    if winner is None:
        raise RLTrainingError(
            f"no trial of '{folder.folder}' was trained to its end; the first failed "
            f"because: {ended[0].why if ended else 'there is none'}; correct that, or raise "
            "--trials"
        )
    plan, is_default = folder.plan, winner.number == 0
    scores = _test_scores(folder, launcher, say, winner)
    defaults = scores["defaults"]
    winners = defaults if is_default else scores["winner"]
    improvement = None
    if not is_default:
        improvement = probability_of_improvement(
            [plan.sign * score for score in winners], [plan.sign * score for score in defaults]
        )
    return Verdict(
        winner,
        plan.metric,
        Summary.of(winners),
        Summary.of(defaults),
        improvement,
        _looks(folder, ended),
    )


def _test_scores(
    folder: TuningFolder, launcher: Launcher[Any], say: Callable[[str], None], winner: EndedTrial
) -> dict[str, list[float]]:
    """Of the test seeds; the winner has none of its own where it is the defaults."""
    plan, is_default = folder.plan, winner.number == 0
    base = on_other_episodes(plan.config) if plan.metric.startswith("offline/") else plan.config
    configs = with_seeds("defaults", base, plan.test_seeds)
    if not is_default:
        configs += with_seeds("winner", configured(base, winner.values), plan.test_seeds)
    study = Study(folder.folder / f"test-{winner.number:04d}", configs)
    outcome = StudyRunner(study, launcher, say).run()
    if outcome.failed:
        name, why = next(iter(outcome.failed.items()))
        raise RLTrainingError(
            f"the test run '{name}' failed: {why.removeprefix('error: ')}; the same command "
            "tries it again"
        )
    scores: dict[str, list[float]] = {"defaults": [], "winner": []}
    for trial in study.trials:
        for seed in seeds_of(trial):
            if (score := seed.score(plan.metric)) is not None:
                scores[trial.name.partition("-")[0]].append(score)
    if not scores["defaults"] or not (is_default or scores["winner"]):
        raise RLTrainingError(f"'{study.folder}' has no {plan.metric}; see its logs")
    return scores


def _looks(folder: TuningFolder, ended: Sequence[EndedTrial]) -> int:
    """Evaluations of all trials by the metric, an evaluation that was repeated once."""
    looks = 0
    for one in ended:
        for run in (folder.folder / "runs").glob(f"trial-{one.number:04d}-*"):
            for seed in read_run(run).seeds:
                looks += len(set(seed.curve(folder.plan.metric).ticks))
    return looks


def on_other_episodes(config: TrainConfig) -> TrainConfig:
    """The config with another choice of held-out episodes than that of the trials."""
    key = "dataset.split.seed"
    return configured(config, {key: value_of(config, key) + 1})


def best_of(ended: Sequence[EndedTrial]) -> EndedTrial | None:
    """The trial with the highest objective; of equal ones the first."""
    finished = [one for one in ended if one.objective is not None]
    return max(finished, key=lambda one: (one.objective, -one.number), default=None)


def seeds_of(run: Trial) -> Sequence[SeedRun]:
    """Of a run; none where it has not begun."""
    try:
        return read_run(run.run_dir).seeds
    except RLTrainingError:
        return ()
