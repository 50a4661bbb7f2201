"""The quick learning gates, one per family, each beside an ablation that must fail.

All gates, with every algorithm and several seeds, are in benchmarks/learning.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import AWR, BC, DQN, GAIL, PPO, RLPD, SAC, Dreamer, load_transition_dataset
from rl_training.data.demonstrations import demonstrations
from rl_training.envs.toys.catch import CATCH_ID
from rl_training.experiment.seeding import derive_seed
from rl_training.replay.sequences import SequenceBatch, SequenceReplay

from .test_readme import EXAMPLES, run

LEARNS, FAILS = -250.0, -500.0


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    quick = {"eval_interval": 0, "checkpoint_interval": 0, "final_eval": False}
    return {"seed": 0, "output_dir": str(tmp_path), "tensorboard": False, "device": "cpu", **quick}


def test_awr_recovers_the_expert(options: dict[str, object]) -> None:
    agent = AWR.from_config("awr/pendulum", **options)
    agent.learn(progress=False)
    assert agent.evaluate(20).return_mean >= LEARNS


def test_the_readmes_first_example_returns_what_it_says(tmp_path: Path) -> None:
    """Better than its data by far, and near the figure that stands beside it."""
    (code,) = (code for language, code in EXAMPLES if language == "python")
    (data,) = re.findall(r"mean return (-\d+)", code)
    stated = [float(number) for number in re.findall(r"# about (-\d+)", code)]
    printed = [
        float(x)
        for x in re.findall(r"^(?:return )?(-\d+\.\d+)", run("python", code, tmp_path), re.M)
    ]
    assert len(printed) == len(stated) == 2
    # other versions and machines round differently, which in 10,000 updates makes another policy
    assert max(abs(one - other) for one, other in zip(printed, stated, strict=True)) < 150
    assert min(printed) > float(data) + 200


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


@pytest.mark.parametrize(("lr", "learns"), [(1e-3, True), (1e-12, False)])
def test_ppo_balances(lr: float, learns: bool, options: dict[str, object]) -> None:
    budget = 50_000 if learns else 5_120
    agent = PPO.from_config("ppo/cartpole", total_timesteps=budget, lr=lr, **options)
    agent.learn(progress=False)
    score = agent.evaluate(20).return_mean
    assert score >= 400.0 if learns else score <= 200.0


@pytest.mark.parametrize(("lr", "learns"), [(1e-3, True), (1e-12, False)])
def test_sac_swings_up(lr: float, learns: bool, options: dict[str, object]) -> None:
    rates = {"policy_lr": lr, "critic_lr": lr}
    budget = 6_000 if learns else 1_500
    agent = SAC("Pendulum-v1", total_timesteps=budget, hidden_sizes=[64, 64], **rates, **options)
    agent.learn(progress=False)
    score = agent.evaluate(20).return_mean
    assert score >= -400.0 if learns else score <= -800.0


@pytest.mark.parametrize(("ratio", "learns"), [(0.5, True), (0.0, False)])
def test_rlpd_learns_what_only_the_data_show(
    ratio: float, learns: bool, options: dict[str, object]
) -> None:
    agent = RLPD.from_config(
        "rlpd/pendulum",
        total_timesteps=4_000 if learns else 2_000,
        hidden_sizes=[64, 64],
        batch_size=64,
        num_critics=3,
        policy_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        offline_batch_ratio=ratio,
        **options,
    )
    agent.learn(progress=False)
    score = agent.evaluate(20).return_mean
    assert score >= 100.0 if learns else score <= 40.0


def test_gail_learns_from_steps_too_few_to_clone(options: dict[str, object]) -> None:
    agent = GAIL.from_config("gail/pendulum", total_timesteps=7_500, **options)
    agent.learn(progress=False)
    assert agent.evaluate(20).return_mean >= -400.0


def test_cloning_does_not(options: dict[str, object]) -> None:
    """The very steps that GAIL above is shown."""
    whole = load_transition_dataset("pendulum-expert")
    few = demonstrations(whole, 4, 10, derive_seed(0, "demonstrations"))
    agent = BC("Pendulum-v1", dataset=few, hidden_sizes=[128, 128], batch_size=64, **options)
    agent.learn(total_updates=2_000, progress=False)
    assert agent.evaluate(20).return_mean <= -800.0


@pytest.mark.parametrize(("lr", "learns"), [(5e-4, True), (1e-12, False)])
def test_dqn_catches_what_it_sees(lr: float, learns: bool, options: dict[str, object]) -> None:
    agent = DQN(
        CATCH_ID,
        total_timesteps=6_000 if learns else 1_000,
        hidden_sizes=[64],
        batch_size=32,
        buffer_capacity=6_000,
        learning_starts=500,
        gradient_updates_per_step=0.5,
        lr=lr,
        target_update_interval=100,
        epsilon_fraction=0.5,
        threads=1,
        **options,
    )
    agent.learn(progress=False)
    score = agent.evaluate(50).return_mean
    assert score >= 0.8 if learns else score <= 0.0


@pytest.mark.parametrize("shuffled", [False, True])
def test_dreamer_catches_in_a_world_it_has_learned(
    shuffled: bool, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small board; the twin's model is told actions that were not those taken."""
    sample = SequenceReplay.sample

    def mixed(self: SequenceReplay, *arguments: Any, **named: Any) -> SequenceBatch:
        batch = sample(self, *arguments, **named)
        rows = batch.action.flatten(0, 1)
        return batch._replace(action=rows[torch.randperm(len(rows))].view_as(batch.action))

    if shuffled:
        monkeypatch.setattr(SequenceReplay, "sample", mixed)
    agent = Dreamer(
        CATCH_ID,
        env_kwargs={"rows": 4, "columns": 4},
        total_timesteps=1_200,
        num_envs=4,
        size="tiny",
        batch_size=16,
        batch_length=4,
        rollout_length=4,
        gradient_updates_per_step=0.5,
        learning_starts=200,
        buffer_capacity=2_000,
        horizon=100,
        lr=1e-3,
        lr_warmup=50,
        entropy_coef=0.1,
        threads=1,
        **options,
    )
    agent.learn(progress=False)
    score = agent.evaluate(40).return_mean
    assert score <= 0.3 if shuffled else score >= 0.9
