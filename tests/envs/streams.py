"""Seeded streams of actions, and what the collector makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.collector import Collector, Step
from rl_training.envs.spaces import Spaces


def actions(spaces: Spaces, num_envs: int, steps: int, seed: int = 0) -> NDArray[Any]:
    """(T, E, ...) random actions in inner units."""
    generator = np.random.default_rng(seed)
    if spaces.is_discrete:
        return generator.integers(0, spaces.action_dim, (steps, num_envs))
    shape = (steps, num_envs, spaces.action_dim)
    return generator.uniform(-1.0, 1.0, shape).astype(np.float32)


def collect(collector: Collector, stream: NDArray[Any]) -> list[Step]:
    return [collector.step(row) for row in stream]


def assert_same(left: list[Step], right: list[Step]) -> None:
    """Bit for bit."""
    assert len(left) == len(right)
    for t, (one, other) in enumerate(zip(left, right, strict=True)):
        for name in Step._fields:
            a, b = getattr(one, name), getattr(other, name)
            assert a.dtype == b.dtype, (t, name)
            assert a.tobytes() == b.tobytes(), (t, name, a, b)
