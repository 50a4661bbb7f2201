"""Observations of several parts and choices as vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_training import BC, DQN, PPO, load
from rl_training.data.sources import load_transition_dataset
from rl_training.envs.make import env_spaces, make_env
from rl_training.envs.parts import VectorObservation
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError

PARTS = spaces.Dict(
    {
        "table": spaces.Box(-1.0, 1.0, (2, 3)),
        "ward": spaces.Discrete(4, start=2),
        "flags": spaces.MultiBinary(3),
        "pair": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(0.0, 9.0, ())]),
    }
)


class Wards(gym.Env[Any, Any]):
    """Observations of many parts; the reward is for guessing the ward."""

    observation_space = PARTS
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 8
        return self._seen(), {}

    def _seen(self) -> Any:
        rng = self.np_random
        self.ward = int(rng.integers(4))
        return {
            "table": rng.uniform(-1, 1, (2, 3)).astype(np.float32),
            "ward": np.int64(self.ward + 2),
            "flags": rng.integers(0, 2, 3).astype(np.int8),
            "pair": (np.array([rng.integers(2), rng.integers(3)]), np.float32(rng.uniform(0, 9))),
        }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self.left = float(action == self.ward), self.left - 1
        return self._seen(), reward, self.left == 0, False, {}


gym.register("tests/Wards-v0", Wards)  # type: ignore[arg-type]
SMALL: dict[str, Any] = {"hidden_sizes": [16], "tensorboard": False, "eval_episodes": 2}


def test_vectors_are_gymnasium_s_own() -> None:
    for space in (
        PARTS,
        spaces.Discrete(5, start=-1),
        spaces.MultiDiscrete([2, 4, 3]),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
        spaces.MultiBinary([2, 2]),
        spaces.Box(-2.0, 2.0, (3, 2)),
        spaces.Box(-2.0, 2.0, ()),
        spaces.Tuple([spaces.Discrete(3), spaces.Dict({"a": spaces.Box(0, 1, (2,))})]),
    ):
        env: gym.Env[Any, Any] = gym.Env()
        env.observation_space = space
        layout = VectorObservation(env, "x").observation_layout
        space.seed(0)
        samples = [space.sample() for _ in range(20)]
        for sample in samples:
            expected = np.asarray(spaces.flatten(space, sample), np.float32)
            np.testing.assert_array_equal(layout.vector(sample, "x"), expected)
        assert layout.width == spaces.flatdim(space)


def test_an_environment_says_its_layout_and_gives_vectors() -> None:
    made = env_spaces("tests/Wards-v0")
    assert made.obs_dim == 6 + 4 + 3 + 5 + 1
    assert Spaces.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    env = make_env("tests/Wards-v0")
    obs, _ = env.reset(seed=3)
    plain = gym.make("tests/Wards-v0")
    np.testing.assert_array_equal(obs, spaces.flatten(PARTS, plain.reset(seed=3)[0]))
    assert env.observation_space.contains(obs)


def test_ppo_learns_and_predicts_what_the_environment_gives(tmp_path: Path) -> None:
    made: dict[str, Any] = {**SMALL, "output_dir": tmp_path, "num_envs": 4, "lr": 1e-2}
    agent = PPO("tests/Wards-v0", **made, rollout_length=64, batch_size=64, gamma=0.5)
    result = agent.learn(total_timesteps=2_560, progress=False)
    assert result.return_mean is not None
    assert result.return_mean > 4.0  # of 8; guessing gives 2
    again = load(result.run_dir)
    env = gym.make("tests/Wards-v0")
    obs, _ = env.reset(seed=0)
    alone = again.predict(obs)[0]
    vector = np.asarray(spaces.flatten(PARTS, obs), np.float32)
    assert again.predict(vector)[0] == alone
    several = [env.reset(seed=i)[0] for i in range(3)]
    stacked = {k: np.stack([o[k] for o in several]) for k in ("table", "ward", "flags")}
    pair = tuple(np.stack([o["pair"][i] for o in several]) for i in range(2))
    actions = again.predict({**stacked, "pair": pair})[0]
    assert actions.tolist() == [again.predict(o)[0] for o in several]
    for wrong, message in (
        ({**obs, "ward": 6}, "'ward' holds 6, expected a whole number from 2 to 5"),
        ({k: v for k, v in obs.items() if k != "flags"}, "the observation has no 'flags'"),
        ({**obs, "table": np.zeros(6)}, "'table' must have the shape"),
    ):
        with pytest.raises(DataError, match=message):
            again.predict(wrong)
    data = agent.collect(episodes=3)
    assert data.observations.shape[1] == 19
    BC("tests/Wards-v0", dataset=data, **SMALL, output_dir=tmp_path).learn(3, progress=False)


def test_states_by_number(tmp_path: Path) -> None:
    made: dict[str, Any] = {**SMALL, "output_dir": tmp_path, "learning_starts": 20}
    agent = DQN("FrozenLake-v1", env_kwargs={"is_slippery": False}, batch_size=8, **made)
    half = agent.learn(total_timesteps=60, progress=False).run_dir
    whole = DQN("FrozenLake-v1", env_kwargs={"is_slippery": False}, batch_size=8, **made)
    whole.learn(total_timesteps=120, progress=False)
    resumed = DQN.resume(half, total_timesteps=120, progress=False)
    pairs = zip(whole.algorithm.parameters(), resumed.algorithm.parameters(), strict=True)
    assert all(bool((one == other).all()) for one, other in pairs)
    every = resumed.q_values(np.arange(16))
    assert every.shape == (16, 4)
    assert (resumed.predict(np.arange(16))[0] == every.argmax(1)).all()
    assert resumed.predict(5)[0] == every[5].argmax()
    few = {"kind": "random", "steps": 30}
    assert load_transition_dataset(few, env_id="FrozenLake-v1").observations.shape[1] == 16
    taxi = DQN("Taxi-v4", **SMALL)
    obs, info = gym.make("Taxi-v4").reset(seed=0)
    action, _ = taxi.predict(obs, action_mask=info["action_mask"])
    assert info["action_mask"][action]
    with pytest.raises(DataError, match="give action_mask, too"):
        taxi.predict(obs)
