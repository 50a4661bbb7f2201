"""Configurations as text: YAML files, packaged ones by name, and `key=value` overrides.

This module handles plain values; `TrainConfig` checks their meaning.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rl_training.experiment.data_config import short_form
from rl_training.experiment.errors import ConfigError, did_you_mean
from rl_training.experiment.registry import algorithm_names

LARGEST_CONFIG = 100_000
"""Maximum number of values in a config file, with anchors expanded."""
DEFAULT_CONFIG = "default"
"""Name of each algorithm's packaged config that keeps all default knobs."""
PACKAGED_CONFIGS = Path(__file__).resolve().parent.parent / "assets" / "configs"


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads `3e-4` as a number, as in YAML 1.2, and refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key '{key.value}' occurs twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def compose_document(self) -> Any:
        """Refuses anchors that expand to huge or recursive values."""
        root = super().compose_document()
        _count_nodes(root, {})
        return root

    def refuse_tag(self, node: Any) -> Any:
        kind = node.tag.rpartition(":")[2]
        raise yaml.constructor.ConstructorError(
            None, None, f"values of the kind '{kind}' are not known here", node.start_mark
        )


for _kind in ("binary", "omap", "pairs", "set"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.refuse_tag)


def _count_nodes(node: Any, counts: dict[int, int]) -> int:
    """Number of values below a node; an anchor counts once per reference."""
    known = counts.get(id(node))
    if known is not None:
        if known == 0:
            raise yaml.composer.ComposerError(
                None, None, "an anchor refers to a value that holds itself", node.start_mark
            )
        return known
    counts[id(node)] = 0
    below = node.value if isinstance(node, (yaml.SequenceNode, yaml.MappingNode)) else ()
    parts = [part for item in below for part in (item if isinstance(item, tuple) else (item,))]
    total = 1 + sum(_count_nodes(part, counts) for part in parts)
    if total > LARGEST_CONFIG:
        raise yaml.composer.ComposerError(
            None, None, f"it holds more than {LARGEST_CONFIG:,} values", node.start_mark
        )
    counts[id(node)] = total
    return total


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, label: str) -> Any:
    """Parse YAML text to plain values without constructors; messages call it `label`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or (str(error).splitlines() or [""])[0]
        why = f": {reason}" if reason else ""
        raise ConfigError(f"{label} is not valid YAML{where}{why}") from None


def read_yaml_file(path: Path) -> dict[str, Any]:
    """The `key: value` lines of a config file."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"), f"config '{path}'")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"config '{path}' cannot be read: {reason}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"config '{path}' must hold 'key: value' lines, e.g. 'seed: 3'")
    return values


def packaged_config_names() -> list[str]:
    """Names such as `awr/pendulum`."""
    found = PACKAGED_CONFIGS.glob("*/*.yaml")
    return sorted(path.relative_to(PACKAGED_CONFIGS).with_suffix("").as_posix() for path in found)


def packaged_config(source: str) -> Path | None:
    """The file of a packaged config; its name is case-insensitive, and `sac` is
    `sac/default`."""
    name = source.lower().replace("-", "_")
    for candidate in (name, f"{name}/{DEFAULT_CONFIG}"):
        if candidate in packaged_config_names():
            return PACKAGED_CONFIGS / f"{candidate}.yaml"
    return None


def read_config_values(source: str | Path) -> dict[str, Any]:
    """The values of a packaged config (by name) or of a YAML file (by path)."""
    path = Path(source)
    chosen = path if path.is_file() else packaged_config(str(source))
    if chosen is None and str(source) in algorithm_names():
        return {"algo": str(source)}  # a plugin, which has no packaged configs
    if chosen is None:
        names = packaged_config_names()
        known = {*names, *(name.partition("/")[0] for name in names)}
        raise ConfigError(
            f"config '{source}' is neither a file nor a packaged config"
            f"{did_you_mean(str(source).lower(), known)}; "
            "'rl-training list' shows the packaged ones"
        )
    return read_yaml_file(chosen)


def parse_override(text: str) -> tuple[list[str], Any]:
    """Split `algo_kwargs.temperature=0.5` into a key path and a YAML value."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"override '{text}' must have the form key=value")
    return key.strip().split("."), parse_yaml(value, f"override '{text}': the value")


def apply_overrides(
    values: Mapping[str, Any],
    overrides: Sequence[str],
    current: Callable[[list[str], Any], tuple[list[str], Any]] | None = None,
) -> dict[str, Any]:
    """Copy `values` and set each `key.path=value` in it, under its `current` name. The short form
    of a data set is written in full, so that its keys can be set."""
    result: dict[str, Any] = copy.deepcopy(dict(values))
    _expand_data(result)
    for text in overrides:
        path, value = parse_override(text)
        if current is not None:
            path, value = current(path, value)
        node = result
        for depth, part in enumerate(path[:-1]):
            child = node.get(part)
            if child is None:
                child = node[part] = {}
            if not isinstance(child, dict):
                raise ConfigError(
                    f"override '{text}': '{'.'.join(path[: depth + 1])}' has no keys below it"
                )
            node = child
        node[path[-1]] = value
        _expand_data(result)
    return result


def _expand_data(values: dict[str, Any]) -> None:
    if isinstance(values.get("dataset"), str):
        values["dataset"] = short_form(values["dataset"])
