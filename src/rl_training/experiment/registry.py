"""Algorithms by name.

This layer names and imports no algorithm. The package registers its own when it is imported
(`rl_training/__init__.py`), installed distributions register theirs as entry points of the
group `rl_training.algorithms`, and programs call `register`. A class is imported on first use.
"""

from __future__ import annotations

import importlib
import re
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rl_training.experiment.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rl_training.algorithms"
"""Entry points of installed distributions, as `name = "package.module:Class"`."""

DECLARED = ("Params", "loop", "paper", "summary")
"""Attributes that every algorithm's class must declare."""

TARGETS: dict[str, str] = {}
"""Every registered name and its "package.module:Class"; `register` adds to it."""


def algorithm_names() -> tuple[str, ...]:
    """The registered names in their order; plugins come last."""
    _enter_plugins()
    return tuple(TARGETS)


def algorithm_class(name: str) -> Any:
    """The algorithm class registered as `name`.

    Typed `Any`, because this layer is below the algorithms and cannot import their base class.
    """
    if name not in TARGETS:
        _enter_plugins()
    if name not in TARGETS:
        raise ConfigError(
            f"algo: unknown algorithm '{name}'{did_you_mean(name, TARGETS)}; "
            f"known are {', '.join(TARGETS)}"
        )
    target = TARGETS[name]
    module_name, _, class_name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # third-party code may raise anything
        raise ConfigError(
            f"algo: '{name}' is registered as '{target}', which cannot be imported "
            f"({type(error).__name__}: {error}); install or repair the package that holds it"
        ) from error
    if not (isinstance(found, type) and hasattr(found, "check_config")):
        raise ConfigError(
            f"algo: '{name}' is registered as '{target}', which is not an algorithm; expected a "
            "subclass of rl_training.extend.Algorithm"
        )
    lacking = [attribute for attribute in DECLARED if not hasattr(found, attribute)]
    if lacking or not hasattr(getattr(found, "Params", None), "model_fields"):
        raise ConfigError(
            f"algo: {target} has no '{(lacking or ['Params'])[0]}'; declare "
            f"{', '.join(DECLARED)}, with Params as a subclass of rl_training.extend.Params"
        )
    return found


def working_algorithms() -> dict[str, Any]:
    """Every class that can be imported, by name; broken plugins are skipped."""
    found = {}
    for name in algorithm_names():
        with suppress(ConfigError):
            found[name] = algorithm_class(name)
    return found


def register(name: str, target: str | type) -> None:
    """Register a third-party algorithm as `name` in this process.

    `target` is the class, or "package.module:Class", which is imported on first use.
    """
    if isinstance(target, type):
        target = f"{target.__module__}:{target.__qualname__}"
    if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
        raise ConfigError(
            f"register: the name {name!r} must be a word of lower-case letters, digits and _, as "
            "it stands in configs"
        )
    module_name, _, class_name = str(target).partition(":")
    if not (module_name and class_name.isidentifier()):
        raise ConfigError(
            f"register: target '{target}' must have the form 'package.module:Class', so that "
            "other processes find the class as well"
        )
    if TARGETS.get(name, target) != target:
        raise ConfigError(f"register: '{name}' is already registered as {TARGETS[name]}")
    TARGETS[name] = target


def _enter_plugins() -> None:
    """Register the entry points of installed distributions; a taken name is left unchanged."""
    from importlib.metadata import entry_points  # slow to import and rarely needed

    for plugin in entry_points(group=GROUP):
        known = TARGETS.setdefault(plugin.name, plugin.value)
        if known != plugin.value:
            warnings.warn(
                f"the plugin '{plugin.name}' of {_distribution(plugin)} is left out: this name is "
                f"registered as {known} already",
                stacklevel=3,
            )


def _distribution(plugin: EntryPoint) -> str:
    return "an installed package" if plugin.dist is None else plugin.dist.name
