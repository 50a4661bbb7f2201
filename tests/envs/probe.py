"""An environment whose numbers identify their step, and which fails on request."""

from __future__ import annotations

import os
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

PROBE_ID = "rl_training/Probe-v0"
_HALF = 1 << 16
_SCALES = np.array([1 << 15, 1 << 16, 1 << 4], np.float32)


class ProbeEnv(gym.Env[NDArray[Any], Any]):
    """Transitions that can be checked after the fact.

    The observation is (seed // 65536, seed % 65536, step, last action...), with zeros for
    the action after a reset; seeds below 2**40 are exact in float32. `scaled` ones are
    divided by powers of two, so that networks see numbers of order 1. The reward of step t
    (from 1) is t. `decode` reads an observation back.

    An episode ends by `terminate_at`, `truncate_at`, or both at once, where they are equal;
    `alternate` lets even seeds end only by the first and odd ones only by the second. `jitter`
    k makes an episode up to k steps longer, by its seed, so that a vector of probes does not
    end in unison. The failures `fail_at` (raises), `nan_at` (in `nan_in`), `shape_at` (an
    observation of another shape) and `die_at` (the process is gone) happen at that step, 0
    being the reset; only in the episode of `only_seed`, and only while there is a file
    `only_while`, where these are given: a test can break a run and repair it from outside.
    """

    def __init__(
        self,
        actions: Literal["box", "discrete"] = "box",
        action_dim: int = 2,
        low: float = -2.0,
        high: float = 3.0,
        start: int = 0,
        terminate_at: int | None = None,
        truncate_at: int | None = None,
        alternate: bool = False,
        jitter: int = 0,
        scaled: bool = False,
        fail_at: int | None = None,
        nan_at: int | None = None,
        nan_in: Literal["observation", "reward"] = "observation",
        shape_at: int | None = None,
        die_at: int | None = None,
        only_seed: int | None = None,
        only_while: str | None = None,
    ) -> None:
        self.action_space: gym.Space[Any]
        if actions == "discrete":
            self.action_space = gym.spaces.Discrete(action_dim, start=start)
        else:
            self.action_space = gym.spaces.Box(low, high, (action_dim,), np.float32)
        self._action_size = 1 if actions == "discrete" else action_dim
        shape = (3 + self._action_size,)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self._terminate_at, self._truncate_at, self._jitter = terminate_at, truncate_at, jitter
        self._alternate, self._scaled = alternate, scaled
        self._fail_at, self._die_at, self._shape_at = fail_at, die_at, shape_at
        self._nan_at, self._nan_in = nan_at, nan_in
        self._only_seed, self._only_while = only_seed, only_while
        self._seed = 0
        self._step = 0

    @staticmethod
    def decode(obs: NDArray[Any], scaled: bool = False) -> tuple[int, int, NDArray[Any]]:
        """Seed, step and last action of an observation."""
        high, low, step = obs[:3] * _SCALES if scaled else obs[:3]
        return int(high) * _HALF + int(low), int(step), obs[3:]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        # Unseeded, as in an autoreset nobody asked for: a seed that no run gives out.
        self._seed = -1 if seed is None else seed
        self._step = 0
        return self._observe(np.zeros(self._action_size, np.float32)), {}

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        self._step += 1
        obs = self._observe(np.asarray(action, np.float32).reshape(-1))
        reward = float(self._step)
        if self._due(self._nan_at) and self._nan_in == "reward":
            reward = float("nan")
        even, odd = self._seed % 2 == 0, self._seed % 2 == 1
        terminated = self._ends(self._terminate_at) and not (self._alternate and odd)
        truncated = self._ends(self._truncate_at) and not (self._alternate and even)
        return obs, reward, terminated, truncated, {}

    def _observe(self, action: NDArray[Any]) -> NDArray[Any]:
        if self._due(self._die_at):
            os._exit(3)
        if self._due(self._fail_at):
            raise ValueError("the probe was set to fail")
        high, low = divmod(self._seed, _HALF)
        where = np.array([high, low, self._step], np.float32)
        obs = np.concatenate([where / _SCALES if self._scaled else where, action])
        if self._due(self._nan_at) and self._nan_in == "observation":
            obs[2] = np.nan
        return obs[:1] if self._due(self._shape_at) else obs

    def _ends(self, at: int | None) -> bool:
        return at is not None and self._step >= at + self._seed % (self._jitter + 1)

    def _due(self, at: int | None) -> bool:
        return (
            at == self._step
            and self._only_seed in (None, self._seed)
            and (self._only_while is None or os.path.exists(self._only_while))
        )


def register_probe() -> None:
    """Register `rl_training/Probe-v0` with Gymnasium, once."""
    if PROBE_ID not in gym.registry:
        gym.register(id=PROBE_ID, entry_point=f"{__name__}:ProbeEnv")


register_probe()
