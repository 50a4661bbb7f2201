"""Wrappers that a configuration names, around every environment of a run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from rl_training.envs.contract import FOREIGN_ERRORS, close_env
from rl_training.experiment.errors import EnvironmentSetupError, describe_exception
from rl_training.experiment.trust import WRAPPERS


def wrapped(env: gym.Env[Any, Any], wrappers: Sequence[Mapping[str, Any]]) -> gym.Env[Any, Any]:
    """The environment inside all wrappers, the first of which is the innermost."""
    for number, wrapper in enumerate(wrappers):
        key, kind = f"{WRAPPERS}.{number}", str(wrapper["kind"])
        options = dict(wrapper.get("options") or {})
        try:
            env = _around(env, _class(kind, key), options, key)
        except BaseException:
            close_env(env)
            raise
    return env


def _around(
    env: gym.Env[Any, Any], maker: Any, options: Mapping[str, Any], key: str
) -> gym.Env[Any, Any]:
    name = getattr(maker, "__name__", repr(maker))
    try:
        made: Any = maker(env, **options)
    except FOREIGN_ERRORS as error:
        given = f" with {dict(options)}" if options else ""
        raise EnvironmentSetupError(
            f"{key}: {name} cannot be put around the environment{given} "
            f"({describe_exception(error)}); correct its options, or remove it"
        ) from None
    if not isinstance(made, gym.Env):
        raise EnvironmentSetupError(
            f"{key}: {name} gave {type(made).__name__}, expected a gymnasium.Env; give a subclass "
            "of gymnasium.Wrapper, or a function that returns one"
        )
    return made


def _class(kind: str, key: str) -> Any:
    module, _, name = kind.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except FOREIGN_ERRORS as error:  # importing a module may raise anything
        raise EnvironmentSetupError(
            f"{key}: '{kind}' cannot be imported ({describe_exception(error)}); expected "
            "package.module:Class, installed or in a folder of PYTHONPATH"
        ) from None
    if not callable(found):
        raise EnvironmentSetupError(
            f"{key}: '{kind}' is not a class; expected package.module:Class"
        )
    return found
