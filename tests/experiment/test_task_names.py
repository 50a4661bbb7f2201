"""Names of tasks, where one environment holds many."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from rl_training.envs.atari import make_atari
from rl_training.envs.atari_rules import ATARI_ID
from rl_training.envs.control import CONTROL_ID, ControlEnv
from rl_training.experiment.config import load_config
from rl_training.experiment.task_names import MANY_TASKS, task_name
from rl_training.experiment.tracking import create_run_folder


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "name"),
    [
        ("Pendulum-v1", {"g": 12.0}, "Pendulum-v1"),
        ("ALE/Pong-v5", {"game": "x"}, "ALE/Pong-v5"),
        (ATARI_ID, {"game": "breakout", "protocol": "mnih2015"}, "Atari breakout"),
        (ATARI_ID, {}, ATARI_ID),
        (CONTROL_ID, {"domain": "walker", "task": "stand"}, "Control walker stand"),
    ],
)
def test_a_task_is_named_by_its_environment_and_what_chooses_it(
    env_id: str, env_kwargs: dict[str, object], name: str
) -> None:
    assert task_name(env_id, env_kwargs) == name


def test_what_chooses_a_task_is_an_argument_of_the_environment() -> None:
    for env_id, makes in ((ATARI_ID, make_atari), (CONTROL_ID, ControlEnv)):
        assert set(MANY_TASKS[env_id]) <= set(inspect.signature(makes).parameters)


def test_folders_of_two_games_have_their_names(tmp_path: Path) -> None:
    names = []
    for game in ("breakout", "space_invaders"):
        overrides = [f"env_kwargs.game={game}", f"output_dir={tmp_path}"]
        config = load_config("dqn/breakout", overrides)
        names.append(create_run_folder(config).name.rpartition("-s0-")[0])
    assert names == ["dqn-Atari_breakout", "dqn-Atari_space_invaders"]
