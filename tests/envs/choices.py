"""An environment whose actions are of any kind; named `tests.envs.choices:tests/Choices-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ENV_ID = "tests.envs.choices:tests/Choices-v0"
ACTIONS: dict[str, gym.Space[Any]] = {
    "multi_discrete": spaces.MultiDiscrete([3, 2], start=[0, 1]),
    "table_of_choices": spaces.MultiDiscrete(np.array([[2, 3], [3, 2]])),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "scalar": spaces.Box(-1.0, 3.0, ()),
    "table": spaces.Box(-2.0, 2.0, (2, 2)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
}
LENGTH = 8


class Choices(gym.Env[Any, Any]):
    """Every part of an action should follow the sign of one number of the observation: the first
    choice, or a negative number, where that is negative. A step earns the share that does."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, actions: str = "multi_discrete") -> None:
        self.action_space = ACTIONS[actions]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = LENGTH
        return self._seen(), {}

    def _seen(self) -> Any:
        self.signs = self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)
        return self.signs.copy()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert isinstance(action, np.ndarray)
        assert self.action_space.contains(action), (action, self.action_space)
        start = getattr(self.action_space, "start", 0)
        flat = np.ravel(action - start)
        follows = (flat > 0) == (self.signs[: flat.size] > 0)
        self.left -= 1
        return self._seen(), float(follows.mean()), False, self.left == 0, {}


gym.register("tests/Choices-v0", Choices)  # type: ignore[arg-type]
