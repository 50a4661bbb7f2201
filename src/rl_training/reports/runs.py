"""What a run folder says about its run, whole or not, running or ended."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.errors import ConfigError, RLTrainingError
from rl_training.experiment.lock import is_in_use
from rl_training.experiment.run_sections import EVAL_METRICS
from rl_training.experiment.task_names import task_name
from rl_training.experiment.tracking import (
    CONFIG_FILE,
    METRICS_FILE,
    RESULT_FILE,
    read_run_config,
)
from rl_training.reports.events import EventReader, parsed

NOT_COMPARED = (
    "seed",
    "seeds",
    "output_dir",
    "run_name",
    "device",
    "threads",
    "tensorboard",
    "loggers",
    "profile",
    "report",
)
"""Keys in which repetitions of one experiment may differ."""
STATUSES = ("running", "finished", "interrupted", "failed", "dead")
"""Dead: its process ended without a word, by a kill or a crash of the machine."""


@dataclass(frozen=True)
class Curve:
    """Values of a metric over ticks."""

    ticks: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class SeedRun:
    """One seed of a run: its events and its result so far."""

    seed: int
    folder: Path
    evaluations: tuple[dict[str, Any], ...]
    training: tuple[dict[str, Any], ...]
    result: dict[str, Any]
    newest_best: dict[str, Any] = field(default_factory=dict)
    """The newest evaluation that was the best so far."""

    def curve(self, metric: str) -> Curve:
        """A metric over the evaluations, or over training if it is logged there."""
        events = self.evaluations if _has(self.evaluations, metric) else self.training
        found = [(event["tick"], event[metric]) for event in events if is_number(event, metric)]
        return Curve(tuple(tick for tick, _ in found), tuple(float(value) for _, value in found))

    def metrics(self) -> list[str]:
        """All scalar metrics of its evaluations, in the order of the newest one."""
        newest = self.evaluations[-1] if self.evaluations else {}
        return [key for key in newest if key != "tick" and is_number(newest, key)]

    @property
    def chosen_metric(self) -> str | None:
        """The metric by which its best checkpoint is chosen."""
        named = mapping_in(self.result, "best").get("metric")
        known = self.metrics()
        if isinstance(named, str) and named in known:
            return named
        return "eval/return_mean" if "eval/return_mean" in known else next(iter(known), None)

    def best(self, metric: str) -> tuple[int, float] | None:
        """Tick and value of its best evaluation."""
        known = [e for e in (*self.evaluations, self.newest_best) if is_number(e, metric)]
        chosen = mapping_in(self.result, "best")
        if chosen.get("metric") == metric and is_number(chosen, "score"):
            tick = int(chosen["tick"]) if is_number(chosen, "tick") else 0
            # a score is the negative of a metric of which less is better, also by the config
            score = float(chosen["score"])
            same = (float(e[metric]) for e in known if abs(e[metric]) == abs(score))
            return tick, next(same, -score if lower_is_better(metric) else score)
        if not known:
            return None
        better = min if lower_is_better(metric) else max
        found = better(known, key=lambda event: float(event[metric]))
        return int(found["tick"]), float(found[metric])

    def score(self, metric: str) -> float | None:
        """Its last value; of returns the one from start states that chose nothing, if there."""
        held_out = mapping_in(mapping_in(self.result, "held_out"), "last")
        if is_number(held_out, metric):
            return float(held_out[metric])
        values = self.curve(metric).values
        return values[-1] if values else None


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path
    config: dict[str, Any]
    status: str
    """One of `STATUSES`."""
    seeds: tuple[SeedRun, ...]
    result: dict[str, Any]

    @property
    def budget(self) -> int | None:
        known = [key for key in ("total_updates", "total_timesteps") if is_number(self.config, key)]
        return int(self.config[known[0]]) if known else None

    @property
    def tick(self) -> int:
        """The newest tick that any of its files knows."""
        events = [e["tick"] for s in self.seeds for e in (*s.evaluations[-1:], *s.training[-1:])]
        done = "updates" if self.config.get("total_updates") else "env_steps"
        known = [self.result[done]] if is_number(self.result, done) else []
        return int(max([0, *known, *events]))

    @property
    def wall_seconds(self) -> float | None:
        """Of all its seeds together if they were trained at once, as far as it is known."""
        if is_number(self.result, "wall_seconds"):
            return float(self.result["wall_seconds"])
        times = [s.curve("time/elapsed_seconds").values for s in self.seeds]
        return max((values[-1] for values in times if values), default=None)

    @property
    def task(self) -> str:
        """Environment, or data set where there is none."""
        env_id = self.config.get("env_id")
        if env_id:
            return task_name(str(env_id), mapping_in(self.config, "env_kwargs"))
        data = mapping_in(self.config, "dataset")
        named = data.get("name") or data.get("path") or data.get("id") if data else None
        return str(named or "unknown task")

    @property
    def task_name(self) -> str:
        """The task for titles: of a file only its name."""
        return self.task if self.config.get("env_id") else Path(self.task).name

    @property
    def chosen_metric(self) -> str | None:
        return next((s.chosen_metric for s in self.seeds if s.chosen_metric), None)

    def experiment(self) -> str:
        """Equal for runs that differ in seed, device and loggers alone."""
        kept = {key: value for key, value in self.config.items() if key not in NOT_COMPARED}
        return json.dumps(kept, sort_keys=True, default=str)


class RunReader:
    """Reads a run repeatedly while it trains, and of its metrics only what is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events: dict[Path, EventReader] = {}

    def read(self, ended: bool = False) -> Run:
        """The run as it is now, however far it has come; refused if the folder holds none.

        `ended` is for the process of the run itself, which still holds its lock.
        """
        folder = self.folder
        try:
            config = read_run_config(folder)
        except RLTrainingError:
            if not (folder / CONFIG_FILE).is_file():
                raise
            config = {}  # written by another program, or damaged
        # before the result, which a run writes first: one that has just ended is not dead
        running = not ended and is_in_use(folder)
        result = json_file(folder / RESULT_FILE)
        parts = sorted(folder.glob("seed-*"), key=lambda part: part.name)
        parts = [part for part in parts if part.is_dir() and not part.is_symlink()]
        seeds = [self._seed_run(part, _seed_of(part, config)) for part in parts or [folder]]
        seeds.sort(key=lambda run: run.seed)
        status = "running" if running else result.get("status", "dead")
        return Run(folder, config, status if status in STATUSES else "dead", tuple(seeds), result)

    def _seed_run(self, folder: Path, seed: int) -> SeedRun:
        events = self._events.setdefault(folder, EventReader(folder / METRICS_FILE))
        events.update()
        best = parsed([events.newest_best])
        return SeedRun(
            seed,
            folder,
            tuple(parsed(events.evaluations.lines())),
            tuple(parsed(events.training.lines())),
            json_file(folder / RESULT_FILE),
            best[0] if best else {},
        )


def read_run(folder: Path) -> Run:
    """A run folder, however far its run has come; refused if it is none."""
    return RunReader(folder).read()


def find_runs(places: Sequence[Path], readers: dict[Path, RunReader] | None = None) -> list[Run]:
    """The runs in `places`: run folders, and folders at any depth above run folders.

    Refuses a place without any. `readers`, kept from call to call, read only what is new.
    """
    known = {} if readers is None else readers
    runs = []
    for place in places:
        folders = list(_run_folders(place))
        if not folders:
            what = "holds no run" if place.is_dir() else "does not exist"
            raise ConfigError(
                f"'{place}' {what}; give run folders, such as those that 'rl-training list' shows"
            )
        runs += [known.setdefault(folder, RunReader(folder)).read() for folder in folders]
    unique = {run.folder.resolve(): run for run in runs}
    return list(unique.values())


def described(run: Run) -> dict[str, Any]:
    """A run in a few plain values, whether it has ended or not."""
    metric = run.chosen_metric
    scores = [s.score(metric) for s in run.seeds] if metric else []
    known = [score for score in scores if score is not None]
    seconds, tick = run.wall_seconds, run.tick
    rate = tick / seconds if seconds and tick else None
    left = (run.budget - tick) / rate if run.status == "running" and rate and run.budget else None
    return {
        "name": run.folder.name,
        "folder": str(run.folder),
        "algo": run.config.get("algo"),
        "task": run.task,
        "seeds": [seed.seed for seed in run.seeds],
        "status": run.status,
        "tick": tick,
        "budget": run.budget,
        "progress": round(tick / run.budget, 4) if run.budget else None,
        "metric": metric,
        "score": sum(known) / len(known) if known else None,
        "wall_seconds": seconds,
        "seconds_left": None if left is None else round(left, 1),
    }


def _run_folders(place: Path) -> Iterator[Path]:
    if (place / CONFIG_FILE).is_file():
        yield place
        return
    found = sorted(path.parent for path in place.rglob(CONFIG_FILE))
    # the seeds of a run are parts of it
    yield from (path for path in found if not (path.parent / CONFIG_FILE).is_file())


def _seed_of(part: Path, config: dict[str, Any]) -> int:
    with suppress(ValueError, TypeError):
        return (
            int(part.name.removeprefix("seed-"))
            if part.name.startswith("seed-")
            else int(config.get("seed") or 0)
        )
    return 0


def json_file(path: Path) -> dict[str, Any]:
    """The values of a JSON file; none if it is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def mapping_in(values: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping at a key; an empty one where a damaged file has anything else."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _has(events: Sequence[dict[str, Any]], metric: str) -> bool:
    return any(metric in event for event in events)


def lower_is_better(metric: str) -> bool:
    return EVAL_METRICS.get(metric) == "min"


def is_number(event: dict[str, Any], key: str) -> bool:
    """Whether the value at a key is a finite number."""
    value = event.get(key)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
