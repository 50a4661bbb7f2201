"""The task of the speed suites: random numbers with the sizes of a locomotion problem.

NumPy only: the peers' Python imports this too, and draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SHAPE = {"rows": 100_000, "episode": 1_000, "obs_dim": 17, "action_dim": 6}


def synthetic_arrays(shape: Mapping[str, int]) -> dict[str, Any]:
    """Episodes of equal length cut by a time limit; actions within [-1, 1]."""
    rows, episode = shape["rows"], shape["episode"]
    rng = np.random.default_rng(0)
    states = rng.standard_normal((rows + 1, shape["obs_dim"]), dtype=np.float32)
    ends = np.arange(1, rows + 1) % episode == 0
    return {
        "observations": states[:-1],
        "next_observations": states[1:],
        "actions": rng.uniform(-0.99, 0.99, (rows, shape["action_dim"])).astype(np.float32),
        "rewards": rng.standard_normal(rows, dtype=np.float32),
        "terminations": np.zeros(rows, dtype=bool),
        "truncations": ends,
    }
