"""DeepMind Control: seeded, repeated actions, time limits that are truncations."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import Dreamer
from rl_training.envs.control import CONTROL_ID, ControlEnv
from rl_training.envs.make import make_env
from rl_training.experiment.errors import (
    ConfigError,
    EnvironmentSetupError,
    MissingExtraError,
    install_command,
)
from tests.conftest import Command
from tests.test_bad_input import assert_refused

STAND: dict[str, Any] = {"domain": "walker", "task": "stand"}
needs_suite = pytest.mark.skipif(
    importlib.util.find_spec("dm_control") is None, reason="the extra dmc is not installed"
)


@pytest.mark.skipif(
    importlib.util.find_spec("dm_control") is not None, reason="the extra dmc is installed"
)
def test_without_the_extra_it_says_what_to_install(cli: Command, tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match="'dm_control', which is not installed"):
        make_env(CONTROL_ID, STAND)
    outcome = cli("train", "dreamer/walker_stand", "--output-dir", tmp_path / "runs")
    assert_refused(outcome, "dm_control", install_command("dmc"))
    assert not list(tmp_path.iterdir())


def test_what_is_no_number_is_refused() -> None:
    for key, value in (("action_repeat", 0), ("image_size", 7), ("action_repeat", 1.5)):
        with pytest.raises(ConfigError, match=rf"env_kwargs\.{key}: expected a whole number"):
            make_env(CONTROL_ID, {**STAND, key: value})


def test_every_argument_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
    for name, parameter in list(inspect.signature(ControlEnv.__init__).parameters.items())[1:]:
        default = "required" if parameter.default is parameter.empty else f"`{parameter.default}`"
        assert f"| `{name}` | {default} |" in text


@needs_suite
def test_an_unknown_task_is_refused_with_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"no task 'walker stnd' \(did you mean 'walker stand'"):
        make_env(CONTROL_ID, {"domain": "walker", "task": "stnd"})


@needs_suite
def test_an_episode_is_its_seed_and_its_actions() -> None:
    env = make_env(CONTROL_ID, {**STAND, "pixels": False})
    actions = np.random.default_rng(0).uniform(-1, 1, (40, *env.action_space.shape))
    streams = []
    for seed in (3, 4, 3):
        told = [env.reset(seed=seed)[0]]
        told += [np.append(*env.step(action.astype(np.float32))[:2]) for action in actions]
        streams.append(np.concatenate(told))
    np.testing.assert_array_equal(streams[0], streams[2])
    assert not np.array_equal(streams[0], streams[1])


@needs_suite
def test_actions_are_repeated_and_the_time_limit_is_a_truncation() -> None:
    still = np.zeros(6, np.float32)
    slow = make_env(CONTROL_ID, {**STAND, "pixels": False, "action_repeat": 4})
    fast = make_env(CONTROL_ID, {**STAND, "pixels": False, "action_repeat": 1})
    slow.reset(seed=0)
    fast.reset(seed=0)
    obs, reward, *_ = slow.step(still)
    single = [fast.step(still) for _ in range(4)]
    np.testing.assert_array_equal(obs, single[-1][0])
    assert reward == pytest.approx(sum(float(step[1]) for step in single))
    steps, ended = 1, False
    while not ended:
        _, _, terminated, truncated, _ = slow.step(still)
        steps, ended = steps + 1, terminated or truncated
    assert (steps, terminated, truncated) == (250, False, True)


@needs_suite
def test_dreamer_takes_its_images(tmp_path: Path) -> None:
    try:
        env = make_env(CONTROL_ID, STAND)
        env.reset(seed=0)
    except EnvironmentSetupError as error:
        pytest.skip(f"nothing to draw with: {error}")
    agent = Dreamer(
        CONTROL_ID,
        env_kwargs=STAND,
        size="tiny",
        batch_size=2,
        batch_length=4,
        rollout_length=2,
        learning_starts=8,
        buffer_capacity=40,
        total_timesteps=12,
        device="cpu",
        threads=1,
        tensorboard=False,
        final_eval=False,
        output_dir=str(tmp_path),
    )
    assert agent.algorithm.spaces.image_shape == (64, 64, 3)
    assert agent.learn(progress=False).updates == 1
