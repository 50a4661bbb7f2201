"""What MuJoCo says while an environment is made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rl_training.envs.make import make_env

mujoco = pytest.importorskip("mujoco")
MODEL = "<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>"


class Unstable(gym.Env[Any, Any]):
    """Takes two steps from nowhere, of which MuJoCo warns."""

    observation_space = action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self) -> None:
        model = mujoco.MjModel.from_xml_string(MODEL)
        for _ in range(2):
            data = mujoco.MjData(model)
            data.qpos[0] = math.nan
            mujoco.mj_step(model, data)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_a_warning_of_python_and_leaves_no_file(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = f"{__name__}:Unstable"
    with pytest.warns(RuntimeWarning, match=f"^{name}: MuJoCo: .*QPOS") as caught:
        make_env(name)
    assert len(caught) == 1, "the same is said once"
    assert not list(folder.iterdir())
    assert capfd.readouterr() == ("", "")
    assert mujoco.get_mju_user_warning() is None, "later messages are MuJoCo's own affair"


def test_what_is_deprecated_in_a_model_is_shown_to_those_who_ask(
    folder: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    make_env("HalfCheetah-v5")  # MuJoCo 4 calls a part of its model deprecated, others do not
    assert not list(folder.iterdir())
    assert capfd.readouterr() == ("", "")
    assert {warning.category for warning in recwarn} <= {DeprecationWarning}


def test_a_handler_of_the_program_stays() -> None:
    said: list[str] = []
    mujoco.set_mju_user_warning(said.append)
    try:
        make_env(f"{__name__}:Unstable")
        mine = mujoco.get_mju_user_warning()
    finally:
        mujoco.set_mju_user_warning(None)
    assert mine is not None
    assert len(said) == 2
