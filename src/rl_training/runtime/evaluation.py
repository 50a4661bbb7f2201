"""What a policy is worth: its own environments, its own seeds, training left untouched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from rl_training.data.generation import make_env
from rl_training.envs.vector import EnvironmentFailure
from rl_training.experiment.errors import RLTrainingError, told
from rl_training.models.carry import Carry, rows_of
from rl_training.runtime.controls import derive_seed

Array = np.ndarray[Any, Any]

ActFunction = Callable[[Array, Carry | None], tuple[Array, Carry]]
"""(B, O) raw observations, and what the policy carries from the step before, to (B, ...) actions
in the environment's units and what it carries on; None at the beginning of all B episodes."""

ManyActFunction = Callable[[Array, Sequence[int], Carry | None], tuple[Array, Carry]]
"""The same for several policies: the second argument says which policy each row is for."""

PARALLEL_EPISODES = 16
"""Episodes of a policy that run at the same time."""


@dataclass(frozen=True)
class EvalResult:
    """Undiscounted returns of whole episodes."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        return float(np.std(self.returns))

    def metrics(self) -> dict[str, float]:
        return {
            "eval/return_mean": self.return_mean,
            "eval/return_std": self.return_std,
            "eval/return_min": float(np.min(self.returns)),
            "eval/return_max": float(np.max(self.returns)),
            "eval/length_mean": float(np.mean(self.lengths)),
        }

    def __str__(self) -> str:
        return (
            f"return {self.return_mean:,.1f} ± {self.return_std:,.1f} "
            f"over {self.episodes} episode{'s' if self.episodes > 1 else ''}"
        )


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Leave torch's random streams as they were, whatever happens inside."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield


class AbandonedEvaluationError(Exception):
    """The run is to end soon: its evaluation is left to whoever resumes it."""


class Episode(NamedTuple):
    """One episode of an evaluation, of one of several policies."""

    policy: int
    number: int


class Evaluator:
    """Runs episodes of one task with fixed seeds, many at a time, of one policy or several.

    Each policy has a seed of its own, on which the start states of its episodes depend.
    """

    def __init__(self, env_id: str, env_kwargs: dict[str, Any], *seeds: int) -> None:
        self.env_id, self.env_kwargs, self.seeds = env_id, env_kwargs, seeds
        self._envs: list[gym.Env[Any, Any]] = []
        self._abandoned = False

    def abandon(self) -> None:
        """Let this evaluation, or any later one, raise AbandonedEvaluationError."""
        self._abandoned = True

    def episode_seed(self, episode: int, policy: int = 0) -> int:
        """With what the environment is reset for an episode."""
        return derive_seed(self.seeds[policy], "eval", episode) % 2**31

    def run(self, act: ActFunction, episodes: int) -> EvalResult:
        """`episodes` whole episodes; episode i always starts from the same state."""
        return self.run_all(lambda obs, _, carry: act(obs, carry), episodes, (0,))[0]

    def run_all(
        self, act: ManyActFunction, episodes: int, policies: Sequence[int]
    ) -> dict[int, EvalResult]:
        """`episodes` whole episodes of each of some policies, all at the same time.

        What a policy draws depends on the first policy's seed and on nothing before.
        """
        results: dict[Episode, tuple[float, int]] = {}
        with untouched_randomness():
            torch.manual_seed(derive_seed(self.seeds[0], "eval draws"))
            for first in range(0, episodes, PARALLEL_EPISODES):
                numbers = range(first, min(first + PARALLEL_EPISODES, episodes))
                results |= self._run_wave(act, [Episode(p, n) for p in policies for n in numbers])
        return {
            p: EvalResult(*zip(*(results[Episode(p, n)] for n in range(episodes)), strict=True))
            for p in policies
        }

    def _run_wave(
        self, act: ManyActFunction, episodes: list[Episode]
    ) -> dict[Episode, tuple[float, int]]:
        while len(self._envs) < len(episodes):
            self._envs.append(make_env(self.env_id, self.env_kwargs))
        running = dict(zip(episodes, self._envs, strict=False))
        returns, lengths = dict.fromkeys(episodes, 0.0), dict.fromkeys(episodes, 0)
        obs: dict[Episode, Any] = {}
        for i, env in running.items():
            with self._failures(i, 0):
                obs[i] = env.reset(seed=self.episode_seed(i.number, i.policy))[0]
        carry: Carry | None = None
        while running:
            if self._abandoned:
                raise AbandonedEvaluationError
            seen, owners = np.stack([obs[i] for i in running]), [i.policy for i in running]
            actions, carry = act(seen, owners, carry)
            steps = list(zip(list(running.items()), actions, strict=True))
            for (i, env), action in steps:
                lengths[i] += 1
                with self._failures(i, lengths[i]):
                    obs[i], reward, terminated, truncated, _ = env.step(action)
                    reward = float(reward)
                if not math.isfinite(reward):
                    raise self._failure(i, lengths[i], f"returned the reward {reward}")
                returns[i] += reward
                if terminated or truncated:
                    del running[i]
            if len(running) < len(steps):
                carry = rows_of(carry, [i in running for (i, _), _ in steps])
        return {i: (returns[i], lengths[i]) for i in episodes}

    @contextmanager
    def _failures(self, episode: Episode, step: int) -> Iterator[None]:
        """What an environment raises, as a sentence about it."""
        try:
            yield
        except RLTrainingError:
            raise
        except Exception as error:
            raise self._failure(episode, step, f"raised {told(error)}") from error

    def _failure(self, episode: Episode, step: int, what: str) -> EnvironmentFailure:
        seed = self.episode_seed(episode.number, episode.policy)
        return EnvironmentFailure(
            f"env_id: environment '{self.env_id}' {what} in evaluation episode {episode.number} "
            f"(seed {seed}, step {step}); correct the environment, or env_kwargs"
        )

    def close(self) -> None:
        for env in self._envs:
            env.close()
        self._envs.clear()
