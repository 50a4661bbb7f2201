"""Several agents of one algorithm and config, apart from their seeds, trained at once.

Each agent is a run of its own, with a folder, checkpoints, a curve and a result; only their
updates and their evaluations are shared. An agent that diverges or stops early leaves the
others alone.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from rl_training.algorithms.base import Algorithm
from rl_training.envs.global_random import untouched_randomness
from rl_training.experiment.checkpoint import CheckpointInfo, verify
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.console import Console
from rl_training.experiment.errors import (
    CheckpointError,
    EnvironmentFailure,
    RLTrainingError,
    TrainingDivergedError,
)
from rl_training.experiment.sinks import MetricsLog
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    RESULT_FILE,
    hardware,
    versions,
    write_json,
)
from rl_training.models import Carry
from rl_training.runtime.agents import AgentStack
from rl_training.runtime.callbacks import TrainResult
from rl_training.runtime.evaluation import SELECTION_STATES, ActFunction, EvalResult, Evaluator
from rl_training.runtime.loops.offline import OfflineLoop
from rl_training.runtime.policy import env_actions
from rl_training.runtime.profile import Part, Profile
from rl_training.runtime.signals import StepInterrupted, end_by, interruptible
from rl_training.runtime.statistics import Summary
from rl_training.runtime.trainer import STRIDE_SECONDS, Autosave, Trainer, measured, short_name


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
        """The last evaluations, by their mean returns."""
        return self._summary(lambda result: result.return_mean)

    @property
    def best(self) -> Summary | None:
        """The best evaluation of each seed."""
        return self._summary(lambda result: result.best_score)

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
    """Where the run of one seed lies in the folder of all."""
    return run_dir / f"seed-{seed}"


class SeedsTrainer:
    """Runs the trainers of all seeds in step."""

    def __init__(
        self,
        config: TrainConfig,
        agents: Sequence[Algorithm],
        loops: Sequence[OfflineLoop],
        run_dir: Path,
        console: Console,
    ) -> None:
        self.config, self.run_dir, self.console = config, run_dir, console
        self.seeds = config.seeds or ()
        self.engine = loops[0].engine
        stack = self.engine.learner
        assert isinstance(stack, AgentStack)
        self.evaluations = (
            SharedEvaluations(config, stack, self._evaluated_seeds) if config.env_id else None
        )
        self.trainers = {
            seed: Trainer(
                seed_config(config, seed),
                agent,
                loop,
                seed_folder(run_dir, seed),
                SeedConsole(console, seed, self),
                evaluator=self.evaluations.of(i) if self.evaluations else None,
            )
            for i, (seed, agent, loop) in enumerate(zip(self.seeds, agents, loops, strict=True))
        }
        for trainer in self.trainers.values():
            trainer.resume_dir = run_dir
            trainer.autosave = None  # all are saved at the same tick, below
        self.autosave = Autosave(config.checkpoint_minutes)
        self.results: dict[int, TrainResult] = {}
        self.failures: dict[int, str] = {}
        self.signal: int | None = None
        self._scores: dict[int, float] = {}

    @property
    def active(self) -> dict[int, Trainer]:
        """Those that go on learning, by seed."""
        over = {**self.results, **self.failures}
        return {seed: trainer for seed, trainer in self.trainers.items() if seed not in over}

    def _evaluated_seeds(self) -> list[int]:
        """Positions of the agents that an evaluation is for."""
        return [i for i, seed in enumerate(self.seeds) if seed in self.active]

    @property
    def tick(self) -> int:
        return max(trainer.loop.tick for trainer in self.trainers.values())

    @property
    def started_anew(self) -> bool:
        """Whether `restore` found nothing to go on from."""
        return all(trainer.resumed_at == -1 for trainer in self.trainers.values())

    # --- running --------------------------------------------------------------------------------

    def run(self) -> SeedsResult:
        """Train all to the end; the result is also written to result.json.

        Once a run that a signal has ended is saved, the signal goes on to end the program.
        """
        self.began = time.monotonic()
        first = next(iter((self.active or self.trainers).values()))
        with untouched_randomness():
            self.log = MetricsLog(self.run_dir, self.config, first.resumed_at, self.console.say)
        self.status = "failed"
        name = f"{first.algorithm.name()}, {len(self.active)} seeds"
        for trainer in self.active.values():
            trainer.open()
        self.profile = self._profile() if self.config.profile else None
        self.console.start(name, first.loop.total, self.tick, first.loop.unit)
        opened = list(self.active.values())
        try:
            with interruptible(self._interrupt):
                self._end_finished()
                while self.active:
                    self._advance()
            if self.profile:
                for line in self.profile.lines(1.0):
                    self.console.say(line)
            if not self.results:
                raise TrainingDivergedError(next(iter(self.failures.values())))
            result = self._result()
            self._write_result("interrupted" if result.interrupted else "finished")
        except BaseException as error:
            for trainer in self.active.values():
                trainer.fail(error)
            with suppress(RLTrainingError, OSError):  # must not hide what went wrong first
                self._write_result("failed")
            raise
        finally:
            self.console.stop()
            self.log.close(self.status)
            for trainer in opened:
                trainer.close()
            if self.evaluations is not None:
                self.evaluations.close()
        if self.signal is not None:
            raise end_by(self.signal, result)
        return result

    def _advance(self) -> None:
        trainers, before = self.active, self.tick
        for trainer in trainers.values():
            trainer.follow_schedule()
        stride = min(trainer.stride() for trainer in trainers.values())
        self.engine.pause.until = time.monotonic() + STRIDE_SECONDS
        try:
            metrics, done = self.engine.run_until_due(stride)
        except StepInterrupted:  # of the compilation, before any update
            self._end_finished()
            return
        while self.engine.notes:
            self.console.say(f"warning: {self.engine.notes.pop()}")
        for trainer in self.trainers.values():
            trainer.loop.progress.updates += done
        for i, seed in enumerate(self.seeds):
            if seed in trainers:
                with self._alone(seed):
                    trainers[seed].advanced(before, {k: v[i] for k, v in metrics.items()})
        self._end_finished()
        self._report_evaluation()
        if self.autosave.due():
            began = time.monotonic()
            for seed, trainer in self.active.items():
                with self._alone(seed):
                    trainer.save()
            self.autosave.saved(time.monotonic() - began)
        self._release_checkpoints()
        self.console.advance(self.tick)

    def _end_finished(self) -> None:
        for seed, trainer in self.active.items():
            with self._alone(seed):
                if not trainer.is_running():
                    self.results[seed] = trainer.finish()
        self._report_evaluation()

    @contextmanager
    def _alone(self, seed: int) -> Iterator[None]:
        """Let what goes wrong with one agent end that one; an environment ends them all."""
        try:
            yield
        except TrainingDivergedError as error:
            self.trainers[seed].fail(error)
            self.failures[seed] = str(error)
            self.console.say(f"warning: seed {seed}: {error}; the other seeds go on")
        except EnvironmentFailure:
            for trainer in self.active.values():
                with suppress(CheckpointError):
                    trainer.save()
            raise

    def _interrupt(self, number: int) -> None:
        self.signal, name = number, signal.Signals(number).name
        for trainer in self.active.values():
            trainer.signal, trainer.stop_reason = number, f"interrupted by {name}"
        self.console.say(f"{name}: saving, then ending (once more to end at once)")
        self.engine.pause.request()

    def _profile(self) -> Profile:
        profile = Profile(self.engine.learner.device)
        profile.watch([Part(self.engine, "run_until_due", "update")])
        if self.evaluations is not None:
            profile.watch([Part(self.evaluations, "run", "evaluation")])
        for trainer in self.trainers.values():
            profile.watch([Part(trainer.store, "save", "checkpoints")])
            if trainer in self.active.values():
                profile.watch([Part(trainer.log, "write", "logging")])
        return profile

    # --- what is said and written ---------------------------------------------------------------

    def evaluated(self, seed: int, score: float) -> None:
        """Take in the evaluation of one agent."""
        self._scores[seed] = score

    def _report_evaluation(self) -> None:
        if not self._scores:
            return
        summary = Summary.of(list(self._scores.values()))
        means = self._mean_metrics(list(self._scores))
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
        shown = short_name(next(iter(self.trainers.values())).best_metric(means))
        self.console.evaluated(self.tick, summary.mean.value, text, best=False, name=shown)
        values["seeds"] = {str(seed): score for seed, score in self._scores.items()}
        self.log.write("eval", self.tick, values)
        self._scores = {}

    def _mean_metrics(self, seeds: Sequence[int]) -> dict[str, float]:
        """Every metric of the last evaluation, over some agents."""
        found = [self.trainers[seed].last_metrics for seed in seeds]
        names = found[0] if found else {}
        return {name: float(np.mean([one[name] for one in found if one])) for name in names}

    def _result(self) -> SeedsResult:
        reasons = {result.stop_reason for result in self.results.values()}
        return SeedsResult(
            self.run_dir,
            dict(self.results),
            dict(self.failures),
            self.signal,
            "; ".join(sorted(reasons)),
            time.monotonic() - self.began,
        )

    def _write_result(self, status: str) -> None:
        self.status, result = status, self._result()
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
                "updates": self.tick,
                "seeds": list(self.seeds),
                "last_eval": self._mean_metrics(list(result.results)) or None,
                **{name: one.to_dict() if one else None for name, one in summaries.items()},
                "failures": {str(seed): text for seed, text in result.failures.items()},
                "data_notes": list(next(iter(self.trainers.values())).loop.data_notes),
                "wall_seconds": round(result.wall_seconds, 3),
                "profile": self.profile.to_dict() if self.profile else None,
                "config_hash": self.config.hash(),
                "versions": versions(),
                "hardware": hardware(),
            },
        )

    # --- state ----------------------------------------------------------------------------------

    def _release_checkpoints(self) -> None:
        """Keep the newest tick at which every agent was saved, until there is a newer one."""
        common = self.common_tick()
        for trainer in self.trainers.values():
            trainer.store.pinned = common

    def common_tick(self) -> int | None:
        """The newest tick so far of which every learning agent has a checkpoint.

        Later ones may be there of a run that was resumed from before a damaged one.
        """
        common = _in_common([t.store.all() for t in self.active.values()])
        return max((tick for tick in common if tick <= self.tick), default=None)

    def _newest_whole_tick(self) -> int | None:
        """The newest tick at which the files of every learning agent are whole; None where the
        run has saved nothing yet. Refused where an agent has lost what the others have."""
        trainers = list(self.active.values())
        saved = [trainer.store.all() for trainer in trainers]
        common = _in_common(saved)
        for tick in sorted(common, reverse=True):
            try:
                for info in (info for infos in saved for info in infos if info.tick == tick):
                    verify(info)
                return tick
            except CheckpointError as error:
                self.console.say(f"warning: {error}")
        damaged = any(trainer.store.unreadable() for trainer in trainers)
        if not damaged and not any(saved):
            return None
        # A run that was killed while it saved for the first time has one checkpoint of some.
        missing = any(not trainer.run_dir.is_dir() for trainer in trainers)
        if damaged or missing or common or any(len(infos) > 1 for infos in saved):
            raise self._unusable("there is no tick at which the checkpoints of all seeds are whole")
        return None

    def _unusable(self, why: str) -> CheckpointError:
        return CheckpointError(
            f"run '{self.run_dir}': {why}; put back the missing files, or remove every folder "
            f"seed-*/{CHECKPOINT_FOLDER} in it to start the run again"
        )

    def restore(self) -> None:
        """Go on from the newest tick that all agents have in common; from the start without.

        Agents that diverged or stopped early have ended for good.
        """
        for seed, trainer in self.trainers.items():
            status, reason = _ending(trainer.run_dir)
            if status == "failed" and reason.startswith(TrainingDivergedError.__name__):
                self.failures[seed] = reason.partition(": ")[2]
            elif status == "finished" and reason.startswith("early stopping"):
                trainer.restore()
                if trainer.resumed_at == -1:
                    raise self._unusable(f"no checkpoint of seed {seed}, which is done, is whole")
                trainer.stop_reason = reason
                self.results[seed] = trainer.result()
        tick = self._newest_whole_tick()
        for trainer in self.active.values():
            if tick is None:
                trainer.resumed_at = -1
            else:
                trainer.restore(tick)
        if tick is None and self.active:
            self.console.say("no usable checkpoint in this run: starting from the beginning")
        elif tick is not None:  # those that ended before keep the common clock
            for trainer in self.trainers.values():
                trainer.loop.progress.updates = tick
        self._release_checkpoints()


def _in_common(saved: Sequence[Sequence[CheckpointInfo]]) -> set[int]:
    """The ticks of which every agent has a checkpoint."""
    ticks = [{info.tick for info in infos} for infos in saved]
    return set.intersection(*ticks) if ticks else set()


def seed_config(config: TrainConfig, seed: int) -> TrainConfig:
    """The config of one of the runs; a profile is made of all together."""
    return config.replace(seeds=None, seed=seed, profile=False)


def _ending(run_dir: Path) -> tuple[str, str]:
    """How a run ended, and why; two empty words where it has not."""
    try:
        result = json.loads((run_dir / RESULT_FILE).read_text(encoding="utf-8"))
        return str(result["status"]), str(result["stop_reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


class SharedEvaluations:
    """Evaluates all agents when the first of them asks, and the others find their results."""

    def __init__(
        self, config: TrainConfig, stack: AgentStack, wanted: Callable[[], list[int]]
    ) -> None:
        self.stack, self.wanted = stack, wanted
        self.evaluator = Evaluator(
            config.environment,
            config.env_kwargs,
            stack.template.spaces,
            [SELECTION_STATES] * len(stack.agents),
            config.eval_max_steps,
        )
        self._found: dict[int, EvalResult] = {}
        self._tick = -1

    def of(self, agent: int) -> _OneOfMany:
        return _OneOfMany(self, agent)

    def result(self, agent: int, episodes: int) -> EvalResult:
        now = int(self.stack.agents[0].update_count)
        if now != self._tick or agent not in self._found:
            self._found, self._tick = self.run(episodes), now
        return self._found.pop(agent)

    def run(self, episodes: int) -> dict[int, EvalResult]:
        return self.evaluator.run_all(self._act, episodes, self.wanted())

    def _act(
        self, obs: np.ndarray[Any, Any], owners: Sequence[int], carry: Carry | None
    ) -> tuple[np.ndarray[Any, Any], Carry]:
        """Rows of any number per agent, evaluated as a full (agents, rows) grid."""
        spaces = self.stack.template.spaces
        owner = np.asarray(owners)
        place = np.array([np.count_nonzero(owner[:i] == who) for i, who in enumerate(owner)])
        shape = (len(self.stack.agents), int(place.max()) + 1, *obs.shape[1:])
        grid = np.zeros(shape, spaces.obs_dtype)
        grid[owner, place] = obs

        def on_grid(kept: Tensor) -> Tensor:
            whole = kept.new_zeros(*shape[:2], *kept.shape[1:])
            whole[owner, place] = kept
            return whole

        spread = None if carry is None else tree_map(on_grid, carry)
        acted = self.stack.act(torch.as_tensor(grid, device=self.stack.device), spread)
        actions = acted.action.cpu().numpy()[owner, place]
        kept = tree_map(lambda whole: whole[owner, place], acted.carry)
        return env_actions(self.stack.agents[0], actions), kept

    def close(self) -> None:
        self.evaluator.close()


class _OneOfMany:
    """The evaluator of one agent, for its trainer."""

    def __init__(self, shared: SharedEvaluations, agent: int) -> None:
        self.shared, self.agent = shared, agent

    def run(self, act: ActFunction, episodes: int) -> EvalResult:
        return self.shared.result(self.agent, episodes)

    def start_from(self, seed: int) -> None:
        self.shared.evaluator.start_from(seed, self.agent)

    def close(self) -> None:
        pass


class SeedConsole:
    """Passes on what one of the trainers says, under its seed."""

    def __init__(self, console: Console, seed: int, group: SeedsTrainer) -> None:
        self.console, self.seed, self.group = console, seed, group

    def start(self, title: str, total: int, done: int, unit: str) -> None:
        pass

    def advance(self, done: int, episodes: str = "") -> None:
        pass

    def busy(self, text: str) -> None:
        pass

    def evaluated(
        self, tick: int, score: float, text: str, best: bool, name: str = "return"
    ) -> None:
        self.group.evaluated(self.seed, score)

    def say(self, text: str) -> None:
        self.console.say(f"seed {self.seed}: {text}")

    def stop(self) -> None:
        pass
