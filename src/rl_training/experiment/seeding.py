"""Seeds derived from a run's seed: every random decision has one of its own."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, *purpose: str | int) -> int:
    """The seed for a purpose, unrelated to the seeds of other purposes and other runs."""
    return _hashed("/".join(str(part) for part in (seed, *purpose)), num_bytes=8)


def episode_seed(seed: int, env: int, episode: int) -> int:
    """The seed of one episode of one environment of a collector.

    31 bits, because some simulators pass it to a C `int` or to NumPy's legacy generator.
    """
    return _hashed(f"{seed}/env/{env}/episode/{episode}", num_bytes=4)


def data_episode_seeds(seed: int, episode: int) -> tuple[int, int]:
    """The seeds of the environment and of the controller in one episode of generated data."""
    env_seed, controller_seed = np.random.SeedSequence([seed, episode]).generate_state(2)
    return int(env_seed), int(controller_seed)


def _hashed(text: str, num_bytes: int) -> int:
    digest = hashlib.sha256(text.encode()).digest()[:num_bytes]
    return int.from_bytes(digest, "little") >> 1
