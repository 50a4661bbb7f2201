"""Data that a policy makes: what it did, in which episodes, and with how much chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import BC, CRR, DQN, PPO, SAC, TransitionDataset, load, load_transition_dataset
from rl_training.data.convert import save_dataset
from rl_training.experiment.errors import ConfigError, RLTrainingError
from rl_training.runtime.collection import CollectionProgress

from ..each import each

TINY: dict[str, Any] = {"hidden_sizes": (8,), "device": "cpu"}


@pytest.fixture(scope="module")
def sac() -> SAC:
    return SAC("Pendulum-v1", env_kwargs={"max_episode_steps": 30}, **TINY)


@pytest.fixture(scope="module")
def dqn() -> DQN:
    """Ends some episodes by falling and some by the clock."""
    return DQN("CartPole-v1", env_kwargs={"max_episode_steps": 14}, **TINY)


def assert_same(one: TransitionDataset, other: TransitionDataset) -> None:
    for name, array in one.to_arrays().items():
        np.testing.assert_array_equal(array, other.to_arrays()[name], err_msg=name)


# --- episodes ------------------------------------------------------------------------------------


def test_rows_are_what_the_environment_did(dqn: DQN) -> None:
    """The recorded actions, played again by hand, give every recorded array."""
    data = dqn.collect(20, epsilon=0.5, seed=3)
    assert data.num_episodes == 20
    assert data.terminations.any()
    assert data.truncations.any()
    assert not (data.terminations & data.truncations).any()
    env, row = gym.make("CartPole-v1", max_episode_steps=14), 0
    for episode in range(20):
        seed = int(np.random.SeedSequence([3, episode]).generate_state(2)[0])
        observation, _ = env.reset(seed=seed)
        done = False
        while not done:
            np.testing.assert_array_equal(data.observations[row], observation)
            observation, reward, ended, cut, _ = env.step(int(data.actions[row]))
            np.testing.assert_array_equal(data.next_observations[row], observation)
            assert data.rewards[row] == reward
            assert data.terminations[row] == ended
            assert data.truncations[row] == (cut and not ended)
            done, row = ended or cut, row + 1
    assert row == len(data)


@each(
    "options",
    [
        {},
        {"noise": 0.3},
        {"epsilon": 0.3},
        {"deterministic": False, "noise": 0.1, "epsilon": 0.1},
    ],
    ids=str,
)
def test_an_episode_is_decided_by_seed_and_number(sac: SAC, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    few = sac.collect(2, seed=5, **options)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    more = sac.collect(4, seed=5, **options)
    assert torch.equal(torch.get_rng_state(), before), "a random stream of the user's moved"
    assert_same(few, more.take_episodes(2))
    by_steps = sac.collect(steps=45, seed=5, **options)
    np.testing.assert_array_equal(by_steps.actions, few.actions[:45])
    other = sac.collect(2, seed=6, **options)
    assert (other.observations[0] != few.observations[0]).any()
    assert not np.array_equal(other.actions, few.actions)


def test_steps_are_exact_and_the_last_episode_is_left_open(sac: SAC) -> None:
    data = sac.collect(steps=100)
    assert len(data) == 100
    assert data.episode_lengths().tolist() == [30, 30, 30, 10]
    assert data.truncations.sum() == 4
    assert any("last episode has no end" in note for note in data.notes)
    assert not sac.collect(steps=60).notes, "the clock ended both"
    assert not sac.collect(steps=7).has_whole_episode


def test_progress_sees_every_step(dqn: DQN, capsys: pytest.CaptureFixture[str]) -> None:
    progress = CollectionProgress(7, None)
    data = dqn.collect(7, epsilon=0.5, on_step=progress)
    progress.stop()
    assert progress.steps == len(data)
    np.testing.assert_array_equal(progress.returns, data.episode_returns())
    mean, std = data.episode_returns().mean(), data.episode_returns().std()
    assert progress.summary() == (
        f"7 whole episodes, {len(data)} steps, return {mean:,.1f} ± {std:,.1f}"
    )
    assert capsys.readouterr().out == "", "progress belongs on stderr"


# --- chance --------------------------------------------------------------------------------------


def test_without_chance_the_actions_are_the_policys(sac: SAC, dqn: DQN) -> None:
    for agent in (sac, dqn):
        data = agent.collect(3)
        wanted = agent.predict(data.observations)[0]
        np.testing.assert_allclose(data.actions, wanted, rtol=0, atol=1e-5)


def test_noise_is_in_units_of_half_the_range_and_clipped(sac: SAC) -> None:
    """Pendulum's actions span [-2, 2], so a deviation of 0.1 becomes 0.2."""
    data = sac.collect(40, noise=0.1)
    added = data.actions - sac.predict(data.observations)[0]
    inside = np.abs(data.actions) < 1.999
    assert inside.mean() > 0.5
    assert np.std(added[inside]) == pytest.approx(0.2, rel=0.1)
    assert abs(np.mean(added[inside])) < 0.03
    loud = sac.collect(5, noise=5.0)
    assert np.abs(loud.actions).max() == 2.0
    assert (np.abs(loud.actions) == 2.0).mean() > 0.5


def test_epsilon_is_the_share_of_uniform_actions(sac: SAC, dqn: DQN) -> None:
    data = sac.collect(60, epsilon=0.25)
    random = np.abs(data.actions - sac.predict(data.observations)[0]).max(1) > 1e-4
    assert random.mean() == pytest.approx(0.25, abs=0.04)
    drawn = data.actions[random]
    assert drawn.std() == pytest.approx(4 / np.sqrt(12), rel=0.1), "uniform on [-2, 2]"
    coins = dqn.collect(steps=2_000, epsilon=1.0).actions
    assert coins.mean() == pytest.approx(0.5, abs=0.05)
    differing = dqn.collect(steps=2_000, epsilon=0.4)
    share = (differing.actions != dqn.predict(differing.observations)[0]).mean()
    assert share == pytest.approx(0.2, abs=0.04), "half of the random actions are the policy's"


def test_a_stochastic_policy_is_sampled() -> None:
    ppo = PPO("CartPole-v1", **TINY)
    sampled = ppo.collect(10, deterministic=False)
    greedy = ppo.predict(sampled.observations)[0]
    assert 0.2 < (sampled.actions != greedy).mean() < 0.8, "an untrained policy is undecided"


def test_actions_that_do_not_start_at_zero() -> None:
    gym.register(
        "CountingFromThree-v0",
        lambda: gym.wrappers.TransformAction(
            gym.make("CartPole-v1").unwrapped,
            lambda action: action - 3,
            gym.spaces.Discrete(2, start=3),
        ),
        max_episode_steps=20,
    )
    try:
        data = DQN("CountingFromThree-v0", **TINY).collect(5, epsilon=0.5)
    finally:
        gym.registry.pop("CountingFromThree-v0")
    assert set(data.actions.tolist()) == {3, 4}


# --- use -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["data.npz", "data.hdf5", "minari:cartpole/dqn-v0"])
def test_what_was_collected_comes_back_and_trains(
    dqn: DQN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    data = load(dqn.save(tmp_path / "dqn")).collect(6, epsilon=0.3)
    assert_same(data, dqn.collect(6, epsilon=0.3))
    again = load_transition_dataset(save_dataset(data, target), env_id="CartPole-v1")
    assert_same(data, again)
    bc = BC("CartPole-v1", dataset=target, tensorboard=False, eval_episodes=1, **TINY)
    assert bc.learn(5, progress=False).updates == 5


def test_box_data_train_a_critic(sac: SAC, tmp_path: Path) -> None:
    data = load(sac.save(tmp_path / "sac")).collect(3, noise=0.2)
    crr = CRR(
        "Pendulum-v1",
        dataset=data,
        output_dir=str(tmp_path / "runs"),
        tensorboard=False,
        final_eval=False,
        **TINY,
    )
    assert crr.learn(5, progress=False).updates == 5


# --- refusals ------------------------------------------------------------------------------------

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({}, r"^episodes, steps: "),
    ({"episodes": 1, "steps": 1}, r"^episodes, steps: "),
    ({"episodes": 0}, r"^episodes: .* at least 1, got 0"),
    ({"steps": 1.5}, r"^steps: .* got 1.5"),
    ({"episodes": 1, "seed": -1}, r"^seed: .* at least 0, got -1"),
    ({"episodes": 1, "noise": -0.1}, r"^noise: .*0 or more, got -0.1"),
    ({"episodes": 1, "noise": float("nan")}, r"^noise: .* got nan"),
    ({"episodes": 1, "noise": "much"}, r"^noise: .* got 'much'"),
    ({"episodes": 1, "epsilon": 1.01}, r"^epsilon: .*between 0 and 1, got 1.01"),
    ({"episodes": 1, "epsilon": float("inf")}, r"^epsilon: .* got inf"),
]


@each(("options", "message"), MISTAKES, ids=str)
def test_mistakes(sac: SAC, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sac.collect(**options)


def test_chance_that_a_policy_does_not_know(dqn: DQN) -> None:
    with pytest.raises(ConfigError, match=r"^noise: .*Discrete.*use epsilon"):
        dqn.collect(1, noise=0.1)
    with pytest.raises(ConfigError, match=r"^deterministic: .*--stochastic.*use epsilon"):
        dqn.collect(1, deterministic=False)


def test_an_environment_that_is_gone(tmp_path: Path) -> None:
    gym.register("Gone-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
    path = DQN("Gone-v0", **TINY).save(tmp_path / "agent")
    gym.registry.pop("Gone-v0")
    with pytest.raises(RLTrainingError, match=r"^env_id: unknown environment 'Gone-v0'"):
        load(path).collect(1)
