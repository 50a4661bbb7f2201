"""Our agents on the synthetic task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.speed.synthetic import synthetic_arrays
from rl_training import ManagedAlgorithm, TrainConfig, TransitionDataset, load_transition_dataset

ENV_ID = "benchmarks/Synthetic-v0"


class SyntheticEnv(gym.Env[Any, Any]):
    """Has spaces and nothing else: speed needs no dynamics."""

    def __init__(self, obs_dim: int, action_dim: int) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (obs_dim,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (action_dim,), np.float32)


gym.register(ENV_ID, entry_point=f"{__name__}:SyntheticEnv", disable_env_checker=True)


def make_agent(algo: str, shape: Mapping[str, int], knobs: Mapping[str, Any]) -> ManagedAlgorithm:
    """An untrained agent on the CPU, one thread, with the fastest engine as trained."""
    config = TrainConfig(
        algo=algo,
        env_id=ENV_ID,
        env_kwargs={key: shape[key] for key in ("obs_dim", "action_dim")},
        dataset={"kind": "random"},  # replaced by arrays in memory
        device="cpu",
        threads=1,
        total_updates=10**9,
        algo_kwargs=dict(knobs),
    )
    return ManagedAlgorithm(config)


def make_dataset(agent: ManagedAlgorithm, shape: Mapping[str, int]) -> TransitionDataset:
    """The synthetic data as the agent's loop takes them."""
    return load_transition_dataset(synthetic_arrays(shape), spaces=agent.algorithm.spaces)
