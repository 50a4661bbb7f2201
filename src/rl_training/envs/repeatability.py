"""Tests whether an episode depends only on its seed and actions, as exact resume requires.

One short episode is played in a new environment and again after another episode. If the two
differ, state was carried over between episodes, and replaying actions cannot restore it.
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
"""Maximum steps of an episode."""
SECONDS = 2.0
"""Approximate time for making the environment and all episodes; a slower one is not tested."""

_SEED, _OTHER_SEED = 20_011, 20_021


class Repeatability(NamedTuple):
    """The result of the test."""

    draws: bool = False
    """Whether the environment samples from, or seeds, a process-wide generator."""
    inexact: str | None = None
    """Why a resumed run will differ from an uninterrupted one; None if no reason was found."""
    untried: str | None = None
    """Why the test did not run; None if it ran."""


def repeatability(env_id: str, env_kwargs: Mapping[str, Any] | None) -> Repeatability:
    """Run the test in a new environment; the global generators keep their state.

    Failures of the environment are ignored here, because training will report them.
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
    # a third of the remaining time for each of the three episodes
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
    """Plays episodes with random actions and checks whether the global generators change."""

    def __init__(
        self, env: gym.Env[Any, Any], contract: EnvContract, controller: Controller
    ) -> None:
        self.env, self.contract, self.controller = env, contract, controller
        self.draws = False

    def play(self, seed: int, steps: int, until: float | None = None) -> list[bytes] | None:
        """Return the bytes of all results of the episode, starting with the reset; None if `until`
        passed before the first step."""
        # not the seed itself, because an environment may seed them with it
        seed_global_generators(seed + 1)
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
