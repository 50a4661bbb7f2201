"""Stable-Baselines3's own evaluation accepts our agents."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rl_training import BC, ManagedAlgorithm, load

evaluation = pytest.importorskip("stable_baselines3.common.evaluation")


@pytest.mark.parametrize(
    ("env_id", "data"), [("Pendulum-v1", "pendulum-expert"), ("CartPole-v1", "cartpole-expert")]
)
def test_evaluate_policy(env_id: str, data: str) -> None:
    agent = BC(env_id, dataset=data, hidden_sizes=[16])
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))
    mean, std = evaluation.evaluate_policy(agent, env, n_eval_episodes=3, warn=False)
    assert np.isfinite([mean, std]).all()


def test_predict_from_memory_in_the_environments_units(tmp_path: Path) -> None:
    agent: ManagedAlgorithm = BC("Pendulum-v1", dataset="pendulum-expert", hidden_sizes=[16])
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    one, state = agent.predict(observations[0], state="kept")
    many, _ = agent.predict(observations)
    assert state == "kept"
    assert one.shape == (1,)
    assert many.shape == (5, 1)
    assert np.abs(many).max() <= 2.0
    np.testing.assert_allclose(many[0], one, rtol=1e-5)
    sampled, _ = agent.predict(observations, deterministic=False)
    assert not np.allclose(sampled, many)

    path = agent.save(tmp_path / "policy")
    again = load(path)
    for file in path.iterdir():
        file.unlink()  # nothing is read after loading
    np.testing.assert_array_equal(again.predict(observations)[0], many)


def test_discrete_predictions_are_actions_of_the_space() -> None:
    agent = BC("CartPole-v1", dataset="cartpole-expert", hidden_sizes=[16])
    env = gym.make("CartPole-v1")
    action, _ = agent.predict(env.reset(seed=0)[0])
    assert env.action_space.contains(action)
