"""Making environments, and data in them with a given behaviour."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.data.env_contract import (
    CORRECT,
    FOREIGN_ERRORS,
    CheckedEnv,
    EnvContract,
    close_env,
    what_it_did,
)
from rl_training.data.global_random import seed_global_generators, untouched_randomness
from rl_training.data.spaces import Spaces
from rl_training.experiment.errors import (
    EnvironmentSetupError,
    MissingExtraError,
    RLTrainingError,
    did_you_mean,
)

Controller = Callable[[NDArray[Any], np.random.Generator], Any]
"""Observation and a random generator to an action in the environment's units."""

_EXTRAS = (
    # (word in gymnasium's message, package, extra)
    ("mujoco", "mujoco", "mujoco"),
    ("box2d", "box2d", "box2d"),
    ("ale", "ale-py", "atari"),
)


def make_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> gym.Env[Any, Any]:
    """A Gymnasium environment, or one sentence about why there is none."""
    if env_id.startswith("ALE/"):
        _register_atari(env_id)
    elif env_id.startswith("rl_training/"):
        importlib.import_module("rl_training.envs")  # registers them; layers above this one
    try:
        with warnings.catch_warnings(record=True) as caught:
            env = gym.make(env_id, **dict(env_kwargs or {}))
    except RLTrainingError:
        raise
    except gym.error.UnregisteredEnv:
        raise EnvironmentSetupError(
            f"env_id: unknown environment '{env_id}'{did_you_mean(env_id, gym.registry)}; "
            "import the package that registers it, written 'package:Name-v0', or correct the name"
        ) from None
    except ModuleNotFoundError as error:
        module = env_id.partition(":")[0]
        missing = error.__cause__ or error  # gymnasium raises it again, without the name
        if getattr(missing, "name", None) != module:  # something that the module itself imports
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
            f"env_kwargs: environment '{env_id}' does not accept {dict(env_kwargs)} "
            f"({_first_line(error)}); remove or correct the keys"
        ) from None
    except FOREIGN_ERRORS as error:
        raise EnvironmentSetupError(_failed(env_id, error)) from None
    for warning in caught:  # held back until now: a refusal is one sentence
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return env


def spaces_of(env: gym.Env[Any, Any], env_id: str) -> Spaces:
    """The spaces of an environment, or a sentence about why they are none of ours."""
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
    """Spaces of an environment that is made and closed for the purpose."""
    env = make_env(env_id, env_kwargs)
    try:
        return spaces_of(env, env_id)
    finally:
        close_env(env)


def uniform_controller(spaces: Spaces) -> Controller:
    """Actions drawn uniformly from the action space."""
    if spaces.is_discrete:
        first, last = spaces.action_start, spaces.action_start + spaces.action_dim
        return lambda _, generator: int(generator.integers(first, last))
    low, high = np.asarray(spaces.action_low), np.asarray(spaces.action_high)
    return lambda _, generator: generator.uniform(low, high).astype(np.float32)


def roll_out(
    env: gym.Env[Any, Any],
    controller: Controller,
    *,
    seed: int,
    first_episode: int = 0,
    episodes: int | None = None,
    steps: int | None = None,
    max_steps: int | None = None,
    on_step: Callable[[float, bool], None] | None = None,
    on_reset: Callable[[], None] | None = None,
) -> dict[str, NDArray[Any]]:
    """Arrays of a number of whole `episodes`, or of exactly `steps` steps.

    Episode i is decided by (seed, i) alone, whatever came before it, so that a data set
    with more episodes begins with the same ones. An episode that `steps` interrupts is
    left open, for `build_dataset` to close; one of `max_steps` steps is cut there, as by a
    time limit. `on_step` gets each reward, and whether the episode ended with it; `on_reset`
    is called at the beginning of each.
    """
    if (episodes is None) == (steps is None):
        raise ValueError("give either episodes or steps")
    observations: list[Any] = []
    actions: list[Any] = []
    rewards: list[float] = []
    following: list[Any] = []
    terminations: list[bool] = []
    truncations: list[bool] = []
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    checked = CheckedEnv(env, name, EnvContract(spaces_of(env, name)))
    index, last = first_episode, first_episode + (episodes or 0)
    with untouched_randomness():
        while len(rewards) < steps if steps is not None else index < last:
            env_seed, controller_seed = np.random.SeedSequence([seed, index]).generate_state(2)
            generator = np.random.default_rng(int(controller_seed))
            seed_global_generators(int(env_seed))
            observation = checked.reset(int(env_seed), f"episode {index} of the data")
            if on_reset is not None:
                on_reset()
            done = False
            while not done and (steps is None or len(rewards) < steps):
                action = controller(observation, generator)
                successor, reward, terminated, truncated = checked.step(action)
                observations.append(np.array(observation, dtype=np.float32))
                actions.append(action)
                rewards.append(float(reward))
                following.append(np.array(successor, dtype=np.float32))
                cut = bool(truncated) or checked.length == max_steps
                terminations.append(bool(terminated))
                truncations.append(cut and not terminated)
                observation, done = successor, bool(terminated) or cut
                if on_step is not None:
                    on_step(rewards[-1], done)
            index += 1
    return {
        "observations": np.stack(observations),
        "actions": np.asarray(actions),
        "rewards": np.asarray(rewards, dtype=np.float32),
        "next_observations": np.stack(following),
        "terminations": np.asarray(terminations, dtype=np.bool_),
        "truncations": np.asarray(truncations, dtype=np.bool_),
    }


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
