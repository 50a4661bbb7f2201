"""Whether an episode is its seed and its actions, which exact resume relies on: tried out.

One short episode is played in a new environment and again after another one. What differs was
carried over from the episodes before, so no replay of a seed and its actions can bring it back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs.contract import FOREIGN_ERRORS, EnvContract, close_env
from rl_training.envs.episodes import Controller, uniform_controller
from rl_training.envs.global_random import (
    fingerprint,
    seed_global_generators,
    untouched_randomness,
)
from rl_training.envs.make import make_env, spaces_of
from rl_training.experiment.errors import RLTrainingError

STEPS = 100
"""Of an episode, at most."""
SECONDS = 2.0
"""For the making of the environment and all episodes, about; a slower one is not tried."""

_SEED, _OTHER_SEED = 20_011, 20_021


class Repeatability(NamedTuple):
    """What the trial has shown."""

    draws: bool = False
    """Whether the environment draws from, or seeds, a generator that the process shares."""
    inexact: str | None = None
    """Why a resumed run will differ from an uninterrupted one; None where nothing says so."""
    untried: str | None = None
    """Why nothing is known."""


def repeatability(env_id: str, env_kwargs: Mapping[str, Any] | None) -> Repeatability:
    """Try it in an environment of its own; the global generators are left alone.

    An environment that fails says nothing here: training meets the failure and tells it.
    """
    deadline = time.monotonic() + SECONDS
    with untouched_randomness():
        try:
            env = make_env(env_id, env_kwargs)
        except RLTrainingError:
            return Repeatability()
        try:
            return _try(env, env_id, deadline)
        except (RLTrainingError, *FOREIGN_ERRORS):
            return Repeatability()
        finally:
            close_env(env)


def _try(env: gym.Env[Any, Any], env_id: str, deadline: float) -> Repeatability:
    spaces = spaces_of(env, env_id)
    trial = _Trial(env, EnvContract(spaces), uniform_controller(spaces))
    began = time.monotonic()
    if began > deadline:
        return Repeatability(untried=_untried(env_id, "making it takes too long"))
    # a third of what is left for each of the three episodes
    first = trial.play(_SEED, STEPS, began + (deadline - began) / 3)
    if first is None:
        return Repeatability(untried=_untried(env_id, "its steps take too long"))
    steps = len(first) - 1
    trial.play(_OTHER_SEED, steps)
    if trial.play(_SEED, steps) == first:
        return Repeatability(trial.draws)
    return Repeatability(
        trial.draws,
        f"an episode of '{env_id}' depends on more than its seed and its actions (played again "
        "after another episode, it went differently), so a resumed run will not be exact",
    )


def _untried(env_id: str, why: str) -> str:
    return (
        f"whether episodes of '{env_id}' repeat exactly was not tried, because {why}; a resumed "
        "run is exact only if they do"
    )


class _Trial:
    """Plays episodes with random actions, and sees whether the global generators move."""

    def __init__(
        self, env: gym.Env[Any, Any], contract: EnvContract, controller: Controller
    ) -> None:
        self.env, self.contract, self.controller = env, contract, controller
        self.draws = False

    def play(self, seed: int, steps: int, until: float | None = None) -> list[bytes] | None:
        """The bits of what the environment answered, reset first; None where `until` had passed
        before its first step."""
        seed_global_generators(seed + 1)  # an environment that seeds them takes the seed itself
        before = fingerprint()
        generator = np.random.default_rng(seed)
        obs = self.contract.reset(self.env, seed)
        answers = [obs.tobytes()]
        for _ in range(steps):
            if until is not None and time.monotonic() > until:
                break
            answer = self.contract.step(self.env.step, self.controller(obs, generator))
            obs, reward, terminated, truncated, _ = answer
            answers.append(obs.tobytes() + np.array([reward, terminated, truncated]).tobytes())
            if terminated or truncated:
                break
        self.draws = self.draws or fingerprint() != before
        return answers if len(answers) > 1 else None
