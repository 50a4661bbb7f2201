"""CartPole without velocities in the observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

CARTPOLE_NO_VELOCITY_ID = "rl_training/CartPoleNoVelocity-v0"
EPISODE_STEPS = 500


class CartPoleNoVelocityEnv(CartPoleEnv):
    """Gymnasium's CartPole that shows the position of the cart and the angle of the pole alone.

    One observation does not say which way the pole falls, so a policy needs a memory of earlier
    ones to balance it for long.
    """

    SEEN = (0, 2)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        box = self.observation_space
        assert isinstance(box, gym.spaces.Box)
        low, high = box.low[list(self.SEEN)], box.high[list(self.SEEN)]
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        return obs[list(self.SEEN)], info

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return obs[list(self.SEEN)], float(reward), terminated, truncated, info


def register_cartpole_no_velocity() -> None:
    """Register `rl_training/CartPoleNoVelocity-v0` with Gymnasium."""
    if CARTPOLE_NO_VELOCITY_ID not in gym.registry:
        gym.register(
            CARTPOLE_NO_VELOCITY_ID,
            entry_point=f"{__name__}:CartPoleNoVelocityEnv",
            max_episode_steps=EPISODE_STEPS,
        )
