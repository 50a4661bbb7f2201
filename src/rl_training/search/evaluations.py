"""Evaluates many checkpoints, with results that do not depend on who evaluates them.

As a module it is the job that evaluates some of them:
python -m rl_training.search.evaluations PLAN A B
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_training.api.support import find_checkpoint
from rl_training.envs.reference_scores import Reference
from rl_training.experiment.checkpoint import MANIFEST, read_manifest
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.console import ProgressConsole
from rl_training.experiment.errors import CheckpointError, ConfigError
from rl_training.experiment.files import replace_text
from rl_training.experiment.storage import refuse_url, url_of
from rl_training.experiment.tracking import CHECKPOINT_FOLDER, reraise_os_error, versions
from rl_training.export.contract import is_export
from rl_training.reports.runs import find_runs
from rl_training.runtime.evaluation import EvalResult
from rl_training.search.batch import FilesJob, files_jobs, run_as_job, run_jobs
from rl_training.search.launch import Launcher
from rl_training.search.local import LocalProcesses, Slots

LOG_FOLDER = "logs"
MODULE = "rl_training.search.evaluations"
ALL = "all"
"""Every checkpoint of a run."""


@dataclass(frozen=True)
class Candidate:
    """A policy to evaluate: a checkpoint, or an export."""

    run: str
    """The folder as it was found; of a checkpoint that of its run."""
    tick: int | None
    """None of an export."""
    path: str
    fingerprint: str
    """Of the file with the checksums of all others."""


@dataclass(frozen=True)
class EvaluationPlan:
    """What decides the results."""

    candidates: tuple[Candidate, ...]
    episodes: int
    seed: int | None
    """Of the start states; None takes those held out from training."""
    deterministic: bool
    env_id: str | None
    env_kwargs: dict[str, Any] | None
    settings: tuple[str, ...]
    """Further keyword arguments of the environment, as `key=value`."""
    trust: bool
    max_steps: int | None = None
    """After which an episode is cut; None takes the `eval_max_steps` of each policy's config."""

    def files(self, folder: Path) -> list[Path]:
        """Where the result of each candidate is kept: by everything that decides it."""
        decides = {**asdict(self), "version": versions()["rl-training"]}
        del decides["candidates"], decides["trust"]
        if self.max_steps is None:  # as before there was a choice
            del decides["max_steps"]
        keys = (_digest([decides, one.fingerprint]) for one in self.candidates)
        return [folder / f"{key}.json" for key in keys]


@dataclass(frozen=True)
class Evaluation:
    """A policy and how its episodes went."""

    run: str
    tick: int | None
    """None of an export."""
    checkpoint: Path
    result: EvalResult

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "tick": self.tick,
            "checkpoint": str(self.checkpoint),
            **self.result.metrics(),
            "eval/returns": list(self.result.returns),
        }


def candidates_of(places: Sequence[Path], which: str = "latest") -> tuple[Candidate, ...]:
    """The policies in some places: checkpoints, exports, runs, and folders with runs in them.

    Of a run the checkpoint `which` is taken, or all of them; of a run with several seeds that of
    each. Refused if a place holds none.
    """
    found: list[Candidate] = []
    for place in places:
        if is_export(place):
            if which not in ("latest", ALL):
                raise ConfigError(
                    f"--checkpoint: '{place}' is an exported policy and has no checkpoints; remove "
                    "it"
                )
            found.append(_candidate(place, place, None, "contract.json"))
        elif (place / MANIFEST).is_file() or url_of(place) is not None:
            path = find_checkpoint(place, which)
            found.append(_candidate(place, path, _tick(path), MANIFEST))
        else:
            found += [
                _candidate(seed.folder, path, _tick(path), MANIFEST)
                for run in find_runs([place])
                for seed in run.seeds
                for path in _checkpoints(seed.folder, which)
            ]
    return tuple({one.path: one for one in found}.values())


def evaluate_runs(
    runs: Sequence[str | Path],
    episodes: int = 20,
    *,
    checkpoint: str = "latest",
    seed: int | None = None,
    deterministic: bool = True,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    max_steps: int | None = None,
    folder: str | Path = "evaluations",
    workers: int | None = None,
    launcher: Launcher[Any] | None = None,
    again: bool = False,
    trust: bool = False,
    progress: bool = True,
) -> list[Evaluation]:
    """Evaluate the policies of many runs in parallel, each from the same start states.

    `runs` are run, checkpoint and export folders, and folders with runs in them. `checkpoint` is
    latest, best, a tick or all. An episode is cut after `max_steps` steps, by default the
    `eval_max_steps` of each run's config. Results are kept in `folder`: what is there is not
    evaluated again, unless `again` is true, and the same call goes on where it was stopped. They do
    not depend on the number of workers or on the launcher; by default there is one process per
    core.
    """
    plan = EvaluationPlan(
        candidates_of([Path(run) for run in runs], checkpoint),
        episodes,
        seed,
        deterministic,
        env_id,
        None if env_kwargs is None else dict(env_kwargs),
        (),
        trust,
        max_steps,
    )
    given = launcher or LocalProcesses(Slots.of(workers, 1, (), len(plan.candidates)))
    return Evaluations(Path(folder), plan, again=again).run(given, shown=progress)


class Evaluations:
    """The folder in which results are kept, and those that a plan asks of it."""

    def __init__(self, folder: Path, plan: EvaluationPlan, *, again: bool = False) -> None:
        refuse_url(folder, "results are written to a folder")
        if not plan.candidates:
            raise ConfigError("there is nothing to evaluate; name runs, checkpoints or exports")
        if plan.episodes < 1:
            raise ConfigError(f"episodes must be at least 1, got {plan.episodes}")
        if plan.max_steps is not None and plan.max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, got {plan.max_steps}")
        self.folder, self.plan = folder, plan
        self.files = plan.files(folder)
        self._plan_file = folder / f"plan-{_digest(asdict(plan))}.json"
        with reraise_os_error(folder, "the same command"):
            (folder / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
            if again:
                for file in self.files:
                    file.unlink(missing_ok=True)
            replace_text(self._plan_file, json.dumps(asdict(plan), indent=1) + "\n")

    def missing(self) -> list[Path]:
        return [file for file in self.files if not file.exists()]

    def jobs(self, workers: int) -> list[FilesJob]:
        """The evaluations that are missing, in groups."""
        logs = self.folder / LOG_FOLDER
        return files_jobs(MODULE, self._plan_file, self.files, logs, "evaluations", workers)

    def run(
        self,
        launcher: Launcher[Any],
        *,
        shown: bool,
        say: Callable[[str], None] = lambda text: None,
    ) -> list[Evaluation]:
        """Evaluate what is missing; the results of all, in the order of the plan."""
        kept = len(self.files) - len(self.missing())
        if kept:
            say(
                f"{kept} of {len(self.files)} results are in {self.folder} already and not made "
                "again"
            )
        if kept < len(self.files):
            progress = EvaluationProgress(self, shown)
            try:
                run_jobs(self.jobs(launcher.workers), launcher, progress.look)
            finally:
                progress.stop()
        return [
            Evaluation(one.run, one.tick, Path(one.path), read_result(file))
            for one, file in zip(self.plan.candidates, self.files, strict=True)
        ]


class EvaluationProgress(ProgressConsole):
    """Counts results as they appear, with the best of them."""

    def __init__(self, target: Evaluations, shown: bool) -> None:
        super().__init__()
        self._target, self._shown = target, shown
        self._scores: dict[Path, float] = {}
        self._find()
        if shown:
            self.start("evaluating", len(target.files), len(self._scores), "checkpoints")

    def look(self) -> None:
        self._find()
        if self._shown:
            best = f"best return {max(self._scores.values()):,.1f}" if self._scores else ""
            self.advance(len(self._scores), best)

    def _find(self) -> None:
        for file in self._target.files:
            if file not in self._scores and file.exists():
                self._scores[file] = read_result(file).return_mean


def _stored(result: EvalResult) -> dict[str, Any]:
    """What `read_result` reads."""
    names = ("returns", "lengths", "cut", "successes", "reference")
    return {name: getattr(result, name) for name in names}


def read_result(file: Path) -> EvalResult:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        scale = stored.get("reference")  # none in results of earlier versions
        if scale is not None:
            name, low, high = scale
            scale = Reference(str(name), float(low), float(high))
            if not scale.low < scale.high:
                raise ValueError
        return EvalResult(
            tuple(map(float, stored["returns"])),
            tuple(map(int, stored["lengths"])),
            tuple(map(bool, stored["cut"])),
            tuple(stored["successes"]),
            limit="max_steps",
            reference=scale,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(
            f"'{file}' is no result of an evaluation; remove it to evaluate that policy again"
        ) from None


# --- the job --------------------------------------------------------------------------------------


def evaluate_some(plan_file: Path, first: int, last: int) -> None:
    """Evaluate the candidates from `first` to before `last` that have no result yet."""
    import torch

    torch.set_num_threads(1)  # the number of threads may change the last bit of an action
    plan = read_plan(plan_file)
    files = plan.files(plan_file.parent)
    for one, file in list(zip(plan.candidates, files, strict=True))[first:last]:
        if file.exists():
            continue
        result = _evaluated(plan, one)
        with reraise_os_error(file, "the same command"):
            replace_text(file, json.dumps(_stored(result)) + "\n")
        print(f"{one.path}: {result}", flush=True)


def _evaluated(plan: EvaluationPlan, one: Candidate) -> EvalResult:
    from rl_training.api.managed import load
    from rl_training.experiment.config_files import apply_overrides
    from rl_training.export.exported import ExportedPolicy

    path = Path(one.path)
    changed = _fingerprint(path, "contract.json" if one.tick is None else MANIFEST)
    if changed != one.fingerprint:
        raise CheckpointError(
            f"'{path}' has changed since the evaluation began; give the command once more"
        )
    agent: Any
    if one.tick is None:
        agent = ExportedPolicy(path, trust=plan.trust)
    else:
        # one kind of device for all, wherever they are evaluated
        agent = load(path, device="cpu", trust=plan.trust)
    kwargs = plan.env_kwargs
    if plan.settings:
        own = agent.config.env_kwargs if plan.env_id is None else {}
        kwargs = apply_overrides(own, list(plan.settings))
    result: EvalResult = agent.evaluate(
        plan.episodes,
        seed=plan.seed,
        deterministic=plan.deterministic,
        env_id=plan.env_id,
        env_kwargs=kwargs,
        max_steps=plan.max_steps,
    )
    return result


def read_plan(file: Path) -> EvaluationPlan:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        candidates = tuple(Candidate(**one) for one in stored.pop("candidates"))
        settings = tuple(stored.pop("settings"))
        return EvaluationPlan(candidates=candidates, settings=settings, **stored)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"'{file}' is no plan of evaluations; remove it") from None


# --- places ---------------------------------------------------------------------------------------


def _checkpoints(run: Path, which: str) -> list[Path]:
    if which != ALL:
        return [find_checkpoint(run, which)]
    store = CheckpointStore(run / CHECKPOINT_FOLDER, keep_last=1, keep_best=True)
    damaged = store.unreadable()
    if damaged:
        raise damaged[max(damaged)]
    return [info.path for info in store.all()] or [find_checkpoint(run)]  # which says what to do


def _candidate(run: Path, path: Path, tick: int | None, file: str) -> Candidate:
    return Candidate(str(run), tick, str(path.absolute()), _fingerprint(path, file))


def _fingerprint(path: Path, file: str) -> str:
    try:
        return hashlib.sha256((path / file).read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(
            f"'{path / file}' cannot be read ({error.strerror or error}); name a run, a checkpoint "
            "or an export"
        ) from None


def _tick(path: Path) -> int:
    return read_manifest(path).tick


def _digest(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


if __name__ == "__main__":
    run_as_job(evaluate_some)
