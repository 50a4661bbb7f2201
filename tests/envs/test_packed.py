"""One image beside other parts: stored as bytes, seen by PPO, DQN and Dreamer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from rl_training import DQN, PPO, SAC, Dreamer, load
from rl_training.envs.make import env_spaces, make_env
from rl_training.envs.packed import packed_rows
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import (
    ConfigError,
    DataError,
    EnvironmentFailure,
    EnvironmentSetupError,
)
from rl_training.models.encoders import EncodedMLP, PartsEncoder, unpacked

from ..contract.small_runs import LOOP_KNOBS

SIDE = 16


class Lamps(gym.Env[Any, Any]):
    """The image is bright or dark, and a number says whether bright means left or right: neither
    part alone says what is paid."""

    observation_space: gym.Space[Any]
    action_space = spaces.Discrete(2)
    broken = False

    def __init__(self, side: int = SIDE) -> None:
        self.side = side
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (side, side), np.uint8),
                "rule": spaces.Box(-1.0, 1.0, (1,), np.float32),
                "hour": spaces.Discrete(3),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 8
        return self._seen(), {}

    def _seen(self) -> Any:
        rng = self.np_random
        self.bright, self.rule = int(rng.integers(2)), int(rng.integers(2))
        shape = self.side, self.side
        image = rng.integers(0, 40, shape, dtype=np.uint8) + np.uint8(200 * self.bright)
        rule = np.full(1, np.nan if self.broken else 2.0 * self.rule - 1.0, np.float32)
        return {"camera": image, "rule": rule, "hour": np.int64(rng.integers(3))}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == (self.bright ^ self.rule))
        self.left -= 1
        return self._seen(), reward, False, self.left == 0, {}


def stacked() -> gym.Env[Any, Any]:
    return FrameStackObservation(Lamps(), 3)


gym.register("tests/Lamps-v0", Lamps)  # type: ignore[arg-type]
gym.register("tests/StackedLamps-v0", stacked)  # type: ignore[arg-type]
SMALL: dict[str, Any] = {"tensorboard": False, "eval_episodes": 2, "device": "cpu"}
PPO_KNOBS = {"hidden_sizes": [16], "rollout_length": 16, "batch_size": 16, "epochs": 1}
DQN_KNOBS = {"hidden_sizes": [16], "learning_starts": 10, "buffer_capacity": 60, "batch_size": 8}


def test_bytes_hold_every_part_exactly() -> None:
    for env_id, frames in (("tests/Lamps-v0", 1), ("tests/StackedLamps-v0", 3)):
        found = env_spaces(env_id)
        assert Spaces.from_dict(json.loads(json.dumps(found.to_dict()))) == found
        assert found.packing is not None
        assert (found.packing.pixels, found.packing.numbers) == ((SIDE, SIDE), 4)
        assert found.packing.size % 4 == 0
        obs, _ = gym.make(env_id).reset(seed=3)
        flat, _ = make_env(env_id).reset(seed=3)
        assert found.obs_shape == flat.shape
        numbers, image = unpacked(torch.from_numpy(flat), (SIDE, SIDE), 4)
        np.testing.assert_array_equal(image.numpy(), obs["camera"])
        hours = np.eye(3, dtype=np.float32)[obs["hour"]]
        parts = {"hour": hours, "rule": obs["rule"]}
        order = list(gym.make(env_id).observation_space)  # type: ignore[call-overload]
        together = np.concatenate([parts[name] for name in order if name in parts], -1)
        np.testing.assert_array_equal(numbers.numpy(), together)
        assert found.layout is not None
        several = {key: np.stack([obs[key]] * 2) for key in obs}
        rows, alone = packed_rows(found.layout, frames, several, "x")
        assert not alone
        np.testing.assert_array_equal(rows, np.stack([flat, flat]))


def test_the_encoder_reads_both_parts() -> None:
    torch.manual_seed(0)
    encoder = PartsEncoder((SIDE, SIDE), 4, 3)
    env = make_env("tests/StackedLamps-v0")
    obs = torch.from_numpy(np.stack([env.reset(seed=i)[0] for i in range(5)]))
    features = encoder(obs)
    assert features.shape == (5, encoder.out_dim)
    torch.testing.assert_close(encoder(obs[2:3]), features[2:3])  # whatever its place in memory
    torch.testing.assert_close(encoder(obs.reshape(5, 1, *obs.shape[1:]))[:, 0], features)
    for place in (2, 3 * 16 + 5):
        other = obs.clone()
        other[:, :, place] ^= 0x40
        assert not torch.allclose(encoder(other), features)


def test_a_network_learns_from_both_parts_at_once() -> None:
    """Either part alone says nothing about the label; a network that lost one could only guess."""
    torch.manual_seed(0)
    net = EncodedMLP(PartsEncoder((9, 9), 4), (32,), 2)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    env = make_env("tests/Lamps-v0", {"side": 9})
    inner: Any = env.unwrapped
    seen, labels = [], []
    for i in range(256):
        seen.append(env.reset(seed=i)[0])
        labels.append(inner.bright ^ inner.rule)
    obs, label = torch.from_numpy(np.stack(seen)), torch.tensor(labels)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(net(obs), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float((net(obs).argmax(1) == label).float().mean()) > 0.95


def test_runs_resume_bit_for_bit_and_predict_what_the_environment_gives(tmp_path: Path) -> None:
    cases: list[tuple[Any, str, dict[str, Any]]] = [
        (PPO, "tests/Lamps-v0", PPO_KNOBS),
        (DQN, "tests/StackedLamps-v0", DQN_KNOBS),
        (Dreamer, "tests/Lamps-v0", LOOP_KNOBS["world_model"]),
    ]
    for cls, env_id, knobs in cases:
        made = {**SMALL, **knobs, "output_dir": tmp_path}
        half = cls(env_id, **made).learn(total_timesteps=40, progress=False).run_dir
        whole = cls(env_id, **made)
        whole.learn(total_timesteps=70, progress=False)
        resumed = cls.resume(half, total_timesteps=70, progress=False)
        pairs = zip(whole.algorithm.parameters(), resumed.algorithm.parameters(), strict=True)
        assert all(bool((one == other).all()) for one, other in pairs), cls
        again = load(half)
        obs, _ = gym.make(env_id).reset(seed=0)
        packed, _ = make_env(env_id).reset(seed=0)
        assert again.predict(obs)[0] == again.predict(packed)[0]
        for wrong, message in (
            ({**obs, "camera": obs["camera"].astype(np.float32)}, "whole numbers from 0 to 255"),
            ({**obs, "rule": np.zeros((9, 9, 9))}, "'rule' must have the shape"),
            ({key: obs[key] for key in ("camera", "hour")}, "has no 'rule'"),
        ):
            with pytest.raises(DataError, match=message):
                again.predict(wrong)


def test_dreamer_predicts_both_parts() -> None:
    agent = Dreamer("tests/Lamps-v0", **SMALL, **LOOP_KNOBS["world_model"])
    algorithm = agent.algorithm
    obs = torch.from_numpy(np.stack([make_env("tests/Lamps-v0").reset(seed=i)[0] for i in (1, 2)]))
    seen = algorithm.seen(obs)
    assert seen.shape == (2, SIDE * SIDE + 4)
    assert algorithm.images(seen).shape == (2, 1, SIDE, SIDE)
    features = torch.randn(2, algorithm.rssm.feature_dim)
    loss = algorithm.decoder.loss(features, seen)
    pixels = algorithm.decoder.pixel_decoder(features) - algorithm.images(seen)
    symlog = torch.sign(seen[:, -4:]) * torch.log1p(seen[:, -4:].abs())
    numbers = algorithm.decoder.vector_decoder(features) - symlog
    expected = pixels.square().sum((1, 2, 3)) + numbers.square().sum(1)
    torch.testing.assert_close(loss, expected)


def test_what_cannot_be_taken_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="takes single images, but the task stacks 3"):
        Dreamer("tests/StackedLamps-v0", **SMALL, **LOOP_KNOBS["world_model"])
    with pytest.raises(EnvironmentSetupError, match=r"SAC takes|images \(16, 16\) beside 4"):
        SAC("tests/Lamps-v0", **SMALL)
    with pytest.raises(ConfigError, match="images are divided by 255"):
        PPO("tests/Lamps-v0", **SMALL, **PPO_KNOBS, normalize_observations=True)
    image = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    two = spaces.Dict({"left": image, "right": image})

    class TwoImages(Lamps):
        def __init__(self) -> None:
            self.observation_space = two

    class Broken(Lamps):
        broken = True

    gym.register("tests/TwoImages-v0", TwoImages)  # type: ignore[arg-type]
    gym.register("tests/BrokenLamps-v0", Broken, disable_env_checker=True)  # type: ignore[arg-type]
    with pytest.raises(EnvironmentSetupError, match="with 2 images, left and right, is not"):
        env_spaces("tests/TwoImages-v0")
    agent = PPO("tests/BrokenLamps-v0", **SMALL, **PPO_KNOBS, output_dir=tmp_path)
    with pytest.raises(EnvironmentFailure, match="the observation holds NaN"):
        agent.learn(total_timesteps=32, progress=False)
