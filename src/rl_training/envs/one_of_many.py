"""One environment of a Gymnasium `VectorEnv` that is made with one alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate

from rl_training.experiment.errors import EnvironmentSetupError

Vectors = VectorEnv[Any, Any, Any]


def makes_many(maker: Callable[..., Any]) -> bool:
    """Whether a class or function makes many environments at once."""
    if inspect.isclass(maker):
        return issubclass(maker, VectorEnv)
    try:
        return "num_envs" in inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return False


def made_vectors(
    maker: Callable[..., Any], env_id: str, num_envs: int, env_kwargs: Mapping[str, Any]
) -> Vectors:
    """The `VectorEnv` that a function makes."""
    many = maker(num_envs=num_envs, **env_kwargs)
    if not isinstance(many, VectorEnv) or many.num_envs != num_envs:
        found = (
            f"{many.num_envs} environments" if isinstance(many, VectorEnv) else type(many).__name__
        )
        raise EnvironmentSetupError(
            f"env_id: '{env_id}' has the parameter num_envs and gave {found}, expected a "
            f"gymnasium.vector.VectorEnv with {num_envs}; correct the function, or rename its "
            "parameter"
        )
    return many


def reset_mode(many: Vectors) -> AutoresetMode:
    """When a `VectorEnv` resets environments whose episode has ended."""
    metadata = getattr(many, "metadata", None) or {}
    return AutoresetMode(metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))


def takes_numbers(many: Vectors) -> bool:
    """Whether some environments can be reset alone by their numbers, without seeds, as those of
    EnvPool can."""
    return "env_id" in inspect.signature(many.reset).parameters


def info_of(info: Any, i: int) -> dict[str, Any]:
    """The infos of one environment, of its last step where a new episode has begun."""
    of_ends = info.get("final_info", info) if isinstance(info, Mapping) else {}
    found = {}
    for key, values in of_ends.items() if isinstance(of_ends, Mapping) else ():
        known = of_ends.get(f"_{key}")
        if not str(key).startswith("_") and np.ndim(values) and (known is None or bool(known[i])):
            found[str(key)] = values[i]
    return found


class OneOfMany(gym.Env[Any, Any]):
    """The only environment of a `VectorEnv` as an environment of its own."""

    def __init__(self, many: Vectors) -> None:
        self.many = many
        self.observation_space = many.single_observation_space
        self.action_space = many.single_action_space
        self.render_mode = getattr(many, "render_mode", None)
        self.metadata = {**(getattr(many, "metadata", None) or {})}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seeds: Any = None if seed is None or takes_numbers(self.many) else [seed]
        obs, info = self.many.reset(seed=seeds, options=options)
        return self._first(obs), info_of(info, 0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, ended, cut, info = self.many.step(np.asarray(action)[None])
        seen = self._first(obs)
        if (ended[0] or cut[0]) and reset_mode(self.many) == AutoresetMode.SAME_STEP:
            seen = np.asarray(info["final_obs"][0])
        return seen, float(reward[0]), bool(ended[0]), bool(cut[0]), info_of(info, 0)

    def _first(self, obs: Any) -> Any:
        return next(iter(iterate(self.many.observation_space, obs)))

    def render(self) -> Any:
        frames = self.many.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        self.many.close()
