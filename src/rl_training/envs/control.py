"""Tasks of the DeepMind Control suite (Tassa et al. 2018), with image or vector observations."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.errors import ConfigError, MissingExtraError, did_you_mean

CONTROL_ID = "rl_training/Control-v0"
CAMERAS = {"quadruped": 2}
"""The camera of domains whose first one does not follow the body."""


class ControlEnv(gym.Env[NDArray[Any], NDArray[Any]]):
    """A task such as ("walker", "stand"); an action is repeated for `action_repeat` steps.

    Observations are `image_size` squared RGB images, or with `pixels` False one vector of all
    measurements of the task. The rewards of the repeated steps are summed. The suite's time limit
    truncates an episode; a discount of 0 terminates it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(
        self,
        domain: str,
        task: str,
        action_repeat: int = 2,
        pixels: bool = True,
        image_size: int = 64,
        camera: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        for key, value, least in (
            ("action_repeat", action_repeat, 1),
            ("image_size", image_size, 8),
        ):
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"env_kwargs.{key}: expected a whole number, at least {least}, got {value!r}"
                )
        suite = _suite()
        tasks = {f"{d} {t}" for d, t in suite.ALL_TASKS}
        if f"{domain} {task}" not in tasks:
            guess = did_you_mean(f"{domain} {task}", tasks)
            raise ConfigError(
                f"env_kwargs.task: the control suite has no task '{domain} {task}'{guess}; use a "
                "domain and a task of it, such as walker and stand"
            )
        self.render_mode = render_mode
        self._env = suite.load(domain, task)
        self._repeat, self._pixels, self._side = action_repeat, pixels, image_size
        self._camera = CAMERAS.get(domain, 0) if camera is None else camera
        spec = self._env.action_spec()
        low, high = spec.minimum.astype(np.float32), spec.maximum.astype(np.float32)
        self.action_space: gym.Space[Any] = gym.spaces.Box(low, high, dtype=np.float32)
        self.observation_space: gym.Space[Any]
        if pixels:
            self.observation_space = gym.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        else:
            width = sum(int(np.prod(s.shape)) for s in self._env.observation_spec().values())
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._env.task.random.seed(seed)
        return self._observation(self._env.reset()), {}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        reward = 0.0
        for _ in range(self._repeat):
            time_step = self._env.step(action)
            reward += float(time_step.reward or 0.0)
            if time_step.last():
                break
        terminated = time_step.last() and time_step.discount == 0.0
        return (
            self._observation(time_step),
            reward,
            terminated,
            time_step.last() and not terminated,
            {},
        )

    def render(self) -> Any:
        return self._image(240)

    def close(self) -> None:
        self._env.close()

    def _observation(self, time_step: Any) -> NDArray[Any]:
        if self._pixels:
            return self._image(self._side)
        parts = [np.asarray(part, np.float32).ravel() for part in time_step.observation.values()]
        return np.concatenate(parts)

    def _image(self, side: int) -> NDArray[Any]:
        image = self._env.physics.render(height=side, width=side, camera_id=self._camera)
        return np.array(image, np.uint8)


def _suite() -> Any:
    # the suite picks its renderer at import, and the default one needs a display
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        return importlib.import_module("dm_control.suite")
    except ImportError:
        raise MissingExtraError("dm_control", "dmc", f"environment '{CONTROL_ID}'") from None


def register_control() -> None:
    """Register `rl_training/Control-v0` with Gymnasium."""
    if CONTROL_ID not in gym.registry:
        gym.register(
            CONTROL_ID,
            entry_point=f"{__name__}:ControlEnv",
            disable_env_checker=True,
            order_enforce=False,
        )
