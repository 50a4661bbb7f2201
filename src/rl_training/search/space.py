"""What a tuning searches: keys of the configuration, each with its range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, did_you_mean
from rl_training.experiment.ranges import Choices, Range, parse_range, search_range
from rl_training.search.grid import refuse_own_keys

KNOBS = "algo_kwargs"
BUDGETS = ("total_updates", "total_epochs", "total_timesteps")
VALUE_METRICS = tuple(
    f"offline/{name}" for name in ("td_error", "value_start", "action_gap", "fitted_value")
)
"""Metrics in units of discounted returns."""
VALUE_UNITS = (f"{KNOBS}.gamma", "dataset.rewards")
"""Keys that change these units."""

Space = Mapping[str, Range]
"""Ranges by key, in the order in which they are searched."""


def space_of(
    config: TrainConfig, asked: Sequence[str], fixed: Sequence[str], metric: str
) -> dict[str, Range]:
    """The ranges of a search: those asked for, or all that are searched by default.

    `asked` holds `key` or `key=range`; keys in `fixed` have a value already. A range is extended
    to hold the config's own value, with which the search begins. A key that changes the units of
    the metric is not searched.
    """
    own = {
        f"{KNOBS}.{name}": beside
        for name, field in type(config.params).model_fields.items()
        if (beside := search_range(field)) is not None
    }
    set_already = {text.partition("=")[0].strip() for text in fixed}
    chosen: dict[str, Range] = {}
    for text in asked:
        key, separator, written = (part.strip() for part in text.partition("="))
        _refuse_unfit(key, set_already, chosen, metric)
        if separator:
            chosen[key] = parse_range(written, f"--search {key}")
        elif key in own:
            chosen[key] = own[key]
        else:
            raise ConfigError(
                f"--search: '{key}' has no range of its own{did_you_mean(key, own)}; give one, "
                f"such as --search '{key}=log(0.1, 10)', or search some of {', '.join(own)}"
            )
    if not asked:
        chosen = {
            key: one
            for key, one in own.items()
            if one.by_default and key not in set_already and not _changes_units(key, metric)
        }
    if not chosen:
        raise ConfigError(
            f"{config.algo} has no key left to search; name some with --search KEY=RANGE"
        )
    found = {key: _with_own_value(config, key, one) for key, one in chosen.items()}
    for key, one in found.items():
        for value in one.values if isinstance(one, Choices) else (one.low, one.high):
            configured(config, {key: _typed(config, key, value)})  # refuses unknown keys and values
    return found


def value_of(config: TrainConfig, key: str) -> Any:
    """The value of a key in a config, as plain data; None if it has none."""
    found: Any = config.to_dict()
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def is_whole(config: TrainConfig, key: str) -> bool:
    """Whether a key takes whole numbers, as far as its value shows."""
    value = value_of(config, key)
    return isinstance(value, int) and not isinstance(value, bool)


def configured(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """The config with these values, checked."""
    plain = config.to_dict()
    for key, value in values.items():
        *parents, last = key.split(".")
        section = plain
        for name in parents:
            below = section.get(name)
            own = dict(below) if isinstance(below, Mapping) else {}
            section[name] = own
            section = own
        section[last] = value
    return TrainConfig(**plain)


def _typed(config: TrainConfig, key: str, value: Any) -> Any:
    return round(value) if is_whole(config, key) and isinstance(value, float) else value


def _with_own_value(config: TrainConfig, key: str, given: Range) -> Range:
    value = value_of(config, key)
    if value is None and not isinstance(given, Choices):
        return given  # unset: a run with the config's own value has no number to begin with
    return given.with_value(value) or given


def _changes_units(key: str, metric: str) -> bool:
    changes = any(key == unit or key.startswith(f"{unit}.") for unit in VALUE_UNITS)
    return changes and metric in VALUE_METRICS


def _refuse_unfit(key: str, fixed: set[str], chosen: Mapping[str, Range], metric: str) -> None:
    refuse_own_keys([key])
    if _changes_units(key, metric):
        raise ConfigError(
            f"--search: {key} changes the units of {metric}, so that its values would not be "
            "comparable; set it for all trials, or choose another --metric"
        )
    if key in BUDGETS:
        raise ConfigError(
            f"--search: {key} is the budget, and scores of different budgets are not comparable; "
            f"set it for all trials, {key}=VALUE"
        )
    if key in fixed or key in chosen:
        what = "has a value already" if key in fixed else "occurs twice"
        raise ConfigError(f"--search: {key} {what}; leave one of the two out")
