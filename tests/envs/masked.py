"""A task whose allowed actions change from step to step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

ACTIONS = 5


class MaskedEnv(gym.Env[Any, Any]):
    """Each step allows some of five actions, never all, and pays the first component of one.

    An action that is not allowed raises. `where` says how the mask is given; `broken` what is
    wrong with it.
    """

    def __init__(self, where: str = "info", broken: str = "", length: int = 12) -> None:
        self.where, self.broken, self.length = where, broken, length
        box = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.observation_space: Any = box
        mask = gym.spaces.MultiBinary(ACTIONS)
        if where == "observation":
            self.observation_space = gym.spaces.Dict({"observation": box, "action_mask": mask})
        if where == "among parts":
            first, rest = gym.spaces.Box(-1.0, 1.0, (1,)), gym.spaces.Box(-1.0, 1.0, (2,))
            parts = {"action_mask": mask, "first": first, "rest": rest}
            self.observation_space = gym.spaces.Dict(parts)
        if where == "beside an image":
            self.observation_space = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8)
        self.action_space = gym.spaces.Discrete(ACTIONS)
        self.taken: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        if not self.mask[action]:
            raise ValueError(f"action {action} is not among {np.flatnonzero(self.mask)}")
        self.steps += 1
        reward = float(action == np.flatnonzero(self.mask)[-1])
        obs, info = self._seen()
        return obs, reward, self.steps >= self.length, False, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        obs = self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)
        count = int(self.np_random.integers(1, ACTIONS))
        self.mask = np.zeros(ACTIONS, np.int8)
        self.mask[self.np_random.permutation(ACTIONS)[:count]] = 1
        given: Any = self.mask
        if self.broken == "nothing allowed":
            given = np.zeros(ACTIONS, np.int8)
        elif self.broken == "wrong width":
            given = np.ones(ACTIONS + 1, np.int8)
        elif self.broken == "only at first" and self.steps:
            return obs, {}
        if self.broken == "not at first" and not self.steps:
            self.mask[:] = 1
            return obs, {}
        if self.where == "among parts":
            return {"action_mask": given, "first": obs[:1], "rest": obs[1:]}, {}
        if self.where == "beside an image":
            return np.zeros((16, 16, 1), np.uint8), {"action_mask": given}
        if self.where == "observation":
            return {"observation": obs, "action_mask": given}, {}
        return obs, {"action_mask": given}


def register_masked() -> None:
    """As masked/Task-v0, once."""
    if "masked/Task-v0" not in gym.registry:
        gym.register("masked/Task-v0", entry_point=MaskedEnv)
