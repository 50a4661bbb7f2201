"""What files of runs say that policies are worth: returns of evaluations, estimates from logs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rl_training.experiment.errors import ExportError
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.experiment.tracking import CONFIG_FILE, OPE_FILE, RESULT_FILE
from rl_training.runtime.statistics import Summary


@dataclass(frozen=True)
class Baseline:
    """Another policy, or the behaviour in the data, to compare with."""

    name: str
    clones: bool = False
    """Whether it was trained to do what the data show, without their rewards."""
    returns: tuple[float, ...] = ()
    """Of its episodes; else what its files say."""
    said: Mapping[str, Any] = field(default_factory=dict)

    def scored(self) -> dict[str, Any]:
        return scored(self.name, self.returns) if self.returns else {"name": self.name, **self.said}


def scored(name: str, returns: Sequence[float]) -> dict[str, Any]:
    """Returns of episodes with 95 % intervals."""
    summary = Summary.of(returns)
    return {
        "name": name,
        "episodes": len(returns),
        "mean": summary.mean.value,
        "mean_95": [summary.mean.low, summary.mean.high],
        "iqm": summary.iqm.value,
        "iqm_95": [summary.iqm.low, summary.iqm.high],
    }


def json_of(run_dir: Path | None, name: str) -> dict[str, Any]:
    """A JSON object of a run's folder; empty where there is none."""
    try:
        values = json.loads((run_dir / name).read_text(encoding="utf-8")) if run_dir else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def estimates_of(run_dir: Path | None, checkpoint: str | None = None) -> list[dict[str, Any]]:
    """What `rl-training ope` found, of one checkpoint or of all; the newest for each log."""
    stored = json_of(run_dir, OPE_FILE).get("evaluations")
    entries = [one for one in stored if isinstance(one, dict)] if isinstance(stored, list) else []
    found: dict[Any, dict[str, Any]] = {}
    for entry in entries:
        if checkpoint is not None and entry.get("checkpoint") != checkpoint:
            continue
        looks = sum(one.get("data") == entry.get("data") for one in entries)
        estimates = entry.get("estimates")
        listed = [
            {"name": name, "value": one.get("value"), "interval": [one.get("low"), one.get("high")]}
            for name, one in (estimates.items() if isinstance(estimates, dict) else ())
            if isinstance(one, dict)
        ]
        keys = ("episodes", "gamma", "horizon", "confidence", "effective_size", "unusual")
        found[entry.get("data")] = {
            "log": entry.get("data"),
            "estimates": listed,
            **{key: entry.get(key) for key in (*keys, "supported", "verdict")},
            "times_looked_at": looks,
        }
    return list(found.values())


def baseline_of(path: Path) -> Baseline:
    """Another run, by what its files say: its evaluation, or estimates from a log."""
    said: dict[str, Any] = {}
    result = json_of(path, RESULT_FILE)
    held_out = result.get("held_out") or {}
    scores = held_out.get("best") or held_out.get("last") or result.get("last_eval") or {}
    config = _config_of(path)
    mean, std = (_finite(scores, f"eval/return_{key}") for key in ("mean", "std"))
    if mean is not None:
        said["mean"] = mean
        episodes = config.get("eval_episodes")
        if std is not None and isinstance(episodes, int) and episodes > 1:
            half = 1.96 * std / math.sqrt(episodes - 1)
            said |= {"episodes": episodes, "mean_95": [mean - half, mean + half]}
    estimates = estimates_of(path)
    if estimates:
        said["off_policy"] = estimates
    if not said:
        raise ExportError(
            f"--compare: '{path}' is not a run folder with an evaluation; give one that "
            "has finished"
        )
    algo = config.get("algo")
    name = f"run {path.name}" + (f" ({algo})" if isinstance(algo, str) else "")
    return Baseline(name, is_cloning(algo), said=said)


def is_cloning(algo: Any) -> bool:
    """Whether an algorithm learns from data what they show, without their rewards."""
    if algo not in algorithm_names():
        return False
    return not algorithm_class(algo).needs_rewards


def _config_of(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load((path / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def _finite(scores: Any, key: str) -> float | None:
    value = scores.get(key) if isinstance(scores, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
