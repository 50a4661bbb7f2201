"""Known terminations against Gymnasium's own flags, choices by name, functions of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.envs.terminations import KNOWN, termination_for
from rl_training.experiment.errors import ConfigError

from ..each import each


def first_component(next_obs: Tensor) -> Tensor:
    return next_obs[:, 0] > 0.0


def one_too_many(next_obs: Tensor) -> Tensor:
    return torch.zeros(len(next_obs) + 1, dtype=torch.bool)


def a_column(next_obs: Tensor) -> Tensor:
    return next_obs[:, :1] > 0.0


def numbers(next_obs: Tensor) -> Tensor:
    return next_obs[:, 0]


def an_array(next_obs: Tensor) -> Any:
    return np.zeros(len(next_obs), np.bool_)


not_callable = 3
HERE = "tests.envs.test_terminations"


@each(
    "env_id",
    [
        "Hopper-v5",
        "Walker2d-v5",
        "Ant-v5",
        "Humanoid-v5",
        "InvertedPendulum-v5",
        "InvertedDoublePendulum-v5",
        "HalfCheetah-v5",
        "Pusher-v5",
        "HumanoidStandup-v5",
        "MountainCarContinuous-v0",
        "Pendulum-v1",
        "CartPole-v1",
    ],
)
def test_known_functions_agree_with_the_environments(env_id: str) -> None:
    """Random actions, on past the end of an episode, so that both sides are seen."""
    if env_id.endswith("-v5"):
        pytest.importorskip("mujoco")
    env = gym.make(env_id).unwrapped
    choice = "cartpole" if env_id == "CartPole-v1" else "auto"
    ends = termination_for(choice, env_id, {}, {})
    env.action_space.seed(0)
    seen: list[Any] = []
    flags: list[bool] = []
    climbing = env_id.startswith("MountainCar")  # which chance never does
    for episode in range(4):
        obs, _ = env.reset(seed=episode)
        for _ in range({"CartPole-v1": 30, "MountainCarContinuous-v0": 150}.get(env_id, 100)):
            action = np.sign(obs[1:] + 1e-9) if climbing else env.action_space.sample()
            obs, _, terminated, _, _ = env.step(action)
            seen.append(obs)
            flags.append(bool(terminated))
    found = ends(torch.tensor(np.array(seen), dtype=torch.float64))
    assert found.shape == (len(seen),)
    assert found.tolist() == flags
    endless = ("HalfCheetah-v5", "Pendulum-v1", "Ant-v5", "Pusher-v5", "HumanoidStandup-v5")
    if env_id not in endless:
        assert 0 < sum(flags) < len(flags)


@each("name", ["hopper", "walker2d", "ant", "inverted_pendulum"])
def test_what_is_no_number_is_an_end(name: str) -> None:
    standing = torch.tensor([[1.25 if name != "ant" else 0.75, 0.0, 0.0]])
    for bad in (float("nan"), float("inf")):
        fallen = standing.clone()
        fallen[0, 2] = bad
        assert KNOWN[name](torch.cat([standing, fallen])).tolist() == [False, True]


def test_hopper_tests_both_sides_of_a_component() -> None:
    rows = torch.zeros(3, 11)
    rows[:, 0] = 1.25
    rows[1, 5], rows[2, 5] = 101.0, -101.0
    assert KNOWN["hopper"](rows).tolist() == [False, True, True]


@each(
    ("choice", "env_id", "kwargs", "message"),
    [
        (
            "auto",
            "Acrobot-v1",
            {},
            r"no termination function is known for 'Acrobot-v1'; set .* to never, learned",
        ),
        (
            "auto",
            "Hopper-v5",
            {"terminate_when_unhealthy": False},
            r"env_kwargs.terminate_when_unhealthy changes when 'Hopper-v5' terminates",
        ),
        ("hoper", "Hopper-v5", {}, r"'hoper' is not known \(did you mean 'hopper'\?\)"),
        ("no_such_module:f", "Hopper-v5", {}, "'no_such_module:f' cannot be imported"),
        (f"{HERE}:nothing", "Hopper-v5", {}, f"'{HERE}:nothing' cannot be imported"),
        (f"{HERE}:not_callable", "Hopper-v5", {}, "is not a function"),
        (":f", "Hopper-v5", {}, "cannot be imported"),
        ("./ends.py:f", "Hopper-v5", {}, r"cannot be imported \(TypeError"),
    ],
)
def test_refused(choice: str, env_id: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^algo_kwargs.termination: .*{message}") as caught:
        termination_for(choice, env_id, kwargs, {})
    assert "\n" not in str(caught.value)


def test_what_training_environments_alone_are_given_counts_too() -> None:
    message = r"train_env_kwargs.healthy_z_range changes when 'Hopper-v5' terminates"
    with pytest.raises(ConfigError, match=message):
        termination_for("auto", "Hopper-v5", {}, {"healthy_z_range": (0.5, 2.0)})


def test_an_id_without_a_version_is_the_same_task() -> None:
    assert termination_for("auto", "Hopper", {}, {}) is KNOWN["hopper"]
    assert termination_for("auto", "gymnasium:Hopper-v4", {}, {}) is KNOWN["hopper"]


def test_a_known_function_of_components_that_the_task_does_not_have() -> None:
    ends = termination_for("cartpole", "MountainCarContinuous-v0", {}, {})
    message = "'cartpole' raised IndexError: .* for each of 3 next observations of size 2"
    with pytest.raises(ConfigError, match=f"^algo_kwargs.termination: {message}"):
        ends(torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('broken\\nat once')", "RuntimeError: broken"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError: "),
    ],
)
def test_a_module_that_fails_while_it_is_imported(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_ends.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = rf"^algo_kwargs.termination: 'failing_ends:f' cannot be imported \({said}"
    with pytest.raises(ConfigError, match=expected) as caught:
        termination_for("failing_ends:f", "Anything-v0", {}, {})
    assert "\n" not in str(caught.value)


def test_a_function_of_the_users() -> None:
    ends = termination_for(f"{HERE}:first_component", "Anything-v0", {}, {})
    assert ends(torch.tensor([[1.0], [-1.0]])).tolist() == [True, False]


@each(
    ("name", "got"),
    [
        ("one_too_many", r"bool of shape \(4,\)"),
        ("a_column", r"bool of shape \(3, 1\)"),
        ("numbers", r"float32 of shape \(3,\)"),
        ("an_array", "ndarray"),
    ],
)
def test_answers_of_the_wrong_shape_or_type(name: str, got: str) -> None:
    ends = termination_for(f"{HERE}:{name}", "Anything-v0", {}, {})
    expected = rf"'{HERE}:{name}' must return one boolean for .* 3 .* \(3,\), but returned {got}"
    with pytest.raises(ConfigError, match=expected):
        ends(torch.zeros(3, 2))
