"""Copies of agents: in this process, pickled, and in a worker that imports everything anew."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import ManagedAlgorithm, TrainConfig
from rl_training.experiment.registry import algorithm_names
from tests.contract.small_runs import small_config

OBSERVATION = np.array([0.6, 0.8, 0.5], np.float32)


def action_of(agent: Any) -> Any:
    return agent.predict(OBSERVATION)[0]


def pendulum_agent(folder: Path) -> ManagedAlgorithm:
    return ManagedAlgorithm(
        TrainConfig(
            algo="awr",
            env_id="Pendulum-v1",
            dataset={"kind": "scripted", "name": "pendulum-mixed", "max_episodes": 3},
            algo_kwargs={"hidden_sizes": [8]},
            total_updates=5,
            final_eval=False,
            tensorboard=False,
            output_dir=str(folder),
        )
    )


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda agent: pickle.loads(pickle.dumps(agent)),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_acts_with_its_own_weights(how: str, tmp_path: Path) -> None:
    agent = pendulum_agent(tmp_path)
    agent.learn(progress=False)
    before = action_of(agent)
    snapshot = COPIES[how](agent)
    assert np.array_equal(action_of(snapshot), before)
    agent.learn(200, progress=False)
    assert not np.array_equal(action_of(agent), before)
    assert np.array_equal(action_of(snapshot), before), "the copy learned with the original"
    with torch.no_grad():
        for weight in snapshot.algorithm.parameters():
            weight.zero_()
    assert not np.array_equal(action_of(snapshot), before), "the copy acts with other weights"
    # its optimisers step its own parameters, in a run of its own
    result = snapshot.learn(8, progress=False)
    assert result.run_dir != agent.run_dir
    assert action_of(snapshot).any()


def test_every_algorithm_can_be_copied() -> None:
    for algo in algorithm_names():
        agent = ManagedAlgorithm(small_config(algo))
        again = pickle.loads(pickle.dumps(agent))
        own, copied = agent.algorithm.state_dict(), again.algorithm.state_dict()
        assert all(torch.equal(own[key], copied[key]) for key in own), algo
        assert again.config == agent.config, algo


def test_a_spawned_worker_acts_like_the_agent(tmp_path: Path) -> None:
    agent = pendulum_agent(tmp_path)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert np.array_equal(pool.apply(action_of, (agent,)), action_of(agent))
