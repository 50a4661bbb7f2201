"""Observations of several parts, choices and tables as vectors, by a layout that is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as kinds
from numpy.typing import NDArray

from rl_training.envs.layout import Layout, Part, Path
from rl_training.envs.masks import KEY
from rl_training.envs.packed import PackedObservation, frame_space
from rl_training.envs.spaces import image_shape
from rl_training.experiment.errors import EnvironmentSetupError

EMBEDDING = "choice_embedding"
"""Key of `env_kwargs` that the package reads itself: the width of learned vectors for choices."""
MOST_EMBEDDED = 4_096


def with_parts_as_vector(
    env: gym.Env[Any, Any], env_id: str, embedding: Any = None
) -> gym.Env[Any, Any]:
    """The environment, with vectors as observations where they are no vectors or images.

    With an `embedding`, networks learn vectors of that width for its choices.
    """
    made = _with_parts_as_vector(env, env_id)
    if embedding is None:
        return made
    if type(embedding) is not int or not 1 <= embedding <= MOST_EMBEDDED:
        raise EnvironmentSetupError(
            f"env_kwargs.{EMBEDDING}: expected a whole number from 1 to {MOST_EMBEDDED}, got "
            f"{embedding!r}"
        )
    layout = made.observation_layout if isinstance(made, VectorObservation) else Layout(())
    if not any(part.choices for part in layout.parts):
        raise EnvironmentSetupError(
            f"env_kwargs.{EMBEDDING}: the observations of '{env_id}' are not vectors with choices "
            "among them; remove this key"
        )
    assert isinstance(made, VectorObservation)
    made.observation_layout = layout.embedded(embedding)
    return made


def _with_parts_as_vector(env: gym.Env[Any, Any], env_id: str) -> gym.Env[Any, Any]:
    seen = getattr(env, "observation_space", None)
    if not isinstance(seen, gym.Space):
        return env  # refused when its spaces are read
    flat = isinstance(seen, kinds.Box) and len(seen.shape) == 1
    masked = isinstance(seen, kinds.Dict) and set(seen) == {"observation", KEY}
    if flat or (masked and isinstance(env.action_space, kinds.Discrete)):
        return env
    stack = _frames(env)
    if isinstance(seen, kinds.Box) and image_shape(seen, stack):
        return env
    try:
        frame = frame_space(env, stack)
        found = list(_parts(frame, ()))
        parts = tuple(part for part, _, _ in found)
        images = [part.name for part in parts if part.pixels]
        if len(images) > 1:
            raise EnvironmentSetupError(
                f"observation space with {len(images)} images, {' and '.join(images)}, is not "
                "supported: expected one beside other parts; wrap the environment"
            )
    except EnvironmentSetupError as error:
        raise EnvironmentSetupError(f"env_id: '{env_id}': {error}") from None
    if images:
        return PackedObservation(env, env_id, parts, _bounds(found), stack)
    return VectorObservation(env, env_id)


def _frames(env: gym.Env[Any, Any]) -> int:
    try:
        return int(env.get_wrapper_attr("stack_size"))
    except AttributeError:
        return 1


def _parts(space: gym.Space[Any], path: Path) -> Iterator[tuple[Part, Any, Any]]:
    """Each part of a space, with the bounds of its numbers."""
    where = ".".join(map(str, path)) or "observation"
    if isinstance(space, kinds.Dict):
        for name, inner in space.spaces.items():
            yield from _parts(inner, (*path, name))
    elif isinstance(space, kinds.Tuple):
        for i, inner in enumerate(space.spaces):
            yield from _parts(inner, (*path, i))
    elif isinstance(space, kinds.Discrete):
        count, start = int(space.n), int(space.start)
        yield Part(path, (), (count,), (start,)), np.zeros(count), np.ones(count)
    elif isinstance(space, kinds.MultiDiscrete):
        counts = tuple(int(n) for n in np.asarray(space.nvec).reshape(-1))
        starts = tuple(int(n) for n in np.asarray(space.start).reshape(-1))
        total = sum(counts)
        yield Part(path, space.nvec.shape, counts, starts), np.zeros(total), np.ones(total)
    elif isinstance(space, kinds.MultiBinary):
        total = int(np.prod(space.shape))
        yield Part(path, tuple(space.shape)), np.zeros(total), np.ones(total)
    elif path and image_shape(space, 1):
        yield Part(path, pixels=image_shape(space, 1)), np.zeros(0), np.zeros(0)
    elif isinstance(space, kinds.Box):
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        yield Part(path, tuple(space.shape)), low, high
    else:
        raise EnvironmentSetupError(
            f"observation space {space} of '{where}' is not supported: expected Box, Discrete, "
            "MultiDiscrete or MultiBinary, alone or in Dict and Tuple; wrap the environment"
        )


def _bounds(found: list[tuple[Part, Any, Any]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Of all numbers of what `_parts` gave, in their order."""
    low, high = (np.concatenate([part[side] for part in found]) for side in (1, 2))
    with np.errstate(over="ignore"):
        return low.astype(np.float32), high.astype(np.float32)


class VectorObservation(gym.ObservationWrapper[NDArray[np.float32], Any, Any]):
    """Observations as vectors; choices are one-hot."""

    def __init__(self, env: gym.Env[Any, Any], env_id: str) -> None:
        super().__init__(env)
        found = list(_parts(env.observation_space, ()))
        self.observation_layout = Layout(tuple(part for part, _, _ in found))
        self.observation_space = kinds.Box(*_bounds(found), dtype=np.float32)
        self.asked = f"env_id: environment '{env_id}'"

    def observation(self, observation: Any) -> NDArray[np.float32]:
        return self.observation_layout.vector(observation, self.asked)
