"""What a policy sees and does, and the map between its units and the environment's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rl_training.experiment.errors import EnvironmentSetupError


@dataclass(frozen=True)
class Spaces:
    """Flat observations and Box or Discrete actions.

    Inside the package Box actions live in [-1, 1]; `to_env` and `from_env` are the
    affine map to the environment's units. Discrete actions are 0..n-1 inside and
    start..start+n-1 outside.
    """

    obs_dim: int
    action_kind: Literal["box", "discrete"]
    action_dim: int  # components of a Box action, or the number of Discrete actions
    action_low: tuple[float, ...] = ()  # Box only
    action_high: tuple[float, ...] = ()
    action_start: int = 0  # Discrete only

    @classmethod
    def from_gymnasium(
        cls, observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> Spaces:
        if not isinstance(observation_space, gym.spaces.Box) or len(observation_space.shape) != 1:
            raise EnvironmentSetupError(
                f"observation space {observation_space} is not supported: expected a flat "
                "Box of shape (n,); wrap the environment, for example with "
                "gymnasium.wrappers.FlattenObservation"
            )
        obs_dim = int(observation_space.shape[0])
        if isinstance(action_space, gym.spaces.Discrete):
            return cls(
                obs_dim, "discrete", int(action_space.n), action_start=int(action_space.start)
            )
        if not isinstance(action_space, gym.spaces.Box) or len(action_space.shape) != 1:
            raise EnvironmentSetupError(
                f"action space {action_space} is not supported: expected Discrete(n) or a flat "
                "Box of shape (n,); register a version of the environment whose action wrapper "
                "(gymnasium.ActionWrapper) makes it so"
            )
        low, high = action_space.low, action_space.high
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise EnvironmentSetupError(
                f"action space {action_space} is not supported: every bound must be finite and "
                "low < high; wrap it with gymnasium.wrappers.RescaleAction"
            )
        return cls(
            obs_dim,
            "box",
            int(action_space.shape[0]),
            tuple(float(x) for x in low),
            tuple(float(x) for x in high),
        )

    @property
    def is_discrete(self) -> bool:
        return self.action_kind == "discrete"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Spaces:
        values = dict(values)
        for key in ("action_low", "action_high"):
            values[key] = tuple(values.get(key, ()))
        return cls(**values)

    def to_env(self, action: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Inner units to the environment's."""
        if self.is_discrete:
            return action + self.action_start
        low = np.asarray(self.action_low, np.float32)
        high = np.asarray(self.action_high, np.float32)
        return np.clip(low + (action + 1.0) * 0.5 * (high - low), low, high)

    def from_env(self, action: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The environment's units to inner ones; Box actions stay inside +-(1 - 1e-5),
        where a squashed policy's density is finite."""
        if self.is_discrete:
            return action - self.action_start
        low = np.asarray(self.action_low, np.float32)
        high = np.asarray(self.action_high, np.float32)
        inner = (action - low) / (high - low) * 2.0 - 1.0
        bound = np.float32(1.0 - 1e-5)
        return np.clip(inner, -bound, bound)

    def describe(self) -> str:
        if self.is_discrete:
            return f"observations ({self.obs_dim},), Discrete({self.action_dim}) actions"
        return f"observations ({self.obs_dim},), Box({self.action_dim},) actions"
