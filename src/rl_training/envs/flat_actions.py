"""Actions of several axes, of none, or without bounds, as flat ones; the shape is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as kinds
from numpy.typing import NDArray

from rl_training.experiment.errors import EnvironmentSetupError

BOUNDS = "action_bounds"
"""Key of `env_kwargs` that the package reads itself: the bounds to act within."""


def with_flat_actions(env: gym.Env[Any, Any], env_id: str, bounds: Any) -> gym.Env[Any, Any]:
    """The environment, with flat actions where they are not flat, and with these bounds."""
    taken = getattr(env, "action_space", None)
    if not isinstance(taken, kinds.Box) and bounds is not None:
        raise EnvironmentSetupError(
            f"env_kwargs.{BOUNDS}: '{env_id}' has the action space {taken}, and bounds are for "
            "Box; remove this key"
        )
    flat: kinds.Space[Any]
    if isinstance(taken, kinds.MultiBinary):
        flat = kinds.MultiDiscrete(np.full(int(np.prod(taken.shape)), 2))
    elif isinstance(taken, kinds.MultiDiscrete) and len(taken.shape) != 1:
        flat = kinds.MultiDiscrete(taken.nvec.reshape(-1), start=taken.start.reshape(-1))
    elif isinstance(taken, kinds.Box) and (len(taken.shape) != 1 or bounds is not None):
        low, high = taken.low.reshape(-1), taken.high.reshape(-1)
        if bounds is not None:
            low, high = _bounded(low, high, bounds)
        flat = kinds.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    else:
        return env
    return FlatActions(env, flat)


def _bounded(
    low: NDArray[Any], high: NDArray[Any], bounds: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The bounds that a configuration gives, one number for all components or one for each."""
    asked = f"env_kwargs.{BOUNDS}"
    if not isinstance(bounds, Mapping) or set(bounds) != {"low", "high"}:
        raise EnvironmentSetupError(
            f"{asked}: expected {{low: ..., high: ...}}, one number for all components or a list "
            f"of {len(low)}, got {bounds!r}"
        )
    sides = []
    for name, own in (("low", low), ("high", high)):
        try:
            side = np.asarray(bounds[name], np.float64).reshape(-1)
            sides.append(np.broadcast_to(side, own.shape))
        except (TypeError, ValueError):
            raise EnvironmentSetupError(
                f"{asked}.{name}: expected one number, or a list of {len(own)}, got "
                f"{bounds[name]!r}"
            ) from None
    given_low, given_high = sides
    if not (np.isfinite(sides).all() and (given_low < given_high).all()):
        raise EnvironmentSetupError(f"{asked}: every low must be finite and below its high")
    if (given_low < low - 1e-6).any() or (given_high > high + 1e-6).any():
        raise EnvironmentSetupError(
            f"{asked}: these bounds go beyond those of the environment, "
            f"{low.tolist()} to {high.tolist()}; stay within them"
        )
    return np.maximum(given_low, low), np.minimum(given_high, high)


class FlatActions(gym.ActionWrapper[Any, NDArray[Any], Any]):
    """Takes flat actions and gives them to the environment in its own shape."""

    def __init__(self, env: gym.Env[Any, Any], flat: kinds.Space[Any]) -> None:
        super().__init__(env)
        self.action_space = flat
        assert env.action_space.shape is not None
        shape = tuple(int(n) for n in env.action_space.shape)
        self.outer_action_shape = None if len(shape) == 1 else shape
        self._shape, self._dtype = shape, np.dtype(env.action_space.dtype or np.float32)
        if isinstance(env.action_space, kinds.Box):  # as those that are flat get them
            self._dtype = np.dtype(np.float32)

    def action(self, action: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(action, self._dtype).reshape(self._shape)
