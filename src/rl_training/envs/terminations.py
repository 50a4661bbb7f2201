"""Termination functions of imagined episodes, known for Gymnasium's tasks."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.experiment.errors import ConfigError, describe_exception, did_you_mean
from rl_training.experiment.trust import WRAPPERS

Termination = Callable[[Tensor], Tensor]
"""Maps (B, O) raw next observations to (B,) booleans."""


def never(next_obs: Tensor) -> Tensor:
    """No state is terminal."""
    return torch.zeros(next_obs.shape[0], dtype=torch.bool, device=next_obs.device)


def hopper(next_obs: Tensor) -> Tensor:
    """Too low, leaning too far, or a component beyond 100."""
    height, angle, rest = next_obs[:, 0], next_obs[:, 1], next_obs[:, 1:]
    healthy = (height > 0.7) & (angle.abs() < 0.2) & (rest.abs() < 100.0).all(1)
    return ~(healthy & _finite(next_obs))


def walker2d(next_obs: Tensor) -> Tensor:
    """Too low, too high, or leaning too far."""
    height, angle = next_obs[:, 0], next_obs[:, 1]
    return ~((height > 0.8) & (height < 2.0) & (angle.abs() < 1.0) & _finite(next_obs))


def ant(next_obs: Tensor) -> Tensor:
    """Too low or too high."""
    height = next_obs[:, 0]
    return ~((height >= 0.2) & (height <= 1.0) & _finite(next_obs))


def humanoid(next_obs: Tensor) -> Tensor:
    """Too low or too high."""
    height = next_obs[:, 0]
    return ~((height > 1.0) & (height < 2.0))


def inverted_pendulum(next_obs: Tensor) -> Tensor:
    """The pole leans by more than 0.2 radians."""
    return ~((next_obs[:, 1].abs() <= 0.2) & _finite(next_obs))


def inverted_double_pendulum(next_obs: Tensor) -> Tensor:
    """The tip of the two poles, 0.6 long each, is no higher than 1."""
    sine, sine_on, cosine, cosine_on = (next_obs[:, i] for i in range(1, 5))
    height = 0.6 * (cosine + cosine * cosine_on - sine * sine_on)
    return ~((height > 1.0) & _finite(next_obs))


def mountain_car_continuous(next_obs: Tensor) -> Tensor:
    """At the flag, and not on the way back."""
    return (next_obs[:, 0] >= 0.45) & (next_obs[:, 1] >= 0.0)


def cartpole(next_obs: Tensor) -> Tensor:
    """The cart is off the track, or the pole leans by more than 12 degrees."""
    position, angle = next_obs[:, 0], next_obs[:, 2]
    return (position.abs() > 2.4) | (angle.abs() > 12.0 * 2.0 * math.pi / 360.0)


def _finite(obs: Tensor) -> Tensor:
    return torch.isfinite(obs).all(1)


KNOWN: dict[str, Termination] = {
    "never": never,
    "hopper": hopper,
    "walker2d": walker2d,
    "ant": ant,
    "humanoid": humanoid,
    "inverted_pendulum": inverted_pendulum,
    "inverted_double_pendulum": inverted_double_pendulum,
    "mountain_car_continuous": mountain_car_continuous,
    "half_cheetah": never,
    "pendulum": never,
    "cartpole": cartpole,
}
"""Termination functions by their name in a configuration."""

TASKS = {
    "Hopper": "hopper",
    "Walker2d": "walker2d",
    "Ant": "ant",
    "Humanoid": "humanoid",
    "InvertedPendulum": "inverted_pendulum",
    "InvertedDoublePendulum": "inverted_double_pendulum",
    "MountainCarContinuous": "mountain_car_continuous",
    "HalfCheetah": "half_cheetah",
    "Pendulum": "pendulum",
    "rl_training/SparsePendulum": "pendulum",
    "Swimmer": "never",
    "Reacher": "never",
    "Pusher": "never",
    "HumanoidStandup": "never",
}
"""The termination function of environment ids, given without their version."""

CHANGING = (
    "terminate_when_unhealthy",
    "healthy_z_range",
    "healthy_angle_range",
    "healthy_state_range",
    "exclude_current_positions_from_observation",
    "xml_file",
    "frame_skip",
    "goal_velocity",
)
"""Arguments of tasks that change when episodes terminate."""

KEY = "algo_kwargs.termination"


def termination_for(
    choice: str,
    env_id: str | None,
    env_kwargs: Mapping[str, Any],
    train_env_kwargs: Mapping[str, Any],
) -> Termination:
    """Return the function that `choice` names for a task; "learned" is not handled here."""
    if choice == "auto":
        return KNOWN[_known_for(env_id, env_kwargs, train_env_kwargs)]
    if choice in KNOWN:
        return Checked(KNOWN[choice], choice)  # the observation may be too short for it
    if ":" not in choice:
        raise ConfigError(
            f"{KEY}: '{choice}' is not known{did_you_mean(choice, ('auto', 'learned', *KNOWN))}; "
            f"use auto, learned, {', '.join(KNOWN)}, or a function as package.module:function"
        )
    return _imported(choice)


def _known_for(
    env_id: str | None, env_kwargs: Mapping[str, Any], train_env_kwargs: Mapping[str, Any]
) -> str:
    instead = f"set {KEY} to never, learned, or a function of your own as package.module:function"
    if env_id is None:
        raise ConfigError(
            f"{KEY}: without an environment no termination function is known; {instead}"
        )
    task = re.sub(r"-v\d+$", "", env_id.rpartition(":")[2])
    known = TASKS.get(task)
    if known is None:
        raise ConfigError(f"{KEY}: no termination function is known for '{env_id}'; {instead}")
    if env_kwargs.get(WRAPPERS):
        raise ConfigError(
            f"{KEY}: wrappers may change what '{env_id}' shows, so that the known function may no "
            f"longer hold; {instead}"
        )
    given = {"train_env_kwargs": train_env_kwargs, "env_kwargs": env_kwargs}
    changed = [f"{name}.{key}" for name in given for key in CHANGING if key in given[name]]
    if changed:
        raise ConfigError(
            f"{KEY}: {changed[0]} changes when '{env_id}' terminates, so that the known "
            f"function no longer holds; {instead}"
        )
    return known


def _imported(path: str) -> Termination:
    module_name, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:  # importing a module may raise anything
        raise ConfigError(
            f"{KEY}: '{path}' cannot be imported ({describe_exception(error)}); expected "
            "package.module:function, installed or in a folder of PYTHONPATH"
        ) from error
    if not callable(function):
        raise ConfigError(f"{KEY}: '{path}' is not a function; expected package.module:function")
    return Checked(function, path)


class Checked:
    """A function named in a configuration, whose results are checked."""

    def __init__(self, function: Callable[[Tensor], Any], path: str) -> None:
        self.function, self.path = function, path

    def __call__(self, next_obs: Tensor) -> Tensor:
        try:
            found = self.function(next_obs)
        except Exception as error:
            raise ConfigError(
                f"{KEY}: '{self.path}' raised {describe_exception(error)}; expected one boolean "
                f"for each of {next_obs.shape[0]} next observations of size {next_obs.shape[1]}"
            ) from error
        rows = next_obs.shape[0]
        if not isinstance(found, Tensor) or found.shape != (rows,) or found.dtype != torch.bool:
            got = (
                f"{str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
                if isinstance(found, Tensor)
                else type(found).__name__
            )
            raise ConfigError(
                f"{KEY}: '{self.path}' must return one boolean for each of {rows} next "
                f"observations, a tensor of shape ({rows},), but returned {got}"
            )
        return found
