"""Games of Stable-Baselines3 for our own algorithms: its rules, frames and stack."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.monitor import Monitor

STACK = 4


class StackedFrames(gym.Wrapper[NDArray[Any], int, Any, Any]):
    """As its `VecFrameStack`: an episode begins with black frames before the first one."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        assert env.observation_space.shape is not None
        side = env.observation_space.shape[:2]
        self._frames = np.zeros((STACK, *side), np.uint8)
        self.observation_space = gym.spaces.Box(0, 255, self._frames.shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        self._frames = np.zeros_like(self._frames)
        return self._with(frame), info

    def step(self, action: int) -> tuple[NDArray[Any], Any, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        return self._with(frame), reward, terminated, truncated, info

    def _with(self, frame: NDArray[Any]) -> NDArray[Any]:
        self._frames = np.concatenate([self._frames[1:], frame[None, ..., 0]])
        return self._frames


def play(game: str, learning: bool = False) -> gym.Env[Any, Any]:
    """A game as its PPO learns from it or, without `learning`, is evaluated: whole games and true
    rewards. Scores are those of whole games either way."""
    gym.register_envs(ale_py)
    name = "".join(part.capitalize() for part in game.split("_"))
    env = Monitor(gym.make(f"{name}NoFrameskip-v4"))
    return StackedFrames(AtariWrapper(env, terminal_on_life_loss=learning, clip_reward=learning))
