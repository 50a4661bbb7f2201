"""Ids of environments on the device, each with an environment of Gymnasium for evaluations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from rl_training.experiment.errors import ConfigError, EnvironmentSetupError


@dataclass(frozen=True)
class DeviceTask:
    """How the worlds of an id are made, and what is evaluated in."""

    id: str
    make: str | Callable[..., Any]
    """(num_worlds, device, **env_kwargs) to a `DeviceEnv`; a function, or where it is:
    "package.module:function"."""
    evaluated_in: str | None
    """Id of the same task in Gymnasium; None for one world of the simulator itself."""
    runs_on_cpu: bool = True
    """Whether device=auto may choose the CPU."""

    def maker(self) -> Callable[..., Any]:
        if not isinstance(self.make, str):
            return self.make
        module, _, function = self.make.partition(":")
        try:
            made: Callable[..., Any] = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise EnvironmentSetupError(
                f"env_id: '{self.make}', which makes the worlds of '{self.id}', is not found "
                f"({error}); correct its registration, or install what it needs"
            ) from None
        return made


_TASKS: dict[str, DeviceTask] = {}


def register_device_env(
    env_id: str,
    make: str | Callable[..., Any],
    *,
    evaluated_in: str | None = None,
    runs_on_cpu: bool = True,
) -> None:
    """Give a simulator on the device an id, such as `mine/Reach-v0`, for `env_id`.

    `make(num_worlds, device, **env_kwargs)` returns a `DeviceEnv`. Evaluation, videos and
    `predict` use the Gymnasium environment `evaluated_in`, which gets the same `env_kwargs`;
    without it they use one world of the simulator on the CPU.
    """
    if isinstance(make, str) and not all(make.partition(":")):
        raise ConfigError(
            f"register_device_env: make '{make}' must have the form 'package.module:function'"
        )
    try:
        known = None if evaluated_in is None else gym.spec(evaluated_in)
        if known is None:
            entry = "rl_training.envs.device.one_world:OneWorld"
            gym.register(env_id, entry, kwargs={"task": env_id})
        else:
            gym.register(
                env_id,
                known.entry_point,
                max_episode_steps=known.max_episode_steps,
                reward_threshold=known.reward_threshold,
                kwargs=known.kwargs,
            )
    except gym.error.Error as error:
        raise ConfigError(
            f"register_device_env: '{env_id}' cannot be registered with Gymnasium: {error}"
        ) from None
    _TASKS[env_id] = DeviceTask(env_id, make, evaluated_in, runs_on_cpu)


def device_task(env_id: str | None) -> DeviceTask | None:
    """The task of that id; None for an ordinary environment. In `module:Id` the module is
    imported first."""
    module, _, name = (env_id or "").rpartition(":")
    if module and name not in _TASKS:
        with suppress(ImportError):  # refused where the environment is made
            importlib.import_module(module)
    return _TASKS.get(name)


CLASSIC = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")
LOCOMOTION = (
    "Hopper-v5",
    "HalfCheetah-v5",
    "Walker2d-v5",
    "Ant-v5",
    "Humanoid-v5",
    "InvertedPendulum-v5",
)


def register_device_tasks() -> None:
    """Register the tasks of this package: `torch/...` and `warp/...`."""
    here = __name__.rpartition(".")[0]
    for name in CLASSIC:
        task = name.partition("-")[0]
        register_device_env(f"torch/{name}", f"{here}.classic:{task}", evaluated_in=name)
    for name in LOCOMOTION:
        task, make = name.partition("-")[0], f"{here}.locomotion"
        with suppress(ConfigError):  # an older Gymnasium lacks the task
            register_device_env(
                f"warp/{name}", f"{make}:{task}", evaluated_in=name, runs_on_cpu=False
            )
