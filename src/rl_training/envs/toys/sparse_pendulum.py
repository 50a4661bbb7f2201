"""Pendulum swing-up with a sparse reward."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from numpy.typing import NDArray

SPARSE_PENDULUM_ID = "rl_training/SparsePendulum-v0"
EPISODE_STEPS = 200


class SparsePendulumEnv(PendulumEnv):
    """Gymnasium's pendulum, starting from hanging down: the reward is 1 while it is within
    `upright` radians of the upright position and 0 otherwise.

    A random policy almost never gets a reward. A swing-up takes about a quarter of the 200
    steps, so the best return is about 150.
    """

    def __init__(
        self, upright: float = 0.2, start_spread: float = 0.1, render_mode: str | None = None
    ) -> None:
        if not (0.0 < upright <= math.pi and 0.0 <= start_spread <= math.pi):
            raise ValueError("upright must be in (0, pi] and start_spread in [0, pi]")
        super().__init__(render_mode=render_mode)
        self.upright, self.start_spread = upright, start_spread

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start at rest, within `start_spread` radians of hanging straight down."""
        super().reset(seed=seed)
        angle = math.pi + self.np_random.uniform(-self.start_spread, self.start_spread)
        self.state = np.array([angle, 0.0])
        if self.render_mode == "human":
            self.render()  # type: ignore[no-untyped-call]
        obs: NDArray[Any] = self._get_obs()  # type: ignore[no-untyped-call]
        return obs, {}

    def step(self, u: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(u)  # type: ignore[no-untyped-call]
        off = abs(math.remainder(float(self.state[0]), 2.0 * math.pi))
        return obs, float(off < self.upright), terminated, truncated, info


def register_sparse_pendulum() -> None:
    """Register `rl_training/SparsePendulum-v0` with Gymnasium."""
    if SPARSE_PENDULUM_ID not in gym.registry:
        gym.register(
            SPARSE_PENDULUM_ID,
            entry_point=f"{__name__}:SparsePendulumEnv",
            max_episode_steps=EPISODE_STEPS,
        )
