"""What a run folder says about its run, whole or not, running or ended."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.errors import ConfigError, RLTrainingError
from rl_training.experiment.lock import is_in_use
from rl_training.experiment.tracking import (
    CONFIG_FILE,
    METRICS_FILE,
    RESULT_FILE,
    read_run_config,
)

MOST_TRAINING_POINTS = 2_000
"""Rows of training metrics that are kept for curves, evenly spaced."""
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
    """At most `MOST_TRAINING_POINTS`, evenly spaced."""
    result: dict[str, Any]

    def curve(self, metric: str) -> Curve:
        """A metric over the evaluations, or over training if it is logged there."""
        events = self.evaluations if _has(self.evaluations, metric) else self.training
        found = [(event["tick"], event[metric]) for event in events if _is_number(event, metric)]
        return Curve(tuple(tick for tick, _ in found), tuple(float(value) for _, value in found))

    def metrics(self) -> list[str]:
        """All scalar metrics of its evaluations, in the order of the newest one."""
        newest = self.evaluations[-1] if self.evaluations else {}
        return [key for key in newest if key != "tick" and _is_number(newest, key)]

    @property
    def chosen_metric(self) -> str | None:
        """The metric by which its best checkpoint is chosen."""
        named = (self.result.get("best") or {}).get("metric")
        known = self.metrics()
        if isinstance(named, str) and named in known:
            return named
        return "eval/return_mean" if "eval/return_mean" in known else next(iter(known), None)

    def score(self, metric: str) -> float | None:
        """Its last value; of returns the one from start states that chose nothing, if there."""
        held_out = ((self.result.get("held_out") or {}).get("last")) or {}
        if _is_number(held_out, metric):
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
        found = self.config.get("total_updates") or self.config.get("total_timesteps")
        return int(found) if isinstance(found, (int, float)) else None

    @property
    def tick(self) -> int:
        """The newest tick that any of its files knows."""
        events = [e["tick"] for s in self.seeds for e in (*s.evaluations[-1:], *s.training[-1:])]
        done = "updates" if self.config.get("total_updates") else "env_steps"
        known = [self.result[done]] if _is_number(self.result, done) else []
        return int(max([0, *known, *events]))

    @property
    def wall_seconds(self) -> float | None:
        """Of all its seeds together if they were trained at once, as far as it is known."""
        value = self.result.get("wall_seconds")
        if isinstance(value, (int, float)):
            return float(value)
        times = [s.curve("time/elapsed_seconds").values for s in self.seeds]
        return max((values[-1] for values in times if values), default=None)

    @property
    def task(self) -> str:
        """Environment, or data set where there is none."""
        data = self.config.get("dataset") or {}
        named = data.get("name") or data.get("path") or data.get("id") if data else None
        return str(self.config.get("env_id") or named or "unknown task")

    @property
    def chosen_metric(self) -> str | None:
        return next((s.chosen_metric for s in self.seeds if s.chosen_metric), None)

    def experiment(self) -> str:
        """Equal for runs that differ in seed, device and loggers alone."""
        kept = {key: value for key, value in self.config.items() if key not in NOT_COMPARED}
        return json.dumps(kept, sort_keys=True, default=str)


def read_run(folder: Path) -> Run:
    """A run folder, however far its run has come; refused if it is none."""
    try:
        config = read_run_config(folder)
    except RLTrainingError:
        if not (folder / CONFIG_FILE).is_file():
            raise
        config = {}  # written by another program, or damaged
    result = _json_file(folder / RESULT_FILE)
    parts = sorted(folder.glob("seed-*"), key=lambda part: part.name)
    parts = [part for part in parts if part.is_dir() and not part.is_symlink()]
    seeds = [_seed_run(part, _seed_of(part, config)) for part in parts or [folder]]
    seeds.sort(key=lambda run: run.seed)
    status = "running" if is_in_use(folder) else result.get("status", "dead")
    return Run(folder, config, status if status in STATUSES else "dead", tuple(seeds), result)


def find_runs(places: Sequence[Path]) -> list[Run]:
    """The runs in `places`: run folders, and folders at any depth above run folders.

    Refuses a place without any.
    """
    runs = []
    for place in places:
        folders = list(_run_folders(place))
        if not folders:
            what = "holds no run" if place.is_dir() else "does not exist"
            raise ConfigError(
                f"'{place}' {what}; give run folders, such as those that 'rl-training list' shows"
            )
        runs += [read_run(folder) for folder in folders]
    unique = {run.folder.resolve(): run for run in runs}
    return list(unique.values())


def _run_folders(place: Path) -> Iterator[Path]:
    if (place / CONFIG_FILE).is_file():
        yield place
        return
    found = sorted(path.parent for path in place.rglob(CONFIG_FILE))
    # the seeds of a run are parts of it
    yield from (path for path in found if not (path.parent / CONFIG_FILE).is_file())


def _seed_of(part: Path, config: dict[str, Any]) -> int:
    with suppress(ValueError):
        return (
            int(part.name.removeprefix("seed-"))
            if part.name.startswith("seed-")
            else int(config.get("seed") or 0)
        )
    return 0


def _seed_run(folder: Path, seed: int) -> SeedRun:
    evaluations, training = _events(folder / METRICS_FILE)
    return SeedRun(
        seed, folder, tuple(evaluations), tuple(training), _json_file(folder / RESULT_FILE)
    )


def _events(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All evaluations and a thinned selection of the training events.

    Lines of training are parsed only if they are kept, so that a file of millions of rows is
    read in seconds.
    """
    evaluations: list[bytes] = []
    training: list[bytes] = []
    stride, seen = 1, 0
    newest = b""
    with suppress(OSError), path.open("rb") as file:
        for line in file:
            if line.startswith(b'{"event": "eval"'):
                evaluations.append(line)
                continue
            newest = line
            if seen % stride == 0:
                training.append(line)
                if len(training) > 2 * MOST_TRAINING_POINTS:
                    training, stride = training[::2], stride * 2
            seen += 1
    if training and training[-1] != newest:
        training.append(newest)
    if len(evaluations) > MOST_TRAINING_POINTS:
        step = math.ceil(len(evaluations) / MOST_TRAINING_POINTS)
        evaluations = [*evaluations[:-1:step], evaluations[-1]]
    return _parsed(evaluations), _parsed(training)


def _parsed(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The events of whole lines; one that is half written is left out."""
    found = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("tick"), int):
                found.append(event)
    return found


def _json_file(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def _has(events: Sequence[dict[str, Any]], metric: str) -> bool:
    return any(metric in event for event in events)


def _is_number(event: dict[str, Any], key: str) -> bool:
    value = event.get(key)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
