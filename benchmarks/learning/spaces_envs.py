"""Environments with Dict observations and with MultiDiscrete actions, for both sides of a
comparison; named `benchmarks.learning.spaces_envs:DictCartPole-v0` and `...:TwoCartPoles-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

MOST_STEPS = 500


class DictCartPole(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole whose observation is a Dict: the cart, the pole, and on which side the cart is."""

    def __init__(self) -> None:
        super().__init__(CartPoleEnv())
        whole = self.env.observation_space
        assert isinstance(whole, spaces.Box)
        self.observation_space = spaces.Dict(
            {
                "cart": spaces.Box(whole.low[:2], whole.high[:2]),
                "pole": spaces.Box(whole.low[2:], whole.high[2:]),
                "side": spaces.Discrete(2),
            }
        )

    def observation(self, observation: Any) -> Any:
        side = np.int64(observation[0] > 0.0)
        return {"cart": observation[:2], "pole": observation[2:], "side": side}


class TwoCartPoles(gym.Env[Any, Any]):
    """Two poles to be balanced at once: an action is a pair of pushes, and an episode ends with
    the first pole that falls."""

    def __init__(self) -> None:
        self.halves = [CartPoleEnv(), CartPoleEnv()]
        one = self.halves[0].observation_space
        assert isinstance(one, spaces.Box)
        low, high = np.tile(one.low, 2), np.tile(one.high, 2)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        self.action_space = spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        seeds = self.np_random.integers(2**31, size=2).tolist()
        seen = [half.reset(seed=own)[0] for half, own in zip(self.halves, seeds, strict=True)]
        return np.concatenate(seen), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        pairs: Any = zip(self.halves, action, strict=True)
        steps = [half.step(int(push)) for half, push in pairs]
        fallen = any(step[2] for step in steps)
        return np.concatenate([step[0] for step in steps]), 1.0, fallen, False, {}


for made in (DictCartPole, TwoCartPoles):
    gym.register(f"{made.__name__}-v0", made, max_episode_steps=MOST_STEPS)  # type: ignore[arg-type]
