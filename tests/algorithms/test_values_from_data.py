"""DQN and its relatives from a data set: the offline loop, and what it does not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training import ManagedAlgorithm, TrainConfig, learn_seeds
from rl_training.algorithms.value_based import EXPERIENCE_KNOBS
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import algorithm_class

from ..contract.small_runs import small_config

SMALL: dict[str, dict[str, Any]] = {
    "dqn": {},
    "c51": {"num_atoms": 4},
    "qr_dqn": {"num_quantiles": 4},
    "iqn": {"num_quantiles": 4, "num_target_quantiles": 4, "num_action_quantiles": 4},
    "fqf": {"num_fractions": 4},
}


def from_data(algo: str, folder: Path, **changes: Any) -> TrainConfig:
    knobs = {"target_update_interval": 5, "batch_size": 16, **SMALL[algo]}
    values: dict[str, Any] = {"total_updates": 12, "output_dir": str(folder), "engine": "eager"}
    values |= {"algo_kwargs": knobs, "final_eval": False}
    return small_config(algo, loop="offline", **{**values, **changes})


def test_several_seeds_are_separate_runs(tmp_path: Path) -> None:
    """Targets are copied twice on the way, each agent's own."""
    for algo in ("dqn", "fqf"):
        config = from_data(algo, tmp_path / algo)
        assert algorithm_class(algo).loop_of(config) == "offline"
        together = learn_seeds(config, (3, 0), progress=False)
        for seed, one in together.results.items():
            alone = ManagedAlgorithm(config.replace(seed=seed)).learn(progress=False)
            assert (alone.updates, alone.env_steps) == (12, 0)
            expected, found = (
                rl_training.load(run.run_dir).algorithm.state_dict() for run in (alone, one)
            )
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
            assert not torch.equal(
                next(v for k, v in expected.items() if k.startswith("network")),
                next(v for k, v in expected.items() if k.startswith("target_network")),
            )


def test_they_learn_which_action_pays_without_an_environment(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(2000, 2)).astype(np.float32)
    actions = rng.integers(3, size=2000)
    right = np.where(obs[:, 0] > 0, 2, 0)
    path = tmp_path / "log.npz"
    np.savez(
        path,
        observations=obs,
        next_observations=obs,
        actions=actions,
        rewards=(actions == right).astype(np.float32),
        terminations=np.ones(2000, bool),
        truncations=np.zeros(2000, bool),
    )
    for algo, few in SMALL.items():
        config = TrainConfig(
            algo=algo,
            dataset={"kind": "npz", "path": str(path)},
            algo_kwargs={"hidden_sizes": [16], "lr": 1e-2, "batch_size": 32, **few},
            tensorboard=False,
            output_dir=str(tmp_path),
            device="cpu",
        )
        agent = ManagedAlgorithm(config)
        agent.learn(total_updates=150, progress=False)
        assert (agent.predict(obs)[0] == right).mean() > 0.85, algo


def test_what_a_run_from_data_does_not_read_is_refused(tmp_path: Path) -> None:
    fields = algorithm_class("dqn").Params.model_fields
    assert {"n_step", "learning_starts", "epsilon_end", "prioritized"} <= set(EXPERIENCE_KNOBS)
    for name in EXPERIENCE_KNOBS:
        special = {"prioritized": True, "noisy": True, "memory": "gru"}
        value = special.get(name) or fields[name].default + 1
        value = 0.25 if isinstance(value, float) else value
        with pytest.raises(ConfigError, match=rf"^algo_kwargs.{name}: DQN .* remove dataset"):
            from_data("dqn", tmp_path, algo_kwargs={name: value})
    with pytest.raises(ConfigError, match=r"^total_timesteps: .* or remove dataset"):
        from_data("dqn", tmp_path, total_timesteps=100)
    with pytest.raises(ConfigError, match=r"^total_updates: .* or give a dataset"):
        TrainConfig(algo="dqn", env_id="CartPole-v1", total_updates=10)
