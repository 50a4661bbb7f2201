"""Environments by name: those that are registered, and classes or functions as `module:Name`."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from rl_training.envs.contract import FOREIGN_ERRORS
from rl_training.envs.mujoco_messages import warnings_of_mujoco
from rl_training.envs.one_of_many import OneOfMany, made_vectors, makes_many
from rl_training.envs.wrapping import wrapped
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.trust import WRAPPERS

Environment = str | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]]
"""An id, an instance that Gymnasium made, a class, or a function that makes one."""


STEPS = "max_episode_steps"
"""That Gymnasium takes beside an environment's own arguments."""


def made(env_id: str, env_kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """The environment as Gymnasium makes it, inside the wrappers that the arguments name, without
    anything of this package around it."""
    own = {key: value for key, value in env_kwargs.items() if key != WRAPPERS}
    maker = maker_named(env_id)
    if maker is not None and makes_many(maker):
        one = made_vectors(maker, env_id, 1, own)
        return wrapped(OneOfMany(one), env_kwargs.get(WRAPPERS) or ())
    made_of = env_id if maker is None else EnvSpec(env_id, entry_point=maker)
    with warnings_of_mujoco(env_id):
        env = gym.make(made_of, **own)
    return wrapped(env, env_kwargs.get(WRAPPERS) or ())


def maker_named(env_id: str) -> Callable[..., Any] | None:
    """The class or function that `module:Name` names; None for what is registered."""
    module, _, name = env_id.partition(":")
    parts = name.split(".")
    if not module or not all(part.isidentifier() for part in parts) or name in gym.registry:
        return None
    found: Any = importlib.import_module(module)
    if name in gym.registry:  # now
        return None
    for part in parts:
        found = getattr(found, part, None)
    return found if callable(found) else None


def holds_many(env_id: str) -> bool:
    """Whether what an id names makes many environments at once; what cannot be imported is
    reported when it is made."""
    try:
        maker = maker_named(env_id)
    except FOREIGN_ERRORS:
        return False
    return maker is not None and makes_many(maker)


KEEP_STATISTICS = (gym.wrappers.NormalizeObservation, gym.wrappers.NormalizeReward)


def warn_of_statistics(env: gym.Env[Any, Any], env_id: str) -> None:
    """Warn of wrappers that normalise by what they have seen."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, KEEP_STATISTICS):
            _warn_once(env_id, type(env).__name__)
        env = env.env


@cache
def _warn_once(env_id: str, wrapper: str) -> None:
    warnings.warn(
        f"env_id: '{env_id}' is wrapped in {wrapper}, whose statistics are not part of the policy: "
        "training and evaluation have their own, and predict and exports have none; remove it and "
        "let the algorithm normalise (algo_kwargs.normalize_observations)",
        stacklevel=2,
    )


def name_of(env: Any) -> tuple[str, dict[str, Any]]:
    """Id and arguments by which an instance, a class or a function that makes one is made again.

    An agent makes environments of its own, in other processes and after a resume, too.
    """
    prefix = (
        "env_id: give the id of an environment, such as 'Pendulum-v1', its class, a function that "
        "makes it, or a TrainConfig, "
    )
    spec = getattr(env, "spec", None)
    if isinstance(env, gym.Env) and spec is not None:
        known = gym.registry.get(spec.id)
        steps = spec.max_episode_steps
        longer = {} if known is None or known.max_episode_steps == steps else {STEPS: steps}
        around = [_recorded(wrapper, spec.id) for wrapper in spec.additional_wrappers]
        return spec.id, {**spec.kwargs, **longer, **({WRAPPERS: around} if around else {})}
    if isinstance(env, gym.Env):
        return _made_directly(env, prefix)
    if isinstance(env, gym.vector.VectorEnv):
        raise ConfigError(
            f"{prefix}not a {type(env).__name__}, which the agent cannot make again; give the "
            "function that makes it, with a parameter num_envs"
        )
    if not (inspect.isclass(env) or inspect.isfunction(env)):
        raise ConfigError(f"{prefix}not {type(env).__name__}")
    name, module = env.__qualname__, env.__module__
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f"env_id: '{name}' is inside a function, where other processes and resumed runs "
            "cannot find it; write it at the top of a module"
        )
    return f"{module}:{name}", {}


def _made_directly(env: gym.Env[Any, Any], prefix: str) -> tuple[str, dict[str, Any]]:
    """Of an instance that its class has made: known if the class takes no arguments or records
    them, as Gymnasium's wrappers do."""
    inner, around = env, list[dict[str, Any]]()
    while isinstance(inner, gym.Wrapper):
        kind = type(inner)
        place = f"{kind.__module__}:{kind.__qualname__}"
        spec = WrapperSpec(kind.__name__, place, _arguments(inner))
        around.insert(0, _recorded(spec, type(env.unwrapped).__name__))
        inner = inner.env
    arguments = _arguments(inner)
    if arguments is None and inspect.signature(type(inner)).parameters:
        raise ConfigError(
            f"{prefix}not a {type(inner).__name__}, which does not record the arguments that the "
            "agent would make it with again; give its class and env_kwargs"
        )
    name, _ = name_of(type(inner))
    return name, {**(arguments or {}), **({WRAPPERS: around} if around else {})}


def _arguments(env: gym.Env[Any, Any]) -> dict[str, Any] | None:
    """What an environment or wrapper was made with; None where it does not record that."""
    if not isinstance(env, gym.utils.RecordConstructorArgs):
        return None
    return {key: value for key, value in env._saved_kwargs.items() if key != "env"}


def _recorded(wrapper: WrapperSpec, env_id: str) -> dict[str, Any]:
    """A wrapper of an instance as the configuration writes it."""
    if wrapper.kwargs is None:
        raise ConfigError(
            f"env_id: the environment '{env_id}' is wrapped in {wrapper.name}, which does not "
            "record its arguments, and the agent makes environments of its own; give the "
            "environment without it, and the wrapper in wrappers=[...]"
        )
    return {"kind": wrapper.entry_point, "options": dict(wrapper.kwargs)}
