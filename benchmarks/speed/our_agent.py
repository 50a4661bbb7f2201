"""Our agents on the synthetic task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.speed.synthetic import synthetic_arrays
from rl_training import ManagedAlgorithm, TrainConfig, TransitionDataset, load_transition_dataset
from rl_training.experiment.registry import algorithm_class

ENV_ID = "benchmarks/Synthetic-v0"


class SyntheticEnv(gym.Env[Any, Any]):
    """Has spaces and nothing else: speed needs no dynamics."""

    def __init__(self, obs_dim: int, action_dim: int) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (obs_dim,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (action_dim,), np.float32)


gym.register(ENV_ID, entry_point=f"{__name__}:SyntheticEnv", disable_env_checker=True)


def make_agent(
    algo: str,
    shape: Mapping[str, int],
    knobs: Mapping[str, Any],
    device: str = "cpu",
    engine: str = "auto",
) -> ManagedAlgorithm:
    """An untrained agent, one thread, with the fastest engine as trained."""
    if algorithm_class(algo).loop == "offline":
        # the data are replaced by arrays in memory
        lane: dict[str, Any] = {"dataset": {"kind": "random"}, "total_updates": 10**9}
    else:
        lane = {"total_timesteps": 10**9}
    config = TrainConfig(
        algo=algo,
        env_id=ENV_ID,
        env_kwargs={key: shape[key] for key in ("obs_dim", "action_dim")},
        device=device,
        engine=engine,
        threads=1,
        algo_kwargs=dict(knobs),
        **lane,
    )
    return ManagedAlgorithm(config)


def make_dataset(agent: ManagedAlgorithm, shape: Mapping[str, int]) -> TransitionDataset:
    """The synthetic data as the agent's loop takes them."""
    return load_transition_dataset(synthetic_arrays(shape), spaces=agent.algorithm.spaces)
