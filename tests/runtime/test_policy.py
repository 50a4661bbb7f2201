"""One way to act: predict, evaluate, collect and videos take the same actions to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.base import Act
from rl_training.algorithms.sac import SACAlgorithm
from rl_training.api.managed import ManagedAlgorithm
from rl_training.envs.contract import close_env
from rl_training.envs.make import make_env
from rl_training.experiment.errors import ConfigError, DataError, TrainingDivergedError
from rl_training.experiment.registry import algorithm_class, algorithm_names, register
from rl_training.models.policies import DeterministicPolicy
from rl_training.models.value_networks import GreedyPolicy
from rl_training.runtime.evaluation import start_seed

from ..contract.small_runs import small_config

SEED = 5


class Lopsided(gym.Env[Any, Any]):
    """A walk with actions between bounds that are not symmetric."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gym.spaces.Box(
        np.array([-2.1, 0.8], np.float32), np.array([2.7, 2.1], np.float32)
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.normal(size=2).astype(np.float32), 0
        return self.at, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.at = (0.9 * self.at + 0.1 * action).astype(np.float32)
        return self.at, -float(np.sum(self.at * action)), False, self.steps >= 30, {}


gym.register("tests/Lopsided-v0", Lopsided)


def agent_of(algo: str, **changes: Any) -> ManagedAlgorithm:
    return ManagedAlgorithm(small_config(algo, **changes))


def return_by_predict(agent: ManagedAlgorithm) -> float:
    """What the first episode of `evaluate(seed=SEED)` earns, step by step."""
    env = make_env(agent.config.env_id, agent.config.env_kwargs)
    obs, _ = env.reset(seed=start_seed(SEED, 0))
    state, total, start, ended = None, 0.0, True, False
    while not ended:
        action, state = agent.predict(obs, state, episode_start=np.array([start]))
        obs, reward, terminated, truncated, _ = env.step(action)
        total, start, ended = total + float(reward), False, terminated or truncated
    close_env(env)
    return total


@pytest.mark.parametrize("algo", algorithm_names())
def test_a_loop_over_predict_is_an_evaluation(algo: str) -> None:
    for kind in sorted(algorithm_class(algo).action_kinds):
        agent = agent_of(algo, kind=kind)
        assert return_by_predict(agent) == agent.evaluate(1, seed=SEED).returns[0], kind


def test_bounds_that_are_not_symmetric_and_images() -> None:
    lopsided = {"env_id": "tests/Lopsided-v0", "total_timesteps": 64}
    for algo in ("sac", "ppo", "dreamer"):
        agent = agent_of(algo, kind="box", **lopsided)
        assert return_by_predict(agent) == agent.evaluate(1, seed=SEED).returns[0], algo
    for algo in ("dqn", "ppo", "dreamer"):
        agent = agent_of(algo, kind="discrete", env_id="rl_training/Catch-v0")
        assert return_by_predict(agent) == agent.evaluate(1, seed=SEED).returns[0], algo


class Constant(SACAlgorithm):
    """Always takes the same action."""

    def act(self, obs: torch.Tensor, *, explore: bool, carry: Any = None) -> Act:
        return Act(torch.full((len(obs), 1), 0.25))


@pytest.mark.usefixtures("own_names")
def test_an_algorithm_that_overrides_act_is_honoured_everywhere(tmp_path: Path) -> None:
    register("constant", Constant)
    agent = agent_of("constant")
    assert agent.predict([1.0, 0.0, 0.0])[0].tolist() == [0.5]
    assert set(agent.collect(1).actions.ravel().tolist()) == {0.5}
    constant = return_by_predict(agent)
    assert agent.evaluate(1, seed=SEED).returns == (constant,)
    assert agent.record_video(tmp_path / "x.gif", seed=SEED).returns == (constant,)


def test_a_policy_without_chance_refuses_to_sample_in_one_sentence() -> None:
    obs = {"box": [1.0, 0.0, 0.0], "discrete": [0.0, 0.0, 0.0, 0.0]}
    refused, said = [], set()
    for algo in algorithm_names():
        agent = agent_of(algo)
        kind = agent.algorithm.spaces.action_kind
        if not isinstance(agent.algorithm.policy, (GreedyPolicy, DeterministicPolicy)):
            agent.predict(obs[kind], deterministic=False)
            continue
        refused.append(algo)
        for use in (
            lambda agent=agent, kind=kind: agent.predict(obs[kind], deterministic=False),
            lambda agent=agent: agent.evaluate(1, deterministic=False),
            lambda agent=agent: agent.collect(1, deterministic=False),
            lambda agent=agent: agent.record_video("never.gif", deterministic=False),
        ):
            with pytest.raises(ConfigError, match=r"^deterministic: .* nothing to sample") as no:
                use()
            said.add(str(no.value))
    assert "dqn" in refused
    assert len(said) == 1, said


def test_one_observation_takes_the_same_way_as_a_batch_of_one() -> None:
    """`predict` reuses its place for one observation, and calls the network without PyTorch's
    call unless something is hooked into it."""
    for kind in ("box", "discrete"):
        agent = agent_of("awr", kind=kind)
        seen: list[int] = []
        rng = np.random.default_rng(0)
        shape = agent.algorithm.spaces.obs_shape
        observations = rng.normal(size=(3, *shape)).astype(np.float32)
        alone = [agent.predict(obs)[0] for obs in observations]
        for obs, action in zip(observations, alone, strict=True):
            np.testing.assert_array_equal(agent.predict(obs[None])[0][0], action)
        net = agent.algorithm.policy.net
        assert isinstance(net, torch.nn.Module)
        net.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        agent.predict(observations[0])
        assert seen == [1]
        for wrong in (np.nan, np.inf, -np.inf):
            spoiled = observations[0].copy()
            spoiled[-1] = wrong
            with pytest.raises(DataError, match=r"^predict: the observation holds NaN"):
                agent.predict(spoiled)
        with torch.no_grad():
            next(net.parameters()).fill_(torch.nan)
        if kind == "box":
            with pytest.raises(TrainingDivergedError, match="actions became NaN"):
                agent.predict(observations[0])
        assert torch.is_grad_enabled()
