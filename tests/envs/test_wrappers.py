"""Wrappers that a configuration names: around every environment, recorded, trusted as modules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from gymnasium.wrappers import ClipReward, TimeLimit, TransformReward
from typer.testing import CliRunner

from rl_training import BC, PPO, TrainConfig, load
from rl_training.cli.main import app
from rl_training.envs.terminations import termination_for
from rl_training.experiment.errors import ConfigError, RLTrainingError

SMALL: dict[str, Any] = {"tensorboard": False, "device": "cpu", "threads": 1, "hidden_sizes": [4]}
ROLLOUT = {"rollout_length": 8, "batch_size": 8, "epochs": 1}
CART = "CartPole-v1"


class Numbered(gym.ObservationWrapper[Any, Any, Any]):
    """Appends a constant to observations."""

    def __init__(self, env: gym.Env[Any, Any], number: float = 7.0) -> None:
        super().__init__(env)
        self.number = number
        width = (env.observation_space.shape or (0,))[0] + 1
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.append(observation, self.number).astype(np.float32)


def nothing(env: gym.Env[Any, Any]) -> int:
    return 3


HERE = __name__
NUMBERED = {"kind": f"{HERE}:Numbered", "options": {"number": 2.5}}
SHORT = {"kind": "gymnasium.wrappers:TimeLimit", "options": {"max_episode_steps": 5}}


def test_training_evaluation_collection_and_resume_use_them(tmp_path: Path) -> None:
    made = {**SMALL, **ROLLOUT, "wrappers": [NUMBERED, SHORT], "output_dir": tmp_path}
    agent = PPO(CART, **made)
    assert agent.algorithm.spaces.obs_dim == 5
    half = agent.learn(total_timesteps=16, progress=False).run_dir
    whole = PPO(CART, **made)
    whole.learn(total_timesteps=32, progress=False)
    resumed = PPO.resume(half, total_timesteps=32, progress=False)
    pairs = zip(whole.algorithm.parameters(), resumed.algorithm.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    again = load(half)
    assert again.config.wrappers == agent.config.wrappers
    assert max(again.evaluate(3).lengths) <= 5
    data = again.collect(episodes=2)
    assert set(data.observations[:, -1].tolist()) == {2.5}
    assert max(data.episode_lengths()) <= 5
    # another environment is seen through the same wrappers, unless others are given
    assert max(again.evaluate(2, env_id=CART).lengths) <= 5
    longer = {"wrappers": [NUMBERED]}
    assert max(again.evaluate(4, env_id=CART, env_kwargs=longer).lengths) > 5
    clone = BC(CART, dataset={"kind": "random", "steps": 20}, **{**SMALL, "wrappers": [Numbered]})
    assert clone.algorithm.spaces.obs_dim == 5
    assert clone.config.wrappers[0].kind == f"{HERE}:Numbered"


def test_an_instance_brings_the_wrappers_that_record_their_arguments() -> None:
    env = ClipReward(TimeLimit(gym.make(CART), 9), -0.5, 0.5)
    agent = PPO(env, **SMALL, **ROLLOUT)
    assert [one.kind.rpartition(":")[2] for one in agent.config.wrappers] == ["ClipReward"]
    assert agent.config.wrappers[0].options == {"min_reward": -0.5, "max_reward": 0.5}
    assert max(agent.evaluate(2).lengths) <= 9
    with pytest.raises(ConfigError, match="Numbered, which does not record its arguments"):
        PPO(Numbered(gym.make(CART)), **SMALL)
    with pytest.raises(ConfigError, match="TransformReward' cannot be written to a file"):
        PPO(TransformReward(gym.make(CART), lambda r: r), **SMALL)


def test_wrong_wrappers_are_refused_in_one_sentence() -> None:
    cases: list[tuple[Any, str]] = [
        (["Numbered"], r"^wrappers\.0: 'Numbered' names no wrapper; write it as package"),
        ([f"{HERE}:Missing"], r"^wrappers\.0: '.*:Missing' cannot be imported"),
        (["no_such_package:Wrapper"], r"^wrappers\.0: .*cannot be imported"),
        ([f"{HERE}:nothing"], r"^wrappers\.0: nothing gave int, expected a gymnasium\.Env"),
        ([f"{HERE}:CART"], r"^wrappers\.0: '.*:CART' is not a class"),
        ([NUMBERED, {"kind": f"{HERE}:Numbered", "options": {"n": 1}}], r"^wrappers\.1: Numbered"),
        ([{"kind": f"{HERE}:Numbered", "number": 1}], r"wrappers\.0\.number: unknown key"),
        ("gymnasium.wrappers:ClipReward", "wrappers: "),
    ]
    for wrappers, message in cases:
        with pytest.raises(RLTrainingError, match=message) as caught:
            PPO(CART, wrappers=wrappers, **SMALL)
        assert "\n" not in str(caught.value)
    log = {"kind": "npz", "path": "log.npz"}
    with pytest.raises(ConfigError, match=r"^wrappers: there is no environment to make"):
        TrainConfig(algo="bc", dataset=log, total_updates=1, wrappers=[NUMBERED])
    worlds = PPO("torch/CartPole-v1", wrappers=[SHORT], **SMALL, **ROLLOUT)
    with pytest.raises(ConfigError, match=r"^wrappers: the worlds of 'torch/CartPole-v1'"):
        worlds.learn(total_timesteps=16, progress=False)
    with pytest.raises(ConfigError, match="wrappers may change what 'Pendulum-v1' shows"):
        termination_for("auto", "Pendulum-v1", {"wrappers": [NUMBERED]}, {})


def test_the_command_line_takes_them_and_a_foreign_checkpoint_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "own_wrappers.py"
    module.write_text(
        "import gymnasium as gym\n"
        "class Short(gym.wrappers.TimeLimit):\n"
        "    def __init__(self, env): super().__init__(env, 4)\n"
    )
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump(
            {
                "algo": "ppo",
                "env_id": CART,
                "wrappers": ["own_wrappers:Short"],
                "total_timesteps": 8,
                "eval_episodes": 2,
                "tensorboard": False,
                "device": "cpu",
                "run_name": "one",
                "algo_kwargs": {"hidden_sizes": [4], **ROLLOUT},
            }
        )
    )

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(app, ["train", "run.yaml"])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "runs/one/result.json").read_text())
    assert result["last_eval"]["eval/length_mean"] <= 4
    assert max(load("runs/one").evaluate(2).lengths) <= 4
    monkeypatch.delitem(sys.modules, "own_wrappers")
    stranger = load("runs/one")
    for options in ({}, {"env_id": CART}):
        with pytest.raises(ConfigError, match="names the module 'own_wrappers'"):
            stranger.evaluate(1, **options)
    assert load("runs/one", trust=True).evaluate(1).lengths[0] <= 4
