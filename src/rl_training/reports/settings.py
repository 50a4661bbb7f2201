"""What a run was configured with: where that differs from the defaults, and how to run it again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.config_files import packaged_config, parse_yaml
from rl_training.experiment.errors import RLTrainingError

ONLY_WHERE = ("output_dir", "run_name", "report")
"""Keys that say where a run is kept, not what it does."""


@dataclass(frozen=True)
class Difference:
    """A key whose value is not its default; the default is None where it is not known."""

    key: str
    value: str
    default: str | None


def known_config(values: dict[str, Any]) -> TrainConfig | None:
    """The config of a run; None if this installation cannot read it."""
    try:
        return TrainConfig.stored(values)
    except (RLTrainingError, TypeError, ValueError):
        return None


def differences(values: dict[str, Any]) -> list[Difference]:
    """All keys of a run that differ from their defaults; every key if those are not known."""
    config = known_config(values)
    if config is not None:
        return list(_differing(config, ""))
    return [Difference(key, _plain(value), None) for key, value in values.items()]


def _differing(section: BaseModel, prefix: str) -> Iterator[Difference]:
    for name, field in type(section).model_fields.items():
        value = section.params if name == "algo_kwargs" else getattr(section, name)  # type: ignore[attr-defined]
        default = field.get_default(call_default_factory=True)
        if prefix + name in ONLY_WHERE or value == default:
            continue
        inner = list(_differing(value, f"{prefix}{name}.")) if isinstance(value, BaseModel) else []
        if inner:
            yield from inner
        else:  # also a section that is there, with the defaults of all its keys
            known = None if field.is_required() else _plain(default)
            yield Difference(prefix + name, _plain(value), known)


def _plain(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=_as_values, ensure_ascii=False)


def _as_values(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def _given(value: Any) -> str:
    """A value for the command line; a word that can only be read as one needs no quotes."""
    word = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./:-]*", value) is not None
    if word and parse_yaml(value, "a word") == value:
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def overrides(config: TrainConfig) -> list[str] | None:
    """The `key=value` texts that make the packaged default of its algorithm this config; None
    where there is no such default."""
    if packaged_config(config.algo) is None:
        return None
    base, own = load_config(config.algo).to_dict(), config.to_dict()
    texts = []
    for key, value in own.items():
        if key in ONLY_WHERE or value == base[key]:
            continue
        if key == "algo_kwargs":
            texts += [
                f"{key}.{name}={_given(knob)}"
                for name, knob in value.items()
                if knob != base[key].get(name)
            ]
        elif key == "dataset" and config.dataset is not None:
            section = config.dataset.model_dump(mode="json", exclude_defaults=True)
            texts.append(f"{key}={json.dumps(section, ensure_ascii=False)}")
        else:
            texts.append(f"{key}={_given(value)}")
    return texts
