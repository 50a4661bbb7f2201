"""CartPole with episodes of fixed length."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

FIXED_CARTPOLE_ID = "rl_training/FixedCartPole-v0"
EPISODE_STEPS = 500


class FixedCartPoleEnv(CartPoleEnv):
    """Gymnasium's CartPole with episodes of exactly 500 steps: the reward is 1 while cart and
    pole are inside CartPole's bounds and 0 otherwise.

    Outside the bounds the simulation continues: the pole may swing round, with its angle from
    upright in [-pi, pi], and the cart stops at the end of the rail, at twice the bound. So the
    length of an episode carries no information about the policy, and a constant reward cannot
    teach anything.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.rail_end = 2.0 * self.x_threshold
        high = np.array([self.rail_end, np.inf, math.pi, np.inf], np.float32)
        self.observation_space = gym.spaces.Box(-high, high, dtype=np.float32)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        _, _, outside, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        self.steps_beyond_terminated = None  # nothing has ended
        assert self.state is not None
        position, velocity, angle, angular_velocity = (float(x) for x in self.state)
        if abs(position) >= self.rail_end:
            position, velocity = math.copysign(self.rail_end, position), 0.0
        angle = math.remainder(angle, 2.0 * math.pi)
        self.state = np.array((position, velocity, angle, angular_velocity))
        return self.state.astype(np.float32), float(not outside), False, truncated, info


def register_fixed_cartpole() -> None:
    """Register `rl_training/FixedCartPole-v0` with Gymnasium."""
    if FIXED_CARTPOLE_ID not in gym.registry:
        gym.register(
            FIXED_CARTPOLE_ID,
            entry_point=f"{__name__}:FixedCartPoleEnv",
            max_episode_steps=EPISODE_STEPS,
        )
