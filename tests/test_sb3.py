"""Stable-Baselines3's own evaluation accepts our agents, and its PPO learns as ours does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import BC, ManagedAlgorithm, load
from rl_training.algorithms.ppo import PPOAlgorithm, PPOParams
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import load_config
from rl_training.replay.rollout import RolloutBatch, generalized_advantages

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


class RandomPictures(gym.Env[np.ndarray, int]):
    """Pictures, rewards and ends that depend on nothing."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, ended = float(self.np_random.normal()), bool(self.np_random.random() < 0.1)
        return self._picture(), reward, ended, False, {}

    def _picture(self) -> np.ndarray:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


def test_ppo_on_images_learns_as_its_ppo_does() -> None:
    """From equal weights and the same rollout, with the settings of the Atari configs."""
    sb3 = pytest.importorskip("stable_baselines3")
    torch.manual_seed(0)
    envs = sb3.common.vec_env.DummyVecEnv([RandomPictures] * 2)
    envs.seed(0)
    p = load_config("ppo/breakout").params
    knobs = {"learning_rate": 1e-3, "clip_range": p.clip, "ent_coef": p.entropy_coef}
    peer = sb3.PPO(
        "CnnPolicy", envs, n_steps=32, batch_size=64, n_epochs=4, **knobs, seed=0, device="cpu"
    )
    with torch.no_grad():  # probabilities that are far from equal have entropy to gain
        peer.policy.action_net.weight.mul_(50.0)
    peer.set_logger(sb3.common.logger.configure(None, []))
    _, callback = peer._setup_learn(64)
    buffer = peer.rollout_buffer
    peer.collect_rollouts(peer.env, callback, buffer, n_rollout_steps=32)
    columns = [np.array(x) for x in (buffer.rewards, buffer.values, buffer.episode_starts)]
    reward, value, first = map(torch.from_numpy, columns)
    with torch.no_grad():
        last = peer.policy.predict_values(torch.as_tensor(peer._last_obs)).flatten()
    ended = torch.cat([first[1:], torch.as_tensor(peer._last_episode_starts)[None]]).bool()
    advantage = generalized_advantages(
        reward, value, torch.cat([value[1:], last[None]]), ended, torch.zeros_like(ended),
        gamma=p.gamma, gae_lambda=p.gae_lambda,
    )  # fmt: skip
    rows = next(buffer.get())  # in random order
    order = [int((rows.old_values == x).nonzero()) for x in value.T.flatten()]
    ours = advantage.T.flatten()
    torch.testing.assert_close(rows.advantages[order], ours, rtol=1e-4, atol=1e-5)

    settings = {**load_config("ppo/breakout").algo_kwargs, "lr": 1e-3, "batch_size": 64}
    env = RandomPictures()
    spaces = Spaces.from_gymnasium(env.observation_space, env.action_space)
    learner = PPOAlgorithm(spaces, PPOParams(**settings))
    seen, acts = peer.policy.features_extractor, learner.actor.net
    theirs = [*seen.cnn[0:6:2], seen.linear[0], peer.policy.action_net, peer.policy.value_net]
    own = [*acts.encoder.convolutions, *acts.layers, learner.value.net.layers[0]]
    begins = [layer.weight.detach().clone() for layer in theirs]
    for one, other in zip(own, theirs, strict=True):
        one.load_state_dict(other.state_dict())
    batch = RolloutBatch(
        rows.observations[order], rows.actions[order].long().flatten(),
        rows.old_log_prob[order], rows.old_values[order], ours, ours + rows.old_values[order],
    )  # fmt: skip
    peer.train()
    for _ in range(4):
        learner.update(batch)
    for one, other, begin in zip(own, theirs, begins, strict=True):
        moved, apart = (other.weight - begin).norm(), (other.weight - one.weight).norm()
        assert moved > 1e-3
        assert apart < 1e-3 * moved, (one, float(apart / moved))
