"""The points of a sweep: every combination of the values of its keys."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.config_files import read_yaml_file
from rl_training.experiment.errors import ConfigError

MOST_TRIALS = 100_000
FILE_KEYS = ("config", "set", "grid", "list", "seeds")
OPENING, CLOSING = "[{(", "]})"


@dataclass(frozen=True)
class Point:
    """One combination of values, as overrides of the config."""

    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """For folders: the last part of every key, and its value."""
        parts = []
        for text in self.overrides:
            key, _, value = text.partition("=")
            parts.append(f"{key.rpartition('.')[2]}={value.strip()}")
        return re.sub(r"[^\w.=,+-]+", "_", ",".join(parts))[:80] or "default"


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is to train."""

    config: str
    fixed: tuple[str, ...]
    points: tuple[Point, ...]
    seeds: tuple[int, ...] | None


def plan_of(
    config: str, overrides: Sequence[str], seeds: Sequence[int] | None, flags: Sequence[str] = ()
) -> SweepPlan:
    """The plan of a command line: `key=1,3,10` is an axis of the grid, `key=1` is fixed.

    `config` may be a file of a sweep, with the keys of `FILE_KEYS`.
    """
    listed: list[dict[str, Any]] = [{}]
    axes: dict[str, list[str]] = {}
    fixed: list[str] = []
    path = Path(config)
    values = read_yaml_file(path) if path.is_file() else {}
    if {"grid", "list"} & values.keys():
        config, fixed, axes, listed, file_seeds = _of_file(values, path)
        seeds = seeds if seeds is not None else file_seeds
    for text in overrides:
        key, choices = _choices(text)
        axes.pop(key, None)
        fixed = [kept for kept in fixed if not kept.startswith(f"{key}=")]
        if len(choices) > 1:
            axes[key] = choices
        else:
            fixed.append(text)
    refuse_own_keys([*axes, *(text.partition("=")[0] for text in fixed)])
    combinations = []
    for point in listed:
        own = [f"{key}={_text(value)}" for key, value in point.items()]
        for chosen in itertools.product(*axes.values()):
            values_of = zip(axes, chosen, strict=True)
            combinations.append(Point((*own, *(f"{key}={value}" for key, value in values_of))))
    if len(combinations) * len(seeds or [0]) > MOST_TRIALS:
        raise ConfigError(
            f"the sweep has {len(combinations) * len(seeds or [0]):,} runs, more than "
            f"{MOST_TRIALS:,}; give fewer values"
        )
    names = [point.name for point in combinations]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"sweep: the point '{twice}' occurs twice; give each value once")
    return SweepPlan(config, (*fixed, *flags), tuple(combinations), tuple(seeds) if seeds else None)


def configs_of(plan: SweepPlan) -> list[tuple[str, TrainConfig]]:
    """The checked config of every run, by its name.

    All seeds of a point are one run where they can be trained at once, that is from data alone;
    otherwise each seed is a run.
    """
    found = []
    for point in plan.points:
        config = load_config(plan.config, [*plan.fixed, *point.overrides])
        if plan.seeds is None:
            found.append((point.name, config))
        else:
            found += with_seeds(point.name, config, plan.seeds)
    return found


def with_seeds(
    name: str, config: TrainConfig, seeds: Sequence[int]
) -> list[tuple[str, TrainConfig]]:
    """The runs that train a config with these seeds, by their names."""
    if config.total_timesteps is None and len(seeds) > 1:
        return [(f"{name}-{len(seeds)}seeds", config.replace(seeds=list(seeds)))]
    return [(f"{name}-s{seed}", config.replace(seed=seed)) for seed in seeds]


def parse_seeds(text: str) -> list[int]:
    """`5` is 0 to 4, `2..6` a range with both ends, `0,3,7` a list."""
    seeds: list[Any] = []
    with suppress(ValueError):
        if ".." in text:
            first, last = (int(part) for part in text.split(".."))
            seeds = list(range(first, min(last, first + MOST_TRIALS) + 1))
        elif "," in text:
            seeds = [int(part) for part in text.split(",")]
        else:
            seeds = list(range(min(int(text), MOST_TRIALS + 1)))
    return _checked_seeds(seeds, f"--seeds {text}")


def _checked_seeds(seeds: list[Any], given: str) -> list[int]:
    whole = all(isinstance(seed, int) and seed >= 0 for seed in seeds)
    if not whole or not 0 < len(set(seeds)) == len(seeds) <= MOST_TRIALS:
        raise ConfigError(
            f"{given}: expected how many, a range or a list, such as 5, 2..6 or 0,3,7, each once"
        )
    return seeds


def _of_file(
    values: dict[str, Any], path: Path
) -> tuple[str, list[str], dict[str, list[str]], list[dict[str, Any]], list[int] | None]:
    unknown = sorted(values.keys() - set(FILE_KEYS))
    if unknown or not isinstance(values.get("config"), str):
        what = f"has the unknown key '{unknown[0]}'" if unknown else "names no config"
        raise ConfigError(f"sweep '{path}' {what}; its keys are config, set, grid, list and seeds")
    grid, chosen, fixed = values.get("grid") or {}, values.get("list") or [{}], values.get("set")
    if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
        raise ConfigError(f"sweep '{path}': grid expects 'key: [value, value]' lines")
    if not isinstance(chosen, list) or not all(isinstance(point, dict) for point in chosen):
        raise ConfigError(f"sweep '{path}': list expects a list of 'key: value' sections")
    if fixed is not None and not isinstance(fixed, dict):
        raise ConfigError(f"sweep '{path}': set expects 'key: value' lines")
    seeds = values.get("seeds")
    if isinstance(seeds, list):
        seeds = _checked_seeds(seeds, "seeds")
    elif seeds is not None:
        seeds = parse_seeds(str(seeds))
    return (
        values["config"],
        [f"{key}={_text(value)}" for key, value in (fixed or {}).items()],
        {str(key): [_text(value) for value in axis] for key, axis in grid.items()},
        chosen,
        seeds,
    )


def _text(value: Any) -> str:
    """A value as the text of an override."""
    return value if isinstance(value, str) else json.dumps(value)


def refuse_own_keys(keys: Sequence[str]) -> None:
    """Refuse keys that a study sets."""
    for key in keys:
        if key in ("seed", "seeds", "output_dir", "run_name"):
            raise ConfigError(
                f"{key}: a study sets it itself; give seeds by --seeds, and the folder by --out"
            )


def _choices(override: str) -> tuple[str, list[str]]:
    """The key of an override and its values, which commas outside of brackets and quotes part."""
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"override '{override}' must have the form key=value")
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in OPENING) - (character in CLOSING)
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    if len(parts) > 1 and not all(part.strip() for part in parts):
        raise ConfigError(f"'{override}': a value is missing between two commas")
    return key.strip(), [part.strip() for part in parts]
