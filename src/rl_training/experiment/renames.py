"""Older names of keys, which are still accepted with one warning that gives the new name.

A section lists them in `renamed`. Each source of values (a file, the overrides, keyword
arguments) is converted before sources are merged, so that the later source wins, whichever
name it uses.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rl_training.experiment.config_errors import section_in
from rl_training.experiment.errors import ConfigError, RenamedKeyWarning


def same_value(value: Any, others: Mapping[str, Any]) -> Any:
    return value


def opposite(value: Any, others: Mapping[str, Any]) -> Any:
    """The negation of a boolean; other values are refused later."""
    return not value if isinstance(value, bool) else value


@dataclass(frozen=True)
class Renamed:
    """The new name of an older key, and the conversion of its value."""

    name: str
    value: Callable[[Any, Mapping[str, Any]], Any] = same_value
    """Maps (old value, the section's other values) to the new value."""
    meaning: str = ""
    """How the meaning changed, as the end of a sentence."""


def older_names(section: type[BaseModel]) -> dict[str, Renamed]:
    """The older names that a section accepts, including those of its parents."""
    found: dict[str, Renamed] = {}
    for part in reversed(section.__mro__):
        found |= vars(part).get("renamed", {})
    return found


def with_current_names(
    section: type[BaseModel], values: Mapping[str, Any], prefix: str = "", warn: bool = True
) -> dict[str, Any]:
    """The `values` of a section and its subsections under the current names of their keys."""
    renamed = older_names(section)
    old = [key for key in values if key in renamed]
    result = {key: value for key, value in values.items() if key not in renamed}
    for key in old:
        change = renamed[key]
        if change.name in result:
            raise ConfigError(
                f"{prefix}{key}: this is an older name of '{change.name}', which is also given; "
                "remove the older one"
            )
        result[change.name] = change.value(values[key], result)
        if warn:
            warnings.warn(
                f"{prefix}{key} is called '{change.name}' now{change.meaning}; use the new name",
                RenamedKeyWarning,
                stacklevel=2,
            )
    for key, value in result.items():
        below = _section_below(section, key)
        if below is not None and isinstance(value, Mapping):
            result[key] = with_current_names(below, value, f"{prefix}{key}.", warn)
    return result


def with_current_path(
    section: type[BaseModel], path: list[str], value: Any, prefix: str = ""
) -> tuple[list[str], Any]:
    """One value of a section and its path, under the current names of the keys."""
    key, *rest = path
    if not rest:
        ((key, value),) = with_current_names(section, {key: value}, prefix).items()
        return [key], value
    below = _section_below(section, key)
    if below is None:
        return path, value
    rest, value = with_current_path(below, rest, value, f"{prefix}{key}.")
    return [key, *rest], value


def _section_below(section: type[BaseModel], key: str) -> type[BaseModel] | None:
    field = section.model_fields.get(key)
    return None if field is None else section_in(field.annotation)
