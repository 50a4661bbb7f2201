"""Makes environments; a failure is reported in one sentence."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from rl_training.envs.contract import (
    CORRECT,
    FOREIGN_ERRORS,
    close_env,
    what_it_did,
)
from rl_training.envs.flat_actions import BOUNDS, with_flat_actions
from rl_training.envs.masks import with_masks, with_masks_apart
from rl_training.envs.named import made, warn_of_statistics
from rl_training.envs.packed import PackedObservation
from rl_training.envs.parts import EMBEDDING, with_parts_as_vector
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import (
    EnvironmentSetupError,
    MissingExtraError,
    RLTrainingError,
    did_you_mean,
)

_EXTRAS = (
    # (word in gymnasium's message, package, extra)
    ("mujoco", "mujoco", "mujoco"),
    ("box2d", "box2d", "box2d"),
    ("ale", "ale-py", "atari"),
)


def make_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> gym.Env[Any, Any]:
    """Make a Gymnasium environment, or raise an error of one sentence."""
    env_kwargs = dict(env_kwargs or {})
    bounds, embedding = (env_kwargs.pop(key, None) for key in (BOUNDS, EMBEDDING))
    if env_id.startswith("ALE/"):
        _register_atari(env_id)
    try:
        with warnings.catch_warnings(record=True) as caught:
            env = made(env_id, env_kwargs)
    except RLTrainingError:
        raise
    except gym.error.UnregisteredEnv:
        raise EnvironmentSetupError(
            f"env_id: unknown environment '{env_id}'{did_you_mean(env_id, gym.registry)}; "
            "import the package that registers it, written 'package:Name-v0', name its class as "
            "'package.module:Class', or correct the name"
        ) from None
    except ModuleNotFoundError as error:
        module = env_id.partition(":")[0]
        missing = error.__cause__ or error  # gymnasium re-raises it without the name
        if getattr(missing, "name", None) != module:  # an import inside the module failed
            raise EnvironmentSetupError(_failed(env_id, error)) from None
        raise EnvironmentSetupError(
            f"env_id: the module '{module}' of '{env_id}' is not found; install it, or name the "
            "folder that holds it, as in: PYTHONPATH=FOLDER rl-training ..."
        ) from None
    except gym.error.DependencyNotInstalled as error:
        text = str(error).lower()
        for word, package, extra in _EXTRAS:
            if word in text:
                raise MissingExtraError(package, extra, f"environment '{env_id}'") from None
        raise EnvironmentSetupError(_failed(env_id, error)) from None
    except TypeError as error:
        if not env_kwargs:
            raise EnvironmentSetupError(_failed(env_id, error)) from None
        raise EnvironmentSetupError(
            f"env_kwargs: environment '{env_id}' does not accept {env_kwargs} "
            f"({_first_line(error)}); remove or correct the keys"
        ) from None
    except FOREIGN_ERRORS as error:
        raise EnvironmentSetupError(_failed(env_id, error)) from None
    for warning in caught:  # shown only now, because an error is one sentence
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    warn_of_statistics(env, env_id)
    seen = with_parts_as_vector(with_masks_apart(env), env_id, embedding)
    env = with_flat_actions(seen, env_id, bounds)
    # bytes of an image cannot end with a mask
    return env if isinstance(seen, PackedObservation) else with_masks(env, env_id, env_kwargs)


def spaces_of(env: gym.Env[Any, Any], env_id: str) -> Spaces:
    """Return the spaces of an environment, or raise an error if they are not supported."""
    try:
        return Spaces.of(env)
    except EnvironmentSetupError as error:
        raise EnvironmentSetupError(f"env_id: '{env_id}': {error}") from None
    except FOREIGN_ERRORS as error:
        raise EnvironmentSetupError(
            f"env_id: environment '{env_id}' {what_it_did(error)} when asked for its spaces; "
            f"{CORRECT}"
        ) from error


def env_spaces(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> Spaces:
    """Return the spaces of an environment, which is made and closed for this purpose."""
    env = make_env(env_id, env_kwargs)
    try:
        return spaces_of(env, env_id)
    finally:
        close_env(env)


def _register_atari(env_id: str) -> None:
    try:
        gym.register_envs(importlib.import_module("ale_py"))
    except ImportError:
        raise MissingExtraError("ale-py", "atari", f"environment '{env_id}'") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _failed(env_id: str, error: BaseException) -> str:
    return (
        f"env_id: environment '{env_id}' cannot be made: {_first_line(error)}; "
        "correct env_id or env_kwargs, or install what it needs"
    )
