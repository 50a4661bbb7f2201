"""Memory that the processes of environments share: a step sends a few bytes beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.spaces import Spaces

UNKNOWN = -1
"""A success that the environment does not report."""

NOT_BEGUN = -1
"""What a worker is busy with before it serves its environments."""


class SharedArrays:
    """What the processes write for one another: a row per environment.

    The memory has no name that could be left behind: it is gone with the last process.
    """

    obs: NDArray[Any]
    actions: NDArray[Any]
    scores: NDArray[Any]
    seeds: NDArray[Any]
    reward: NDArray[Any]
    stepping: NDArray[Any]
    mask: NDArray[Any]
    terminated: NDArray[Any]
    truncated: NDArray[Any]
    lives_lost: NDArray[Any]
    successes: NDArray[Any]

    def __init__(self, spaces: Spaces, num_envs: int, context: Any) -> None:
        self._spaces, self._num_envs = spaces, num_envs
        sizes = [_bytes_of(dtype, shape) for dtype, shape in self._fields().values()]
        self._memory = context.RawArray("B", sum(sizes))
        self._map()

    def _fields(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        spaces, rows = self._spaces, (self._num_envs,)
        whole = np.int64 if spaces.choices else np.float32
        return {
            "obs": (spaces.obs_dtype, (*rows, *spaces.obs_shape)),
            "actions": (whole, (*rows, *spaces.inner_action_shape)),
            "scores": (np.float64, rows),  # NaN where none is reported
            "seeds": (np.int64, rows),
            "reward": (np.float32, rows),
            "stepping": (np.int32, rows),  # of each worker, the environment it is busy with
            "mask": (np.bool_, rows),
            "terminated": (np.bool_, rows),
            "truncated": (np.bool_, rows),
            "lives_lost": (np.bool_, rows),
            "successes": (np.int8, rows),
        }

    def _map(self) -> None:
        start = 0
        for name, (dtype, shape) in self._fields().items():
            array = np.frombuffer(self._memory, dtype, math.prod(shape), start)
            setattr(self, name, array.reshape(shape))
            start += _bytes_of(dtype, shape)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._spaces, self._num_envs, self._memory

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._spaces, self._num_envs, self._memory = state
        self._map()


def _bytes_of(dtype: Any, shape: tuple[int, ...]) -> int:
    """Rounded up, so that what follows is aligned."""
    size: int = np.dtype(dtype).itemsize * math.prod(shape)
    return -(-size // 8) * 8
