"""Whole episodes of a peer's policy from given start states.

Run by the peers' Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

Array = np.ndarray[Any, Any]
Policy = Callable[[Any], Array]
"""(B, ...) observations, by name for Dict ones, to (B, ...) actions in the environment's units."""


def _batch(observations: Sequence[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: _batch([seen[key] for seen in observations]) for key in observations[0]}
    stacked = np.stack(observations)
    return stacked.astype(np.float32) if stacked.dtype.kind == "f" else stacked


def episode_returns(
    act: Policy,
    env_id: str,
    reset_seeds: Sequence[int],
    env_kwargs: Mapping[str, Any] | None = None,
) -> list[float]:
    """Return of one whole episode per seed, all side by side."""
    envs = [gym.make(env_id, **(env_kwargs or {})) for _ in reset_seeds]
    returns = [0.0] * len(envs)
    observations = {
        i: env.reset(seed=seed)[0]
        for i, (env, seed) in enumerate(zip(envs, reset_seeds, strict=True))
    }
    while observations:
        running = list(observations)
        actions = act(_batch([observations[i] for i in running]))
        for i, action in zip(running, actions, strict=True):
            observation, reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if terminated or truncated:
                del observations[i]
            else:
                observations[i] = observation
    for env in envs:
        env.close()
    return returns


class Evaluations:
    """The evaluations of one training run, and what a peer's job answers with."""

    def __init__(
        self,
        act: Policy,
        env_id: str,
        curve_seeds: Sequence[int],
        unit: str = "updates",
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.act, self.env_id, self.curve_seeds, self.unit = act, env_id, curve_seeds, unit
        self.env_kwargs = env_kwargs
        self.curve: dict[str, list[float]] = {unit: [], "return": []}

    def returns(self, reset_seeds: Sequence[int]) -> list[float]:
        """One whole episode per seed."""
        return episode_returns(self.act, self.env_id, reset_seeds, self.env_kwargs)

    def note(self, tick: int) -> None:
        """Evaluate now, at `tick` of the clock."""
        score = np.mean(self.returns(self.curve_seeds))
        self.curve[self.unit].append(tick)
        self.curve["return"].append(round(float(score), 1))

    def result(self, reset_seeds: Sequence[int], ticks: int, seconds: float) -> dict[str, Any]:
        """The last policy from the gates' start states, beside the evaluations before."""
        final = self.returns(reset_seeds)
        return {
            "return_mean": float(np.mean(final)),
            "return_std": float(np.std(final)),
            "episodes": len(final),
            "best_eval": max(self.curve["return"]),
            self.unit: ticks,
            "train_seconds": round(seconds, 1),
            "curve": self.curve,
        }
