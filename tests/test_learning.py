"""The quick learning gates: AWR recovers the expert from mixed data; its twins do not.

All gates, with every algorithm and several seeds, are in benchmarks/learning.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rl_training import AWR, BC, load_transition_dataset

LEARNS, FAILS = -250.0, -500.0


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    quick = {"eval_interval": 0, "checkpoint_interval": 0, "final_eval": False}
    return {"seed": 0, "output_dir": str(tmp_path), "tensorboard": False, "device": "cpu", **quick}


def test_awr_recovers_the_expert(options: dict[str, object]) -> None:
    agent = AWR.from_config("awr/pendulum", **options)
    agent.learn(progress=False)
    assert agent.evaluate(20).return_mean >= LEARNS


def test_behaviour_cloning_does_not(options: dict[str, object]) -> None:
    agent = BC.from_config("bc/pendulum", **options)
    agent.learn(progress=False)
    assert agent.evaluate(20).return_mean <= FAILS


def test_awr_learns_from_the_rewards_and_nothing_else(options: dict[str, object]) -> None:
    data = load_transition_dataset("pendulum-mixed", env_id="Pendulum-v1")
    shuffled = np.random.default_rng(0).permutation(data.rewards)
    agent = AWR.from_config("awr/pendulum", dataset=replace(data, rewards=shuffled), **options)
    agent.learn(progress=False)
    assert agent.evaluate(20).return_mean <= FAILS
