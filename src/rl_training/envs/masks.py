"""Action masks of environments, which the rest of the package sees as part of observations."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from rl_training.envs.contract import FOREIGN_ERRORS, MASK, WrongAnswerError, close_env
from rl_training.envs.named import made
from rl_training.envs.spaces import Spaces, image_shape
from rl_training.experiment.errors import DataError, EnvironmentSetupError

KEY = MASK
"""Of the mask in `info`, or beside other parts in Dict observations."""


def with_masks_apart(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """The environment, with masks in `info` where they stand beside several or other parts of Dict
    observations than one vector, which `with_masks` takes as it is."""
    seen = getattr(env, "observation_space", None)
    if not (isinstance(seen, Dict) and KEY in seen.spaces and len(seen) > 1):
        return env
    beside = seen["observation"] if set(seen) == {"observation", KEY} else None
    vector = isinstance(beside, Box) and (len(beside.shape) == 1 or bool(image_shape(beside, 1)))
    return env if vector or not isinstance(env.action_space, Discrete) else MaskInInfo(env)


def with_masks(
    env: gym.Env[Any, Any], env_id: str, env_kwargs: Mapping[str, Any] | None
) -> gym.Env[Any, Any]:
    """The environment, with its masks as the last components of its observations if it has any.

    It has them where observations are a Dict of `observation` and `action_mask`, or where `info`
    of a reset holds `action_mask`; for the latter another instance is reset, once per process.
    """
    if not isinstance(env.action_space, Discrete):
        return env
    seen = env.observation_space
    if isinstance(seen, Dict) and set(seen) == {"observation", KEY}:
        return MaskInObservation(env, env_id)
    if not isinstance(seen, Box) or len(seen.shape) != 1:
        return env  # a mask in `info` is refused when it is seen
    if _has(env, MaskInInfo):
        return MaskInObservation(env, env_id)
    given = tuple(sorted((key, repr(value)) for key, value in (env_kwargs or {}).items()))
    _Probe.kwargs = dict(env_kwargs or {})
    return MaskInObservation(env, env_id) if _says_masks(env_id, given) else env


class _Probe:
    """The arguments of the environment that `_says_masks` is asked about: its cache is by their
    text, because they need not be hashable."""

    kwargs: Mapping[str, Any] = {}


@cache
def _says_masks(env_id: str, given: tuple[tuple[str, str], ...]) -> bool:
    # an environment that draws from the process' own generators must not notice
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        with suppress(*FOREIGN_ERRORS):  # reported when the environment itself is used
            env = made(env_id, _Probe.kwargs)
            try:
                return KEY in env.reset(seed=0)[1]
            finally:
                close_env(env)
        return False
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _has(env: gym.Env[Any, Any], wrapper: type[gym.Wrapper[Any, Any, Any, Any]]) -> bool:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, wrapper):
            return True
        env = env.env
    return False


class MaskInInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Dict observations without their mask, which is in `info`."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, Dict)
        seen = without_mask(env.observation_space.spaces)
        self.observation_space = Dict(seen) if isinstance(seen, dict) else seen

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self._apart(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        seen, info = self._apart(obs, info)
        return seen, reward, terminated, truncated, info

    def _apart(self, obs: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return without_mask(obs), {**info, KEY: obs[KEY]}


def without_mask(observation: Mapping[str, Any]) -> Any:
    """The other parts of an observation with a mask, or the only other one."""
    others = {name: part for name, part in observation.items() if name != KEY}
    return others["observation"] if set(others) == {"observation"} else others


class MaskInObservation(gym.Wrapper[NDArray[np.float32], Any, Any, Any]):
    """Observations that end with the mask: 1 for each action that is allowed, else 0."""

    has_action_mask = True

    def __init__(self, env: gym.Env[Any, Any], env_id: str) -> None:
        super().__init__(env)
        seen = env.observation_space
        self.in_observation = isinstance(seen, Dict)
        box = seen["observation"] if isinstance(seen, Dict) else seen
        if not isinstance(box, Box) or len(box.shape) != 1:
            raise EnvironmentSetupError(
                f"env_id: '{env_id}' has action masks beside observations {box}; expected a flat "
                "Box of shape (n,), so wrap the environment"
            )
        assert isinstance(env.action_space, Discrete)
        self.num_actions = int(env.action_space.n)
        low, high = np.zeros(self.num_actions), np.ones(self.num_actions)
        self.observation_space = Box(
            np.concatenate([box.low, low]).astype(np.float32),
            np.concatenate([box.high, high]).astype(np.float32),
            dtype=np.float32,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._joined(obs, info, ended=False), info

    def step(self, action: Any) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._joined(obs, info, terminated), reward, terminated, truncated, info

    def _joined(self, obs: Any, info: Mapping[str, Any], ended: bool) -> NDArray[np.float32]:
        mask = obs[KEY] if self.in_observation else info.get(KEY)
        seen = obs["observation"] if self.in_observation else obs
        if ended:  # nothing is done after it, and many environments then allow nothing
            mask = np.ones(self.num_actions)
        if mask is None:
            raise WrongAnswerError(
                f"gave info['{KEY}'] at a reset but not at every step, expected it always"
            )
        flags = np.asarray(mask)
        if flags.shape != (self.num_actions,):
            raise WrongAnswerError(
                f"gave an {KEY} of shape {flags.shape}, expected ({self.num_actions},), one entry "
                "per action"
            )
        if not flags.astype(bool).any():
            raise WrongAnswerError(
                f"gave an {KEY} that allows no action, expected at least one, or the end of the "
                "episode"
            )
        return np.concatenate([seen, flags.astype(bool)]).astype(np.float32)


def with_any_mask(observation: Any, mask: Any, spaces: Spaces) -> Any:
    """Observations that end with their mask: given apart, as a part of them, or so already."""
    if mask is None:
        if not (spaces.has_mask and isinstance(observation, Mapping) and KEY in observation):
            return observation
        observation, mask = without_mask(observation), observation[KEY]
    return with_mask(observation, mask, spaces)


def with_mask(observation: Any, mask: Any, spaces: Spaces) -> NDArray[np.float32]:
    """Observations that end with a mask that was given apart from them."""
    if spaces.layout is not None and spaces.layout.has_parts(observation):
        rows, alone = spaces.layout.named_rows(observation, "predict")
        observation = rows[0] if alone else rows
    obs, flags = np.asarray(observation), np.asarray(mask)
    wanted = (*obs.shape[:-1], spaces.action_dim)
    if not spaces.has_mask:
        raise DataError(
            "predict: action_mask is for policies of tasks with masks, and this policy's has none; "
            "leave it out"
        )
    if flags.shape != wanted or not flags.astype(bool).any(-1).all():
        raise DataError(
            f"predict: action_mask must have the shape {wanted} and allow an action in every row, "
            f"got the shape {flags.shape}"
        )
    return np.concatenate([obs, flags.astype(bool)], axis=-1).astype(np.float32)
