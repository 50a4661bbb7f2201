"""Tunes a config: trials of several seeds, pruned with care."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rl_training.experiment.config import EVAL_METRICS, TrainConfig
from rl_training.experiment.errors import ConfigError, RLTrainingError
from rl_training.reports.runs import SeedRun
from rl_training.runtime.statistics import Interval, Summary
from rl_training.search.grid import with_seeds
from rl_training.search.launch import PAUSED, POLL_SECONDS, Ended, Launcher, Restarts
from rl_training.search.space import configured
from rl_training.search.study import Trial
from rl_training.search.tuning import Claim, EndedTrial, TuningFolder
from rl_training.search.verdict import FEWEST_SEEDS, best_of, seeds_of

RUNGS = (1 / 3, 2 / 3)
"""Shares of the budget after which a trial may be pruned; none is below 30 %."""
FEWEST_FINISHED = 5
"""Finished trials that one is compared with before it may be pruned by its rank among them."""
FEWEST_GAINS = 3
"""Finished trials whose seeds show what can be gained from a rung on."""
LOOK_SECONDS = 1.0
"""Between two looks at the files of a run, and at the trials of other processes."""


def chosen_metric(config: TrainConfig, asked: str | None) -> str:
    """The metric of the objective; without an environment one must be named."""
    metric = asked or config.best_metric
    if metric is None and config.early_stopping is not None:
        metric = config.early_stopping.metric
    if metric is None:
        if config.env_id is None:
            offline = ", ".join(name for name in EVAL_METRICS if name.startswith("offline/"))
            raise ConfigError(
                "--metric: without an environment there are no returns to tune for; name a metric "
                f"of held-out episodes: {offline}"
            )
        metric = "eval/return_mean"
    return metric


def evaluated(config: TrainConfig, metric: str, prune: bool) -> TrainConfig:
    """The config of the trials: it reports the metric, at the end and where trials are pruned.

    Further evaluations decide nothing and cost time, unless the config stops early by them. So do
    events of TensorBoard, which takes a second to start.
    """
    config = config.replace(best_metric=metric, final_eval=True, tensorboard=False)
    budget = config.total_timesteps or config.total_updates
    if prune and budget and (config.early_stopping is None or not rungs_of(config)):
        config = config.replace(eval_interval=math.ceil(budget / 3))
    return config


def rungs_of(config: TrainConfig) -> tuple[int, ...]:
    """Ticks of evaluations at which a trial may be pruned."""
    budget, interval = config.total_timesteps or config.total_updates, config.eval_interval
    if not budget or not interval:
        return ()
    ticks = {math.ceil(share * budget / interval) * interval for share in RUNGS}
    return tuple(sorted(tick for tick in ticks if tick < budget))


@dataclass
class Work:
    """A trial in the hands of this process."""

    claim: Claim
    runs: list[Trial]
    rung: int = 0
    """How many rungs it has passed."""
    over: str = ""
    """Why it ends early: pruned or failed, once that is so."""
    why: str = ""
    looked: float = -math.inf
    waiting: bool = True
    """Whether it needs another look before this process has places for other trials."""


@dataclass
class Tuner:
    """Works on the trials of a tuning, together with other processes that have its folder open."""

    folder: TuningFolder
    launcher: Launcher[Any]
    trials: int
    say: Callable[[str], None]
    _work: list[Work] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _own: int = 0
    _restarts: Restarts = field(default_factory=Restarts)

    @property
    def worse_end(self) -> str:
        """The end of an interval that is the objective."""
        return "upper end" if self.folder.plan.sign < 0 else "lower end"

    def run(self) -> list[EndedTrial]:
        """Work until all trials have ended, here and elsewhere."""
        looked = -math.inf
        with self.launcher as processes:
            try:
                while True:
                    for end in processes.ended():
                        self._process_ended(end)
                    for work in list(self._work):
                        self._go_on(work, processes)
                    if time.monotonic() - looked > LOOK_SECONDS or not self._work:
                        looked = time.monotonic()
                        self._claim_more(processes)
                        if not self._work and not self.folder.others_at_work():
                            return self.folder.ended()
                    time.sleep(POLL_SECONDS)
            finally:
                processes.stop()  # before others may take the trials
                for work in self._work:
                    work.claim.lock.close()

    def _claim_more(self, processes: Launcher[Any]) -> None:
        """Take further trials while there are places that no run of this process waits for."""
        while processes.free and not any(work.waiting for work in self._work):
            claim = self.folder.claim(self.trials)
            if claim is None:
                return
            self._begin(claim)
            if self._work:
                self._go_on(self._work[-1], processes)

    def _begin(self, claim: Claim) -> None:
        plan = self.folder.plan
        name = f"trial-{claim.number:04d}"
        if claim.begun:
            self.say(f"trial {claim.number}: taken over from a process that ended")
        try:
            configs = with_seeds(name, configured(plan.config, claim.values), plan.seeds)
        except ConfigError as error:
            self._tell(Work(claim, []), "failed", None, [], str(error))
            return
        runs = [self.folder.trial(run) for run, _ in configs]
        for run, (_, config) in zip(runs, configs, strict=True):
            self.folder.write_config(run, config)
        self._work.append(Work(claim, runs))

    def _go_on(self, work: Work, processes: Launcher[Any]) -> None:
        """Decide what can be decided about a trial, and start or pause its runs accordingly."""
        running = processes.running & {run.name for run in work.runs}
        if not work.over and time.monotonic() - work.looked < LOOK_SECONDS:
            return
        work.looked, work.waiting = time.monotonic(), True
        if work.over:
            processes.pause(running)
            if not running:
                self._tell(work, work.over, None, self._last_scores(work), work.why)
            return
        behind = [run for run in work.runs if not self._reached(work, run)]
        if not behind:
            if work.rung < len(self._rungs) or not running:  # else its processes are ending
                self._decide(work)
            return
        for run in behind:
            # a run of a process that died may still be saving
            if run.name not in running and processes.free and run.status != "running":
                processes.start(run)
        work.waiting = any(run.name not in processes.running for run in behind)
        if work.waiting and self._may_prune(work):
            # they need the places of seeds that have passed this rung
            processes.pause(running - {run.name for run in behind})

    def _decide(self, work: Work) -> None:
        """All seeds have reached the rung, or the end."""
        scores = self._scores(work)
        rungs = self._rungs
        if scores is None:
            work.over, work.why = "failed", "a seed diverged or has no score"
        elif work.rung == len(rungs):
            low = Summary.of([self.folder.plan.sign * score for score in scores]).iqm.low
            self._tell(work, "finished", low, scores)
        else:
            seeds = [self.folder.plan.sign * score for score in scores]
            here = Summary.of(seeds).iqm
            self.folder.report(work.claim, rungs[work.rung], here, seeds)
            if why := self.reason_to_prune(here, rungs[work.rung]):
                work.over = "pruned"
                work.why = f"after {rungs[work.rung]:,}: {why}"
            else:
                work.rung += 1
                work.looked = -math.inf

    def reason_to_prune(self, here: Interval, rung: int) -> str:
        """Why a trial is pruned.

        Even the upper end of its interval lacks more to the best objective than any seed of the
        finished trials gained from here to its end, or is below their median, or at the last rung
        below the whole interval of one of them.
        """
        others = self._others_at(rung)
        best = best_of(others)
        if len(others) >= FEWEST_GAINS and best is not None and best.objective is not None:
            most = max(self._most_gained(other, rung) for other in others)
            if here.high + most < best.objective:
                return "no seed of another trial has gained as much as it lacks"
        if len(others) < FEWEST_FINISHED:
            return ""
        if here.high < median(other.rungs[rung] for other in others):
            return "its seeds are below the median trial"
        if rung == self._rungs[-1] and here.high < max(other.lows[rung] for other in others):
            return "another trial was better by more than the noise"
        return ""

    def _most_gained(self, other: EndedTrial, rung: int) -> float:
        """By a seed from a rung to its end; infinite where that is not known."""
        then = other.seeds[rung]
        if not then or len(then) != len(other.scores):
            return math.inf
        sign = self.folder.plan.sign
        return max(0.0, *(sign * now - at for now, at in zip(other.scores, then, strict=True)))

    def _may_prune(self, work: Work) -> bool:
        """Whether there are enough trials to compare with at the next rung."""
        rungs = self._rungs
        left = work.rung < len(rungs)
        return left and len(self._others_at(rungs[work.rung])) >= FEWEST_GAINS

    def _others_at(self, rung: int) -> list[EndedTrial]:
        ended = self.folder.ended()
        return [one for one in ended if one.state == "finished" and rung in one.rungs]

    @property
    def _rungs(self) -> tuple[int, ...]:
        plan = self.folder.plan
        return rungs_of(plan.config) if plan.prune and len(plan.seeds) >= FEWEST_SEEDS else ()

    def _reached(self, work: Work, run: Trial) -> bool:
        if work.rung < len(self._rungs):
            seeds = seeds_of(run)
            at = self._rungs[work.rung]
            if seeds and all(_score_at(seed, self.folder.plan.metric, at) for seed in seeds):
                return True
        return run.status == "finished"

    def _scores(self, work: Work) -> list[float] | None:
        """Of all seeds at the rung or the end; None if one has none."""
        metric, found = self.folder.plan.metric, []
        for run in work.runs:
            for seed in seeds_of(run):
                at = self._rungs[work.rung] if work.rung < len(self._rungs) else None
                score = _score_at(seed, metric, at) or _score_at(seed, metric, None)
                if score is None or _diverged(seed):
                    return None
                found.append(score[0])
        return found if len(found) == len(self.folder.plan.seeds) else None

    def _last_scores(self, work: Work) -> list[float]:
        known = [
            _score_at(s, self.folder.plan.metric, None) for r in work.runs for s in seeds_of(r)
        ]
        return [score[0] for score in known if score is not None]

    def _process_ended(self, end: Ended) -> None:
        work = next(work for work in self._work if end.job in work.runs)
        trial = self.folder.trial(end.job.name)
        work.looked = -math.inf
        if end.code in (0, PAUSED) or work.over:
            return
        in_use = trial.status == "running"  # by a process that has not ended yet
        if (end.code < 0 or in_use) and self._restarts.allowed(trial):
            if end.message:  # a lost node; it goes on from its last checkpoint elsewhere
                self.say(f"{trial.name} was stopped ({end.why}); it goes on from what it saved")
            return
        refused = trial.status == "waiting" and work.claim.number > 0
        if refused or any(_diverged(seed) for seed in seeds_of(trial)):
            work.over, work.why = "failed", end.why
            return
        raise RLTrainingError(
            f"trial {work.claim.number} cannot go on: {end.why.removeprefix('error: ')} (log: "
            f"{trial.log_file}); correct that, and the same command goes on with the study"
        )

    def _tell(
        self, work: Work, state: str, objective: float | None, scores: list[float], why: str = ""
    ) -> None:
        self.folder.tell(work.claim, state, objective, scores, why)
        if work in self._work:
            self._work.remove(work)
        ended = self.folder.ended()
        self._own += 1
        best = best_of(ended)
        score = (
            why
            if objective is None
            else f"{self.worse_end} {self.folder.plan.sign * objective:,.5g}"
        )
        left = self.trials - len(ended)
        rate = (time.monotonic() - self._began) / self._own
        self.say(
            f"{len(ended)}/{self.trials} trial {work.claim.number} {state}: {score}"
            + (f"; best is trial {best.number}" if best else "")
            + (f"; about {rate * left:,.0f} s left" if left > 0 else "")
        )


def _score_at(seed: SeedRun, metric: str, tick: int | None) -> tuple[float] | None:
    """The first value from a tick on, or the last one.

    Of evaluations during training: held-out start states are left to the test.
    """
    curve = seed.curve(metric)
    pairs = [p for p in zip(curve.ticks, curve.values, strict=True) if p[0] >= (tick or 0)]
    if not pairs:
        return None
    return (pairs[-1][1],) if tick is None else (pairs[0][1],)


def _diverged(seed: SeedRun) -> bool:
    return str(seed.result.get("stop_reason", "")).startswith("TrainingDivergedError")
