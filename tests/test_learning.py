"""The quick learning gates, one per family, each beside an ablation that must fail.

All gates, with every algorithm and several seeds, are in benchmarks/learning.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import (
    AWR,
    BC,
    DQN,
    GAIL,
    PPO,
    RLPD,
    SAC,
    Callback,
    Dreamer,
    ManagedAlgorithm,
    load_transition_dataset,
)
from rl_training.data.demonstrations import demonstrations
from rl_training.envs.toys.catch import CATCH_ID
from rl_training.experiment.seeding import derive_seed
from rl_training.replay.sequences import SequenceBatch, SequenceReplay
from rl_training.runtime.callbacks import EvalEvent

LEARNS, FAILS = -250.0, -500.0
ENOUGH = 6_000
"""Updates after which AWR has learned from the same data; the ablations get as many."""


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    quick = {"checkpoint_interval": 0, "final_eval": False, "keep_best": False}
    return {"seed": 0, "output_dir": str(tmp_path), "tensorboard": False, "device": "cpu", **quick}


class Until(Callback):
    """Ends a run at the first evaluation that is clearly better than the gate asks for."""

    def __init__(self, score: float) -> None:
        self.score = score

    def on_eval(self, event: EvalEvent) -> None:
        assert event.result is not None
        if event.result.return_mean >= self.score:
            event.request_stop("learned")


def score_of(agent: ManagedAlgorithm, episodes: int = 20, until: float = np.inf) -> float:
    """Mean return after the budget, or as soon as an evaluation reaches `until`."""
    agent.learn(progress=False, callbacks=[Until(until)])
    return agent.evaluate(episodes).return_mean


def test_awr_recovers_the_expert(options: dict[str, object]) -> None:
    agent = AWR.from_config("awr/pendulum", eval_interval=1_000, **options)
    assert score_of(agent, until=LEARNS + 50.0) >= LEARNS


def test_behaviour_cloning_does_not(options: dict[str, object]) -> None:
    agent = BC.from_config("bc/pendulum", total_updates=ENOUGH, eval_interval=0, **options)
    assert score_of(agent) <= FAILS


def test_awr_learns_from_the_rewards_and_nothing_else(options: dict[str, object]) -> None:
    data = load_transition_dataset("pendulum-mixed", env_id="Pendulum-v1")
    shuffled = np.random.default_rng(0).permutation(data.rewards)
    options |= {"dataset": replace(data, rewards=shuffled), "eval_interval": 0}
    agent = AWR.from_config("awr/pendulum", total_updates=ENOUGH, **options)
    assert score_of(agent) <= FAILS


@pytest.mark.parametrize(("lr", "learns"), [(1e-3, True), (1e-12, False)])
def test_ppo_balances(lr: float, learns: bool, options: dict[str, object]) -> None:
    options |= {"total_timesteps": 50_000 if learns else 5_120, "eval_interval": 5_120}
    score = score_of(PPO.from_config("ppo/cartpole", lr=lr, **options), until=475.0)
    assert score >= 400.0 if learns else score <= 200.0


@pytest.mark.parametrize(("lr", "learns"), [(1e-3, True), (1e-12, False)])
def test_sac_swings_up(lr: float, learns: bool, options: dict[str, object]) -> None:
    rates = {"policy_lr": lr, "critic_lr": lr}
    options |= {"total_timesteps": 6_000 if learns else 1_500, "eval_interval": 500}
    score = score_of(SAC("Pendulum-v1", hidden_sizes=[64, 64], **rates, **options), until=-250.0)
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
        eval_interval=250,
        **options,
    )
    score = score_of(agent, until=130.0)
    assert score >= 100.0 if learns else score <= 40.0


def test_gail_learns_from_steps_too_few_to_clone(options: dict[str, object]) -> None:
    agent = GAIL.from_config("gail/pendulum", total_timesteps=7_500, eval_interval=500, **options)
    assert score_of(agent, until=-250.0) >= -400.0


def test_cloning_does_not(options: dict[str, object]) -> None:
    """The very steps that GAIL above is shown."""
    whole = load_transition_dataset("pendulum-expert")
    few = demonstrations(whole, 4, 10, derive_seed(0, "demonstrations"))
    options |= {"total_updates": 2_000, "eval_interval": 0}
    agent = BC("Pendulum-v1", dataset=few, hidden_sizes=[128, 128], batch_size=64, **options)
    assert score_of(agent) <= -800.0


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
        eval_interval=500,
        eval_episodes=30,
        **options,
    )
    score = score_of(agent, 50, until=1.0)
    assert score >= 0.8 if learns else score <= 0.0


@pytest.mark.parametrize(("lr", "learns"), [(1e-3, True), (1e-12, False)])
def test_ppo_catches_with_layers_that_policy_and_value_share(
    lr: float, learns: bool, options: dict[str, object]
) -> None:
    agent = PPO(
        CATCH_ID,
        total_timesteps=24_576 if learns else 1_024,
        num_envs=8,
        rollout_length=64,
        batch_size=128,
        epochs=4,
        hidden_sizes=[64],
        shared_layers=True,
        entropy_coef=0.01,
        lr=lr,
        threads=1,
        eval_interval=1_024,
        eval_episodes=30,
        **options,
    )
    score = score_of(agent, 50, until=1.0)
    assert score >= 0.8 if learns else score <= 0.0


@pytest.mark.parametrize("shuffled", [False, True])
def test_dreamer_catches_in_a_world_it_has_learned(
    shuffled: bool, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small board; the twin's model gets actions that were not those taken."""
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
        eval_interval=200,
        eval_episodes=30,
        **options,
    )
    score = score_of(agent, 40, until=1.0)
    assert score <= 0.3 if shuffled else score >= 0.9
