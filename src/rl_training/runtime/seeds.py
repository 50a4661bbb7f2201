"""Trains several agents at once that differ only in their seeds.

Each agent is a run of its own, with a folder, checkpoints, a curve and a result; only their
updates and their evaluations are shared. An agent that diverges or stops early leaves the
others alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.envs.global_random import untouched_randomness
from rl_training.experiment.checkpoint import CheckpointInfo, verify
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.console import Console
from rl_training.experiment.errors import CheckpointError, TrainingDivergedError
from rl_training.experiment.sinks import MetricsLog
from rl_training.experiment.storage import publish
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    RESULT_FILE,
    hardware,
    versions,
    write_json,
)
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.callbacks import Callback, TrainResult
from rl_training.runtime.loops import SeedsClock
from rl_training.runtime.record import Record
from rl_training.runtime.saving import Autosave
from rl_training.runtime.selection import measured, short_name
from rl_training.runtime.shared_evaluation import SharedEvaluations
from rl_training.runtime.statistics import Summary
from rl_training.runtime.trainer import STARTING_OVER, Trainer


@dataclass(frozen=True)
class SeedsResult:
    """How a run of several seeds ended."""

    run_dir: Path
    results: dict[int, TrainResult]
    """By seed; those that failed are not in it."""
    failures: dict[int, str]
    """Why an agent failed, by seed."""
    signal: int | None
    """Number of the signal that ended it; None for any other end."""
    stop_reason: str
    wall_seconds: float

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run."""
        return self.signal is not None

    @property
    def last(self) -> Summary | None:
        """Mean returns of the last evaluations."""
        return self._summary(lambda result: result.return_mean)

    @property
    def best(self) -> Summary | None:
        """The best evaluation of each seed."""
        return self._summary(lambda result: result.best_value)

    @property
    def held_out(self) -> Summary | None:
        """The last policies from start states that no evaluation during training used."""
        return self._summary(lambda r: r.held_out.return_mean if r.held_out else None)

    @property
    def best_held_out(self) -> Summary | None:
        """The policies of the best checkpoints from the same states."""
        return self._summary(lambda r: r.best_held_out.return_mean if r.best_held_out else None)

    def _summary(self, score: Callable[[TrainResult], float | None]) -> Summary | None:
        scores = [value for r in self.results.values() if (value := score(r)) is not None]
        return Summary.of(scores) if scores else None


def seed_folder(run_dir: Path, seed: int) -> Path:
    """The folder of one seed inside the folder of all."""
    return run_dir / f"seed-{seed}"


def seeds_trainer(
    config: TrainConfig,
    agents: Sequence[Algorithm],
    clock: SeedsClock,
    run_dir: Path,
    console: Console,
    callbacks: Sequence[Callback] = (),
) -> Trainer[SeedsResult]:
    """The trainer of a run of several seeds; `callbacks` hear of the first one."""
    form = SeedsForm(config, run_dir, console)
    stack = clock.engine.learner
    assert isinstance(stack, VmapLearner)
    evaluations = None
    if config.env_id is not None:
        evaluations = SharedEvaluations(config, stack, lambda: list(trainer.active))
        form.evaluations = evaluations
    records = [
        Record(
            seed_config(config, seed),
            agent,
            loop,
            seed_folder(run_dir, seed),
            SeedConsole(console, seed, form),
            callbacks if i == 0 else (),
            evaluator=None if evaluations is None else evaluations.of(i),
            resume_dir=run_dir,
        )
        for i, (seed, agent, loop) in enumerate(zip(form.seeds, agents, clock.loops, strict=True))
    ]
    trainer = Trainer(config, clock, records, console, form, Autosave(config.checkpoint_minutes))
    return trainer


class SeedsForm:
    """A run of several seeds: one folder around those of the seeds, with a summary of all."""

    def __init__(self, config: TrainConfig, run_dir: Path, console: Console) -> None:
        self.config, self.run_dir, self.console = config, run_dir, console
        self.seeds = config.seeds or ()
        self.status = "failed"
        self.evaluations: SharedEvaluations | None = None
        self._scores: dict[int, float] = {}

    def title(self, active: Sequence[Record]) -> str:
        name = active[0].algorithm.name() if active else self.config.algo
        return f"{name}, {len(active)} seeds"

    def open(self, resumed_at: int | None) -> None:
        with untouched_randomness():
            self.log = MetricsLog(self.run_dir, self.config, resumed_at, self.console.say)

    def close(self) -> None:
        self.log.close(self.status)
        if self.evaluations is not None:
            self.evaluations.close()

    def diverged(self, position: int, error: TrainingDivergedError) -> None:
        seed = self.seeds[position]
        self.console.say(f"warning: seed {seed}: {error}; the other seeds go on")

    # --- what is said and written ---------------------------------------------------------------

    def evaluated(self, seed: int, score: float) -> None:
        """Record the evaluation of one agent."""
        self._scores[seed] = score

    def stepped(self, trainer: Trainer[SeedsResult]) -> None:
        """Report the evaluations since the last call, and delete superfluous checkpoints."""
        if self._scores:
            self._report_evaluation(trainer)
        self._keep_in_common(trainer)

    def _report_evaluation(self, trainer: Trainer[SeedsResult]) -> None:
        summary = Summary.of(list(self._scores.values()))
        records = [
            r for r, seed in zip(trainer.records, self.seeds, strict=True) if seed in self._scores
        ]
        means = _mean_metrics([record.selection.last_metrics for record in records])
        values: dict[str, Any] = {
            name: value for name, value in means.items() if name.startswith("offline/")
        }
        text = measured(values)
        if "eval/return_mean" in means:
            text = f"return {summary}"
            values |= {
                "eval/return_mean": summary.mean.value,
                "eval/return_mean_low": summary.mean.low,
                "eval/return_mean_high": summary.mean.high,
                "eval/return_iqm": summary.iqm.value,
                "eval/return_iqm_low": summary.iqm.low,
                "eval/return_iqm_high": summary.iqm.high,
            }
        shown = short_name(trainer.records[0].selection.best_metric(means))
        self.console.evaluated(trainer.tick, summary.mean.value, text, best=False, name=shown)
        values["seeds"] = {str(seed): score for seed, score in self._scores.items()}
        self.log.write("eval", trainer.tick, values)
        self._scores = {}

    def result(self, trainer: Trainer[SeedsResult]) -> SeedsResult:
        if not trainer.results:
            raise TrainingDivergedError(next(iter(trainer.failures.values())))
        return self._result(trainer)

    def _result(self, trainer: Trainer[SeedsResult]) -> SeedsResult:
        reasons = {result.stop_reason for result in trainer.results.values()}
        return SeedsResult(
            self.run_dir,
            {self.seeds[i]: result for i, result in sorted(trainer.results.items())},
            {self.seeds[i]: text for i, text in sorted(trainer.failures.items())},
            trainer.signal,
            "; ".join(sorted(reasons)),
            time.monotonic() - trainer.began,
        )

    def write_result(self, status: str, trainer: Trainer[SeedsResult]) -> None:
        self.status, result = status, self._result(trainer)
        summaries = {
            "last": result.last,
            "best": result.best,
            "held_out": result.held_out,
            "best_held_out": result.best_held_out,
        }
        write_json(
            self.run_dir / RESULT_FILE,
            {
                "status": status,
                "stop_reason": result.stop_reason,
                **trainer.records[0].loop.progress.to_dict(),
                "seeds": list(self.seeds),
                "last_eval": _mean_metrics([one.metrics for one in result.results.values()])
                or None,
                **{name: one.to_dict() if one else None for name, one in summaries.items()},
                "failures": {str(seed): text for seed, text in result.failures.items()},
                "data_notes": list(trainer.records[0].loop.data_notes),
                "warnings": list(self.console.warnings),
                "wall_seconds": round(result.wall_seconds, 3),
                "profile": trainer.profile.to_dict() if trainer.profile else None,
                "config_hash": self.config.hash(),
                "versions": versions(),
                "hardware": hardware(),
            },
        )
        publish(self.run_dir)

    # --- state ----------------------------------------------------------------------------------

    def _keep_in_common(self, trainer: Trainer[SeedsResult]) -> None:
        """Keep the newest tick so far at which every agent was saved, until there is a newer one.

        Later ones may be there of a run that was resumed from before a damaged one.
        """
        common = _in_common([record.store.all() for record in trainer.active.values()])
        pinned = max((tick for tick in common if tick <= trainer.tick), default=None)
        for record in trainer.records:
            record.store.pinned = pinned

    def _newest_whole_tick(self, records: Sequence[Record]) -> int | None:
        """The newest tick at which the files of every learning agent are whole; None where the
        run has saved nothing yet. Refused where an agent has lost what the others have."""
        saved = [record.store.all() for record in records]
        common = _in_common(saved)
        for tick in sorted(common, reverse=True):
            try:
                for info in (info for infos in saved for info in infos if info.tick == tick):
                    verify(info)
                return tick
            except CheckpointError as error:
                self.console.say(f"warning: {error}")
        damaged = any(record.store.unreadable() for record in records)
        if not damaged and not any(saved):
            return None
        # A run that was killed while it saved for the first time has one checkpoint of some.
        missing = any(not record.run_dir.is_dir() for record in records)
        if damaged or missing or common or any(len(infos) > 1 for infos in saved):
            raise self._unusable("there is no tick at which the checkpoints of all seeds are whole")
        return None

    def _unusable(self, why: str) -> CheckpointError:
        return CheckpointError(
            f"run '{self.run_dir}': {why}; put back the missing files, or remove every folder "
            f"seed-*/{CHECKPOINT_FOLDER} in it to start the run again"
        )

    def restore(self, trainer: Trainer[SeedsResult]) -> None:
        """Continue from the newest tick that all agents have in common, or from the start.

        Agents that diverged or stopped early have ended for good.
        """
        for i, record in enumerate(trainer.records):
            status, reason = _ending(record.run_dir)
            if status == "failed" and reason.startswith(TrainingDivergedError.__name__):
                trainer.failures[i] = reason.partition(": ")[2]
            elif status == "finished" and reason.startswith("early stopping"):
                record.restore()
                if record.resumed_at == -1:
                    seed = self.seeds[i]
                    raise self._unusable(f"no checkpoint of seed {seed}, which is done, is whole")
                record.stop_reason = reason
                if self.config.final_eval:
                    record.evaluate_held_out()
                trainer.results[i] = record.result()
        active = list(trainer.active.values())
        tick = self._newest_whole_tick(active)
        for record in active:
            if tick is None:
                record.resumed_at = -1
            else:
                record.restore(tick)
        if tick is None and active:
            self.console.say(STARTING_OVER)
        elif tick is not None:  # those that ended before keep the common clock
            for record in trainer.records:
                record.loop.progress.load(active[0].loop.progress.to_dict())
                record.algorithm.count_as(active[0].algorithm)
        self._keep_in_common(trainer)


def _mean_metrics(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Every metric of the last evaluation, averaged over some agents."""
    names = found[0] if found else {}
    return {name: float(np.mean([one[name] for one in found if one])) for name in names}


def _in_common(saved: Sequence[Sequence[CheckpointInfo]]) -> set[int]:
    """The ticks at which every agent has a checkpoint."""
    ticks = [{info.tick for info in infos} for infos in saved]
    return set.intersection(*ticks) if ticks else set()


def seed_config(config: TrainConfig, seed: int) -> TrainConfig:
    """The config of one seed's run; a profile covers all seeds."""
    return config.replace(seeds=None, seed=seed, profile=False)


def _ending(run_dir: Path) -> tuple[str, str]:
    """How a run ended, and why; two empty strings if it has not."""
    try:
        result = json.loads((run_dir / RESULT_FILE).read_text(encoding="utf-8"))
        return str(result["status"]), str(result["stop_reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


class SeedConsole(Console):
    """Passes on what one of the agents reports, with its seed."""

    def __init__(self, console: Console, seed: int, form: SeedsForm) -> None:
        super().__init__()
        self.console, self.seed, self.form = console, seed, form

    def evaluated(
        self, tick: int, score: float, text: str, best: bool, name: str = "return"
    ) -> None:
        self.form.evaluated(self.seed, score)

    def say(self, text: str) -> None:
        super().say(text)
        self.console.say(f"seed {self.seed}: {text}")
