"""Catch: a minimal task with image observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

CATCH_ID = "rl_training/Catch-v0"


class CatchEnv(gym.Env[NDArray[Any], int]):
    """A ball falls one row per step; a paddle in the last row moves left, stays or moves right.

    The episode terminates when the ball reaches the last row, with reward 1 if the paddle
    catches it and -1 if not; all other rewards are 0. Observations are (rows * scale,
    columns * scale) uint8, white on black. A random policy catches about one ball in eight.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(
        self, rows: int = 8, columns: int = 8, scale: int = 2, render_mode: str | None = None
    ) -> None:
        if rows < 2 or columns < 2 or scale < 1:
            raise ValueError("rows and columns must be at least 2, scale at least 1")
        self.render_mode = render_mode
        self._rows, self._columns, self._scale = rows, columns, scale
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(3)
        shape = (rows * scale, columns * scale)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self._ball, self._row, self._paddle = 0, 0, columns // 2

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._ball = int(self.np_random.integers(self._columns))
        self._row, self._paddle = 0, self._columns // 2
        return self._image(), {}

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._columns - 1)
        self._row += 1
        landed = self._row == self._rows - 1
        reward = (1.0 if self._ball == self._paddle else -1.0) if landed else 0.0
        return self._image(), reward, landed, False, {}

    def render(self) -> Any:
        return np.repeat(self._image().repeat(8, 0).repeat(8, 1)[..., None], 3, -1)

    def _image(self) -> NDArray[Any]:
        board = np.zeros((self._rows, self._columns), np.uint8)
        board[self._rows - 1, self._paddle] = 255
        board[self._row, self._ball] = 255
        return board.repeat(self._scale, 0).repeat(self._scale, 1)


def register_catch() -> None:
    """Register `rl_training/Catch-v0` with Gymnasium."""
    if CATCH_ID not in gym.registry:
        gym.register(CATCH_ID, entry_point=f"{__name__}:CatchEnv")
