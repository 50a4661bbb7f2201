"""Actions of several parts, of other shapes and without bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import AWR, BC, CRR, DQN, MARWIL, PPO, SAC, learn_seeds, load
from rl_training.data.convert import save_dataset
from rl_training.data.sources import load_transition_dataset
from rl_training.data.summary import summarize
from rl_training.envs.make import env_spaces, make_env
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import (
    ConfigError,
    DataError,
    EnvironmentSetupError,
    RLTrainingError,
)

from .choices import ACTIONS, ENV_ID, LENGTH

BOUNDS = {"action_bounds": {"low": [-1.0, -2.0], "high": 2.0}}
SMALL: dict[str, Any] = {"hidden_sizes": [16], "tensorboard": False, "eval_episodes": 2}
QUICK: dict[str, Any] = {"rollout_length": 16, "batch_size": 16, "epochs": 1, **SMALL}


def task(actions: str) -> dict[str, Any]:
    bounds = BOUNDS if actions == "unbounded" else {}
    return {"env_id": ENV_ID, "env_kwargs": {"actions": actions, **bounds}}


def test_spaces_are_flat_inside_and_come_back_from_a_file() -> None:
    for actions, space in ACTIONS.items():
        where = task(actions)
        spaces = env_spaces(where["env_id"], where["env_kwargs"])
        assert Spaces.from_dict(json.loads(json.dumps(spaces.to_dict()))) == spaces
        assert spaces.action_dim == int(np.prod(space.shape))
        env = make_env(where["env_id"], where["env_kwargs"])
        env.reset(seed=0)
        for seed in range(5):
            space.seed(seed)
            outer = space.sample()
            if actions == "unbounded":
                outer = np.clip(outer, [-0.9, -1.9], 1.9).astype(np.float32)
            flat = spaces.inside(np.asarray(outer))
            assert flat.shape == (spaces.action_dim,)
            inner = spaces.from_env(flat)
            np.testing.assert_allclose(spaces.to_env(inner), flat, atol=1e-4)
            np.testing.assert_array_equal(spaces.outside(flat), outer)
            env.step(spaces.to_env(inner))  # the environment checks it
    damaged = env_spaces(ENV_ID).to_dict() | {"action_choices": [3]}
    with pytest.raises(RLTrainingError, match="action_choices"):
        Spaces.from_dict(damaged)


def test_ppo_learns_every_part(tmp_path: Path) -> None:
    """The reward is the share of parts that follow; guessing gives half of it."""
    made = {**SMALL, "num_envs": 8, "rollout_length": 32, "batch_size": 64, "lr": 2e-2}
    agent = PPO(**task("multi_discrete"), **made, epochs=4, gamma=0.5, output_dir=tmp_path)
    result = agent.learn(total_timesteps=2_048, progress=False)
    assert result.return_mean is not None
    assert result.return_mean > 0.8 * LENGTH


def test_every_use_of_a_policy(tmp_path: Path) -> None:
    for actions, space in ACTIONS.items():
        agent = PPO(**task(actions), **QUICK, output_dir=tmp_path)
        result = agent.learn(total_timesteps=32, progress=False)
        again = load(result.run_dir, trust=True)
        obs = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)
        many, one = again.predict(obs)[0], again.predict(obs[0])[0]
        assert many.shape == (3, *space.shape)
        assert space.contains(np.asarray(one, space.dtype)), actions
        np.testing.assert_allclose(many[0], one, atol=1e-5)
        total = again.log_prob(obs, many)
        assert again.log_prob(obs[0], one) == pytest.approx(total[0], abs=1e-5)
        if isinstance(space, gym.spaces.Box):
            with pytest.raises(ConfigError, match="have densities"):
                again.action_probabilities(obs)
        else:
            parts = again.action_probabilities(obs)
            assert isinstance(parts, list)
            flat = again.algorithm.spaces.inside(many) - again.algorithm.spaces.action_starts
            chosen = [part[np.arange(3), taken] for part, taken in zip(parts, flat.T, strict=True)]
            np.testing.assert_allclose(np.log(chosen).sum(0), total, atol=1e-5)
            assert all(
                (part.argmax(1) == taken).all() for part, taken in zip(parts, flat.T, strict=True)
            )
        data = again.collect(episodes=2, epsilon=0.5, deterministic=False)
        assert data.actions.shape == (2 * LENGTH, again.algorithm.spaces.action_dim)
        with pytest.raises(DataError, match=r"^log_prob: "):
            again.log_prob(obs, np.full((3, *space.shape), 99))


def test_runs_resume_bit_for_bit(tmp_path: Path) -> None:
    for actions in ("multi_discrete", "scalar"):
        made = {**QUICK, **task(actions), "output_dir": tmp_path, "num_envs": 2}
        half = PPO(**made).learn(total_timesteps=70, progress=False).run_dir
        whole = PPO(**made)
        whole.learn(total_timesteps=150, progress=False)
        resumed = PPO.resume(half, total_timesteps=150, progress=False, trust=True)
        pairs = zip(whole.algorithm.parameters(), resumed.algorithm.parameters(), strict=True)
        assert all(bool((one == other).all()) for one, other in pairs), actions


@pytest.mark.parametrize("actions", ["multi_discrete", "table"])
def test_data_train_alone_and_beside_the_simulator(actions: str, tmp_path: Path) -> None:
    """Written, read, inspected, learned from with and without an environment, and resumed."""
    source = load_transition_dataset({"kind": "random", "steps": 120}, **task(actions))
    text = summarize(source)
    assert text.action_kind == ("box" if actions == "table" else "multi_discrete")
    assert len(text.actions) == source.actions.shape[1]
    assert all(0.5 < share <= 1.0 for share in text.action_coverage)
    files = []
    for name in ("x.npz", "x.h5", "x.parquet", "x.csv"):
        files.append(save_dataset(source, tmp_path / name))
        read = load_transition_dataset(files[-1], **task(actions))
        np.testing.assert_array_equal(read.actions, source.actions)
        assert read.spaces == source.spaces
    split = {"kind": "npz", "path": files[0], "split": {"holdout": 0.3}}
    for cls, given in ((BC, {}), (AWR, {}), (MARWIL, {"env_id": None})):
        where = {**task(actions), **given}
        where = {key: value for key, value in where.items() if where["env_id"]}
        made = {**SMALL, **where, "dataset": split, "eval_interval": 5, "output_dir": tmp_path}
        agent = cls(**made)
        result = agent.learn(10, progress=False)
        measured = json.loads((result.run_dir / "result.json").read_text())
        known = json.dumps(measured)
        assert "offline/action_agreement" in known
        assert "offline/data_distance" in known
        resumed = cls.resume(result.run_dir, total_updates=14, progress=False, trust=True)
        whole = cls(**made)
        whole.learn(14, progress=False)
        pairs = zip(whole.algorithm.parameters(), resumed.algorithm.parameters(), strict=True)
        assert all(bool((one == other).all()) for one, other in pairs), cls
    plain = {"hidden_sizes": [16], "output_dir": tmp_path, "dataset": split}
    alone = BC(**plain, seed=1)
    last = alone.learn(6, progress=False)
    both = learn_seeds(alone.config.replace(seed=0, total_updates=6), [0, 1], progress=False)
    own = load(Path(both.run_dir) / "seed-1").algorithm.parameters()
    assert last.updates == 6
    for mine, theirs in zip(own, alone.algorithm.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_wrong_data_and_keys_are_refused_in_one_sentence() -> None:
    spaces = env_spaces(ENV_ID)
    rows = {
        "observations": np.zeros((4, 4), np.float32),
        "actions": np.array([[0, 1], [2, 2], [1, 3], [0, 1]]),
        "rewards": np.zeros(4),
        "terminations": np.array([0, 0, 0, 1]),
        "truncations": np.zeros(4),
    }
    with pytest.raises(DataError, match=r"holds 3 at row 2, part 1, expected .* from 1 to 2"):
        load_transition_dataset(rows, spaces=spaces)
    with pytest.raises(DataError, match="has shape"):
        load_transition_dataset({**rows, "actions": np.zeros((4, 3), int)}, spaces=spaces)
    found = load_transition_dataset(rows).spaces
    assert (found.action_choices, found.action_starts) == ((3, 4), (0, 0))
    others = {SAC: "ppo", CRR: "one of bc, awr, marwil", DQN: "one of bc, awr, marwil, ppo"}
    for cls, names in others.items():
        with pytest.raises(EnvironmentSetupError, match=rf"choose {names}$"):
            cls(ENV_ID)
    wrong: dict[str, Any] = {
        "every bound must be finite .*env_kwargs.action_bounds": None,
        r"expected \{low: \.\.\., high: \.\.\.\}": [-1, 1],
        "low: expected one number, or a list of 2": {"low": [1, 2, 3], "high": 4},
        "every low must be finite and below": {"low": 1.0, "high": 1.0},
    }
    for message, bounds in wrong.items():
        kwargs = {"actions": "unbounded"} | ({} if bounds is None else {"action_bounds": bounds})
        with pytest.raises(EnvironmentSetupError, match=message):
            env_spaces(ENV_ID, kwargs)
    inside = {"actions": "table", "action_bounds": {"low": -3, "high": 1}}
    with pytest.raises(EnvironmentSetupError, match="beyond those of the environment"):
        env_spaces(ENV_ID, inside)
    with pytest.raises(EnvironmentSetupError, match="bounds are for Box"):
        env_spaces(ENV_ID, {"action_bounds": {"low": -3, "high": 1}})
    for actions, message in (
        ({"kind": "multi_discrete", "n": 3}, "needs the key 'n', a list"),
        ({"kind": "multi_discrete", "n": [3, 2], "start": [1]}, "'start' has 1 parts"),
        ({"kind": "multi_discrete", "n": [3, 2], "shape": [3]}, "'shape' is of 3 parts"),
        ({"kind": "discrete", "n": [3, 2]}, "needs the key 'n', the number"),
    ):
        with pytest.raises(ConfigError, match=message):
            BC(dataset={"kind": "npz", "path": "x.npz", "spaces": {"actions": actions}})
