"""d3rlpy's fitted Q evaluation of our policies, on the same log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.environment import SHARED
from benchmarks.process import Companion
from rl_training import TransitionDataset
from rl_training.data.statistics import observation_statistics

WORKER = "benchmarks.peers.d3rlpy_fqe_worker"


def peers_estimate(
    dataset: TransitionDataset,
    policy: Any,
    *,
    gamma: float,
    updates: int,
    seed: int,
    scratch: Path,
) -> float | None:
    """By standardised observations and the peer's defaults; None without its environment.

    `policy` are (N, actions) probabilities or (N, A) Box actions at the log's observations.
    """
    if not SHARED.python.is_file():
        return None
    mean, std = observation_statistics(dataset)
    path = scratch / "peer.npz"
    np.savez(
        path,
        observations=(dataset.observations - mean) / std,
        actions=np.asarray(dataset.spaces.from_env(dataset.actions)),
        rewards=dataset.rewards,
        terminations=dataset.terminations,
        truncations=dataset.truncations,
        policy=policy,
        starts=dataset.episode_starts,
    )
    with Companion(SHARED.python, WORKER) as companion:
        found = companion.ask(
            data=str(path),
            discrete=dataset.spaces.is_discrete,
            gamma=gamma,
            updates=updates,
            seed=seed,
        )
    return float(found["value"])
