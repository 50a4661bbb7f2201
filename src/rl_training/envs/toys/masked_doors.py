"""Many doors, of which only some can be opened in a step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

MASKED_DOORS_ID = "rl_training/MaskedDoors-v0"
EPISODE_STEPS = 100


class MaskedDoorsEnv(gym.Env[NDArray[np.float32], np.int64]):
    """Every step shows one of `doors` doors and pays 1 for opening it, else 0.

    `locked` of the other doors cannot be opened, which ones is drawn anew in every step:
    `info["action_mask"]`. Opening a locked door raises an error. The best return is 100; among the
    doors that are not locked a random policy opens the right one in one step of
    `doors - locked`.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, doors: int = 80, locked: int = 60) -> None:
        if not 0 <= locked < doors:
            raise ValueError("locked must be at least 0 and less than doors")
        self.doors, self.locked = doors, locked
        self.observation_space = gym.spaces.Box(0.0, 1.0, (doors,), np.float32)
        self.action_space = gym.spaces.Discrete(doors)
        self.shown = 0
        self.mask: NDArray[np.int8] = np.ones(doors, np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return self._next()

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        door = int(action)
        if not self.mask[door]:
            raise ValueError(
                f"door {door} is locked; take an action that info['action_mask'] allows"
            )
        reward = float(door == self.shown)
        obs, info = self._next()
        return obs, reward, False, False, info

    def _next(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        order = self.np_random.permutation(self.doors)
        self.shown = int(order[0])
        self.mask = np.ones(self.doors, np.int8)
        self.mask[order[1 : 1 + self.locked]] = 0
        obs = np.zeros(self.doors, np.float32)
        obs[self.shown] = 1.0
        return obs, {"action_mask": self.mask.copy()}


def register_masked_doors() -> None:
    """Register `rl_training/MaskedDoors-v0` with Gymnasium."""
    if MASKED_DOORS_ID not in gym.registry:
        gym.register(
            MASKED_DOORS_ID,
            entry_point=f"{__name__}:MaskedDoorsEnv",
            max_episode_steps=EPISODE_STEPS,
        )
