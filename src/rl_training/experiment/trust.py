"""Which modules a file may name, because importing a module runs its code.

A configuration that the user passes may name any module. A checkpoint, a run folder or a data
set may be untrusted, so modules outside known packages need the user's consent.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rl_training.experiment.errors import ConfigError

KNOWN_PACKAGES = frozenset(
    {
        "ale_py",
        "dm_control",
        "gymnasium",
        "gymnasium_robotics",
        "highway_env",
        "metaworld",
        "minari",
        "minigrid",
        "miniworld",
        "mo_gymnasium",
        "mujoco",
        "rl_training",
    }
)
"""Packages of environments, whose import only registers them."""

_NAMES_A_MODULE = re.compile(r"([A-Za-z_][\w.]*):(?![/\\])")


WRAPPERS = "wrappers"
"""Key of the wrappers of environments; beside their arguments, too, where both are passed on."""
MAY_NAME_MODULES = (
    "env_id",
    "env_kwargs",
    "train_env_kwargs",
    WRAPPERS,
    "algo_kwargs",
    "loggers",
)
"""Keys of a configuration whose values a run imports."""


def modules_named(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (key, module) for every "module:name" that a run would import."""
    return [
        (key, module)
        for section in MAY_NAME_MODULES
        for key, module in _named_in(section, config.get(section))
    ]


def _named_in(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _named_in(f"{key}.{name}", below)
    elif isinstance(value, (list, tuple)):
        for below in value:
            yield from _named_in(key, below)
    elif isinstance(value, str) and (match := _NAMES_A_MODULE.match(value)):
        yield key, match[1]


def is_known_package(module: str) -> bool:
    """Whether a module belongs to one of the known packages."""
    return module.partition(".")[0] in KNOWN_PACKAGES


def may_be_imported(module: str) -> bool:
    """Whether a file may name this module: it is in a known package or already imported.

    The standard library is excluded: it has no environments, and its functions can do anything.
    """
    if module.partition(".")[0] in sys.stdlib_module_names:
        return False
    return is_known_package(module) or module in sys.modules


def needs_trust(config: Mapping[str, Any]) -> bool:
    """Whether a new process would need the user's consent for this config read from a file."""
    return not all(is_known_package(module) for _, module in modules_named(config))


def refuse_unknown_modules(
    config: Mapping[str, Any], source: str, *, only_networks: bool = False
) -> None:
    """Raise an error if a config from the file `source` would import unknown modules.

    `only_networks` looks at the factories of networks alone, which an agent cannot do without.
    """
    for key, module in modules_named(config):
        if only_networks and not key.endswith(".networks"):
            continue
        if not may_be_imported(module):
            raise ConfigError(
                f"{source}: {key} names the module '{module}', which is not a known package "
                "and was not imported, because that runs its code; if you trust "
                "it, pass --trust (in Python trust=True, or import the module first)"
            )
