"""The options of an agent: keys and knobs by keyword, and what may change when a run continues."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rl_training.experiment.config import (
    CHANGEABLE_ON_RESUME,
    TrainConfig,
)
from rl_training.experiment.config_errors import shortened
from rl_training.experiment.data_config import DatasetConfig
from rl_training.experiment.errors import (
    ConfigError,
    did_you_mean,
)
from rl_training.experiment.foreign_names import name_here
from rl_training.experiment.registry import algorithm_class
from rl_training.experiment.renames import older_names, with_current_names

SB3_POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")


def refuse_misplaced(kind: str, first: Any, others: tuple[Any, ...]) -> None:
    """Refuse the positional arguments of other libraries; `kind` is the class that got them."""
    if isinstance(first, str) and first in SB3_POLICIES:
        env = repr(others[0]) if others and isinstance(others[0], str) else "'Pendulum-v1'"
        raise ConfigError(
            f"env_id: '{first}' is a policy of Stable-Baselines3; here the networks follow from "
            f"the spaces of the environment, so leave it out: {kind}({env})"
        )
    if others:
        raise ConfigError(
            f"{kind} takes one argument by position, the environment, and got "
            f"{shortened(others[0])}, too; give everything else by name, such as dataset= or seed="
        )


def with_options(
    base: TrainConfig | Mapping[str, Any], options: Mapping[str, Any], algo: str
) -> TrainConfig:
    """Sort loose keyword arguments into run keys and knobs, and check what they change."""
    if isinstance(base, TrainConfig) and not options:
        return base
    keys: dict[str, Any] = {}
    loose: dict[str, Any] = {}
    unknown = []
    params = algorithm_class(algo).Params
    older = older_names(params)
    for key, value in options.items():
        if key in TrainConfig.model_fields:
            keys[key] = value
        elif key in params.model_fields or key in older:
            loose[key] = value
        else:
            there = [*TrainConfig.model_fields, *params.model_fields]
            hint = name_here(key, there, {}) or did_you_mean(key, there)
            if key in DatasetConfig.model_fields:
                hint = f"; it is a key of the data set, as in dataset={{'path': ..., '{key}': ...}}"
            unknown.append(f"{key}: unknown option for {algo}{hint}")
    if unknown:
        raise ConfigError("\n".join(unknown))
    given = keys.get("algo_kwargs", {})
    if isinstance(given, BaseModel):
        given = given.model_dump(mode="json")
    if (given or loose) and isinstance(given, Mapping):  # anything else is refused with the rest
        known = base.algo_kwargs if isinstance(base, TrainConfig) else base.get("algo_kwargs", {})
        keys["algo_kwargs"] = {
            key: value
            for source in (known, given, loose)
            for key, value in with_current_names(params, source).items()
        }
    if isinstance(base, TrainConfig):
        return base.replace(**keys)
    return TrainConfig(**{**base, **keys})


def refuse_changes(stored: TrainConfig, wanted: TrainConfig) -> None:
    """Refuse a config that would learn, or choose the best checkpoint, differently."""
    algorithm = algorithm_class(wanted.algo)
    before, now = (algorithm.loop_of(c) for c in (stored, wanted))
    if before != now:
        key = "total_timesteps" if now == algorithm.online_loop else "total_updates"
        key = key if algorithm.offline_loop is None else "dataset"
        raise ConfigError(
            f"{key}: this run is {before.replace('_', ' ')} and cannot turn into one that is "
            f"{now.replace('_', ' ')}; start a new run with init_from=RUN"
        )
    changed = changes(stored.to_dict(), wanted.to_dict(), CHANGEABLE_ON_RESUME)
    # data may move and be packed: that they are the same is checked by their fingerprint
    place = re.compile(r"dataset(\.mix\.\d+)?\.(path|kind|home): ")
    changed = [text for text in changed if not place.match(text)]
    for key, default in (("metric", "eval/return_mean"), ("mode", "max")):
        old = getattr(stored.early_stopping, key, default)
        new = getattr(wanted.early_stopping, key, default)
        if old != new:  # evaluations so far were compared by it
            changed.append(f"early_stopping.{key}: {old!r} -> {new!r}")
    if changed:
        raise ConfigError(
            "resume cannot change what is learned (" + "; ".join(changed) + "); "
            "start a new run with the changed config"
        )


def changes(old: Mapping[str, Any], new: Mapping[str, Any], free: frozenset[str]) -> list[str]:
    """`key: old -> new` for every difference between two configs outside the `free` keys."""
    return [
        f"{key}: {before!r} -> {after!r}"
        for key, before, after in _differences(old, new)
        if key.partition(".")[0] not in free
    ]


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, old value, new value) wherever two nested configs differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            below = f"{key}.{name}" if key else str(name)
            yield from _differences(old.get(name), new.get(name), below)
    elif _parts(old) and _parts(new) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{key}.{index}")
    elif old != new:
        yield key, old, new


def _parts(value: Any) -> bool:
    """Whether a value is a list of sections, as the parts of a mix are."""
    return isinstance(value, list) and all(isinstance(part, Mapping) for part in value)
