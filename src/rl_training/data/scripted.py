"""Data sets made on the spot by small controllers, reproducible from a seed, and cached."""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import ARRAY_NAMES
from rl_training.envs.contract import close_env
from rl_training.envs.episodes import Controller, roll_out, uniform_controller
from rl_training.envs.make import make_env
from rl_training.envs.spaces import Spaces
from rl_training.experiment.data_config import SCRIPTED_TASKS
from rl_training.experiment.errors import DataError
from rl_training.experiment.files import draft_of
from rl_training.experiment.storage import cache_folder

RECIPE_VERSION = 1
"""Increase it with every change below that changes the data, so that caches expire."""


@dataclass(frozen=True)
class Segment:
    """Episodes first .. first + count - 1 of a behaviour."""

    behaviour: str  # a name in CONTROLLERS, or "random"
    first: int
    count: int


@dataclass(frozen=True)
class Recipe:
    env_id: str
    segments: tuple[Segment, ...]


_PENDULUM = (Segment("pendulum-swing-up", 0, 100), Segment("random", 100, 100))
# Random episodes last about 22 steps against 500: this many give half of the rows each.
_CARTPOLE = (Segment("cartpole-balance", 0, 50), Segment("random", 50, 1000))

_SPARSE_PENDULUM = (Segment("pendulum-clumsy", 0, 30),)

_FIXED_CARTPOLE = (Segment("cartpole-balance", 0, 20), Segment("random", 20, 20))
_FIXED_CARTPOLE_LEFT = (Segment("cartpole-balance-left", 0, 20),)

_SEGMENTS = {
    "pendulum-mixed": _PENDULUM,
    "pendulum-expert": _PENDULUM[:1],
    "pendulum-random": _PENDULUM[1:],
    "sparse-pendulum-clumsy": _SPARSE_PENDULUM,
    "fixed-cartpole-expert": _FIXED_CARTPOLE[:1],
    "fixed-cartpole-left": _FIXED_CARTPOLE_LEFT,
    "fixed-cartpole-random": _FIXED_CARTPOLE[1:],
    "cartpole-mixed": _CARTPOLE,
    "cartpole-expert": _CARTPOLE[:1],
    "cartpole-random": _CARTPOLE[1:],
}
SCRIPTED = {name: Recipe(env_id, _SEGMENTS[name]) for name, env_id in SCRIPTED_TASKS.items()}
"""Scripted data sets by name; the halves of a mixed one are its very episodes."""


def pendulum_swing_up(observation: NDArray[Any], _: np.random.Generator) -> NDArray[np.float32]:
    """Pump energy until it suffices for standing upright, then hold with a linear law.

    The angle is 0 upright and obeys angle'' = 15 sin(angle) + 3 torque, so the energy
    speed^2 / 2 + 15 (cos(angle) - 1) is 0 upright at rest and changes by 3 torque speed:
    torque along the speed adds energy, against it takes energy away.
    """
    cosine, sine, speed = (float(x) for x in observation)
    angle = math.atan2(sine, cosine)
    hold = -(8.0 * angle + 2.0 * speed)
    # Holding works from a little outside the torque limit on, where the swing arrives.
    if cosine > 0.5 and abs(hold) < 4.0:
        torque = hold
    else:
        energy = 0.5 * speed * speed + 15.0 * (cosine - 1.0)
        torque = (0.5 - energy) * (1.0 if speed >= 0.0 else -1.0)
    return np.array([min(max(torque, -2.0), 2.0)], dtype=np.float32)


def pendulum_clumsy(
    observation: NDArray[Any], generator: np.random.Generator
) -> NDArray[np.float32]:
    """The swing-up with 45 % of its torques at random: it arrives late, and falls over again."""
    if generator.random() < 0.45:
        return generator.uniform(-2.0, 2.0, 1).astype(np.float32)
    return pendulum_swing_up(observation, generator)


def cartpole_balance(observation: NDArray[Any], _: np.random.Generator) -> int:
    """Push towards the side to which pole and cart together are about to fall."""
    position, velocity, angle, angular_velocity = (float(x) for x in observation)
    return int(0.1 * position + 0.3 * velocity + angle + 0.3 * angular_velocity > 0.0)


LEFT_EDGE = -1.8
"""Where the cart is kept at the left edge of CartPole's bounds, which are at 2.4."""


def cartpole_balance_left(observation: NDArray[Any], generator: np.random.Generator) -> int:
    """The same law around a place near the left bound."""
    shifted = np.array(observation, np.float64)
    # twice as keen on its place, but from afar it would lean over too much
    shifted[0] = np.clip(2.0 * (shifted[0] - LEFT_EDGE), -1.5, 1.5)
    return cartpole_balance(shifted, generator)


CONTROLLERS: dict[str, Controller] = {
    "pendulum-swing-up": pendulum_swing_up,
    "pendulum-clumsy": pendulum_clumsy,
    "cartpole-balance": cartpole_balance,
    "cartpole-balance-left": cartpole_balance_left,
}


def recipe_for(name: str, env_id: str | None = None) -> Recipe:
    """The recipe of a scripted data set, made for `env_id` where one is given."""
    recipe = SCRIPTED[name]
    if env_id is not None and env_id != recipe.env_id:
        fitting = [known for known, other in SCRIPTED.items() if other.env_id == env_id]
        others = f"use {' or '.join(fitting)}, or " if fitting else ""
        raise DataError(
            f"dataset.name: scripted data set '{name}' is made in {recipe.env_id}, not in "
            f"{env_id}; {others}set env_id to {recipe.env_id}"
        )
    return recipe


def scripted_arrays(name: str, seed: int) -> dict[str, NDArray[Any]]:
    """The arrays of a scripted data set, from the cache if it holds them intact."""
    folder = cache_folder()
    if folder is None:
        return _generate(recipe_for(name), seed)
    path = folder / f"{name}-seed{seed}-recipe{RECIPE_VERSION}-gymnasium{gym.__version__}.npz"
    arrays = _read_cache(path)
    if arrays is None:
        arrays = _generate(recipe_for(name), seed)
        _write_cache(path, arrays)
    return arrays


def _generate(recipe: Recipe, seed: int) -> dict[str, NDArray[Any]]:
    env = make_env(recipe.env_id)
    try:
        spaces = Spaces.from_gymnasium(env.observation_space, env.action_space)
        segments = [
            roll_out(
                env,
                CONTROLLERS.get(segment.behaviour) or uniform_controller(spaces),
                seed=seed,
                first_episode=segment.first,
                episodes=segment.count,
            )
            for segment in recipe.segments
        ]
    finally:
        close_env(env)
    return {name: np.concatenate([part[name] for part in segments]) for name in ARRAY_NAMES}


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in ARRAY_NAMES:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


def _read_cache(path: Path) -> dict[str, NDArray[Any]] | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in ARRAY_NAMES}
            sound = str(stored["digest"]) == _digest(arrays)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    return arrays if sound else None


def _write_cache(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    stored: dict[str, Any] = {**arrays, "digest": np.array(_digest(arrays))}
    try:
        with draft_of(path) as draft:
            np.savez(draft, **stored)
    except OSError:
        pass  # a cache only saves time: a full or read-only disk must not stop a run
