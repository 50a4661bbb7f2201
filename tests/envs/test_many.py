"""Gymnasium's vector environments, which hold many environments already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training import DQN, PPO, load
from rl_training.envs.collector import Collector
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError, RLTrainingError

HERE = __name__
SMALL: dict[str, Any] = {"tensorboard": False, "device": "cpu", "threads": 1, "hidden_sizes": [4]}
ROLLOUT = {"rollout_length": 8, "batch_size": 8, "epochs": 1, "num_envs": 3}
CART = {"id": "CartPole-v1", "max_episode_steps": 7}


def make_vec(num_envs: int, mode: str = "DISABLED", stubborn: bool = False) -> VectorEnv:
    kind = Stubborn if stubborn else SyncVectorEnv
    makers = [lambda: gym.make(**CART) for _ in range(num_envs)]  # type: ignore[arg-type]
    return kind(makers, autoreset_mode=AutoresetMode[mode])


class Stubborn(SyncVectorEnv):
    """Resets all of its environments, whatever it is asked for, as many simulators do."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


class Numbered(SyncVectorEnv):
    """Resets environments by their numbers and without seeds, as EnvPool does: those that ended
    and are not reset begin anew in the next step, which is lost."""

    def reset(self, env_id: Any = None, *, seed: Any = None, options: Any = None) -> Any:
        assert seed is None
        numbers = np.arange(self.num_envs) if env_id is None else env_id
        for i in numbers[::-1]:
            self._env_obs[i], _ = self.envs[i].reset()  # type: ignore[call-overload]
        self._autoreset_envs[numbers] = False
        first = np.stack([np.asarray(self._env_obs[i]) for i in numbers[::-1]])
        return first, {"env_id": numbers[::-1].copy()}


def numbered(num_envs: int) -> VectorEnv:
    return Numbered([lambda: gym.make(**CART)] * num_envs)  # type: ignore[arg-type]


def pooled(num_envs: int) -> Any:
    import envpool

    return envpool.make("CartPole-v1", "gymnasium", num_envs=num_envs, max_episode_steps=7)


def wrong(num_envs: int) -> int:
    return num_envs


def dicts(num_envs: int) -> VectorEnv:
    def one() -> gym.Env[Any, Any]:
        return gym.make("FrozenLake-v1")

    return SyncVectorEnv([one] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


def parameters(agent: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in agent.algorithm.parameters()])


def test_many_environments_learn_what_single_ones_do_and_resume_exactly(tmp_path: Path) -> None:
    made = {**SMALL, **ROLLOUT, "output_dir": tmp_path}
    single = PPO("CartPole-v1", env_kwargs={"max_episode_steps": 7}, **made)
    single.learn(total_timesteps=96, progress=False)
    for mode in ("DISABLED", "NEXT_STEP", "SAME_STEP"):
        agent = PPO(make_vec, env_kwargs={"mode": mode}, **made)
        assert agent.config.env_id == f"{HERE}:make_vec"
        agent.learn(total_timesteps=96, progress=False)
        assert torch.equal(parameters(agent), parameters(single)), mode
        half = PPO(make_vec, env_kwargs={"mode": mode}, **made)
        run = half.learn(total_timesteps=48, progress=False).run_dir
        resumed = PPO.resume(run, total_timesteps=96, progress=False)
        assert torch.equal(parameters(resumed), parameters(single)), mode
        result = json.loads((Path(run) / "result.json").read_text())
        assert result["exact"] is True
    again = load(run)
    assert again.evaluate(3).returns == single.evaluate(3).returns
    assert max(again.collect(episodes=2).episode_lengths()) <= 7


def test_simulators_that_reset_themselves_are_trained_in_and_said_to_be_inexact(
    tmp_path: Path,
) -> None:
    options = {"mode": "SAME_STEP", "stubborn": True}
    collector = Collector(f"{HERE}:make_vec", options, 2, seed=0)
    try:
        ends = 0
        for _ in range(30):
            step = collector.step(np.ones(2, np.int64))
            for i in np.flatnonzero(step.truncated):
                ends += 1
                assert step.next_obs[i, 1] > 1.0  # after seven pushes: the last of its episode
                assert abs(collector.obs[i, 1]) < 0.1  # the first of a new one
        assert ends
        assert "resets its environments itself" in str(collector.inexact_because)
    finally:
        collector.close()
    knobs = {**SMALL, "num_envs": 2, "learning_starts": 4, "buffer_capacity": 50, "batch_size": 4}
    agent = DQN(make_vec, env_kwargs=options, output_dir=tmp_path, **knobs)
    run = agent.learn(total_timesteps=20, progress=False).run_dir
    result = json.loads((Path(run) / "result.json").read_text())
    assert result["exact"] is False
    assert "a resumed run begins new episodes" in result["inexact_because"]
    DQN.resume(run, total_timesteps=40, progress=False)


@pytest.mark.parametrize("maker", ["numbered", "pooled"])
def test_environments_that_are_reset_by_number_lose_no_step(maker: str, tmp_path: Path) -> None:
    if maker == "pooled":
        pytest.importorskip("envpool")
    collector = Collector(f"{HERE}:{maker}", {}, 3, seed=0)
    try:
        lengths = []
        for step in range(40):
            actions = np.array([1, step % 2, (step // 2) % 2])
            seen = collector.obs
            taken = collector.step(actions)
            # every row is a step of CartPole: the velocity follows the push of the action
            pushed = taken.next_obs[:, 1] > seen[:, 1]
            np.testing.assert_array_equal(pushed, actions == 1)
            lengths += [(record.env, record.length) for record in collector.drain_episodes()]
        assert {env for env, _ in lengths} == {0, 1, 2}
        assert all(length == 7 for env, length in lengths if env)
    finally:
        collector.close()
    knobs = {**SMALL, "num_envs": 2, "learning_starts": 4, "buffer_capacity": 50, "batch_size": 4}
    agent = DQN(globals()[maker], output_dir=tmp_path, **knobs)
    run = agent.learn(total_timesteps=20, progress=False).run_dir
    assert json.loads((Path(run) / "result.json").read_text())["exact"] is False
    DQN.resume(run, total_timesteps=30, progress=False)


def test_what_cannot_be_trained_in_is_refused_in_one_sentence(tmp_path: Path) -> None:
    made = {**SMALL, **ROLLOUT, "output_dir": tmp_path}

    def learn(**options: Any) -> None:
        PPO(make_vec, **{**made, **options}).learn(total_timesteps=24, progress=False)

    with pytest.raises(EnvironmentSetupError, match="a step would be lost at every end") as caught:
        learn(env_kwargs={"mode": "NEXT_STEP", "stubborn": True})
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^vectorization: '.*make_vec' makes many"):
        learn(vectorization="async")
    limit = {"kind": "gymnasium.wrappers:TimeLimit", "options": {"max_episode_steps": 5}}
    with pytest.raises(EnvironmentSetupError, match=r"^wrappers: '.*make_vec' makes many"):
        learn(wrappers=[limit])
    with pytest.raises(ConfigError, match="give the function that makes it, with a parameter num"):
        PPO(make_vec(2), **SMALL)
    with pytest.raises(RLTrainingError, match=r"gave int, expected a gymnasium\.vector\.VectorEnv"):
        PPO(wrong, **SMALL)
    lake = PPO(dicts, **made)
    with pytest.raises(EnvironmentSetupError, match="must have vectors or images as observations"):
        lake.learn(total_timesteps=24, progress=False)
