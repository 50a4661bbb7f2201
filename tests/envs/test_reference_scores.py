"""Published scores by which returns are normalised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training.envs.atari_rules import ATARI_ID
from rl_training.envs.reference_scores import _GAMES, Reference, reference_of
from rl_training.experiment.errors import ConfigError
from rl_training.runtime.evaluation import EvalResult

BREAKOUT = Reference("human", 1.7, 30.5)
HOPPER = Reference("D4RL", -20.272305, 3234.3)


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "expected"),
    [
        (ATARI_ID, {"game": "breakout", "protocol": "mnih2015"}, BREAKOUT),
        (ATARI_ID, {"game": "Breakout", "clip_rewards": False}, BREAKOUT),
        (ATARI_ID, {"game": "space_invaders"}, Reference("human", 148.0, 1668.7)),
        (ATARI_ID, {"game": "breakout", "clip_rewards": True}, None),
        (ATARI_ID, {"game": "breakout", "life_loss": True}, None),
        (ATARI_ID, {"game": "breakout", "max_frames": 1000}, None),
        (ATARI_ID, {"game": "breakout", "wrappers": ["a:B"]}, None),
        (ATARI_ID, {"game": "air_raid"}, None),
        (ATARI_ID, {}, None),
        ("ALE/SpaceInvaders-v5", {"frameskip": 4}, Reference("human", 148.0, 1668.7)),
        ("ALE/Breakout-v5", {"difficulty": 1}, None),
        ("BreakoutNoFrameskip-v4", {}, BREAKOUT),
        ("Hopper-v5", {}, HOPPER),
        ("Hopper-v5", {"forward_reward_weight": 2.0}, None),
        ("Hopper-v5", {"max_episode_steps": 100}, None),
        ("Ant-v5", {}, None),
        ("Pendulum-v1", {}, None),
    ],
)
def test_a_task_is_known_as_it_was_published(
    env_id: str, env_kwargs: dict[str, Any], expected: Reference | None
) -> None:
    assert reference_of(env_id, env_kwargs) == expected


def test_there_are_57_games_and_the_emulator_has_them_all() -> None:
    roms = pytest.importorskip("ale_py.roms")
    assert len(_GAMES) == 57
    assert set(_GAMES) <= {rom.replace("_", "") for rom in roms.get_all_rom_ids()}
    assert all(low < high for low, high in _GAMES.values())


def test_results_say_how_far_it_is_from_the_low_score_to_the_high_one() -> None:
    result = EvalResult((16.1, 16.1), (9, 9), reference=BREAKOUT)
    assert result.normalized_mean == pytest.approx(50.0)
    assert result.metrics()["eval/normalized_mean"] == pytest.approx(50.0)
    assert str(result).endswith("over 2 episodes, human-normalised 50.0 %")
    plain = EvalResult((16.1, 16.1), (9, 9))
    assert plain.normalized_mean is None
    assert "eval/normalized_mean" not in plain.metrics()
    assert plain == result  # which is about the episodes


def test_a_run_and_what_goes_on_from_its_checkpoint_have_it(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    agent = rl_training.SAC(
        "Hopper-v5",
        hidden_sizes=[4],
        learning_starts=10,
        batch_size=4,
        device="cpu",
        eval_interval=20,
        eval_episodes=1,
        final_eval=False,
        checkpoint_interval=25,
        tensorboard=False,
        output_dir=str(tmp_path),
        early_stopping={"metric": "eval/normalized_mean", "target": 90.0},
    )
    run = agent.learn(total_timesteps=30, progress=False).run_dir
    agent = rl_training.SAC.resume(run, total_timesteps=32, progress=False)
    stored = json.loads((run / "result.json").read_text())["last_eval"]
    expected = HOPPER.normalized(stored["eval/return_mean"])
    assert stored["eval/normalized_mean"] == pytest.approx(expected)
    assert agent.evaluate(1).reference == HOPPER


def test_stopping_by_it_is_refused_where_nothing_is_published() -> None:
    with pytest.raises(ConfigError, match=r"^early_stopping\.metric: no scores are published for"):
        rl_training.SAC(
            "Pendulum-v1",
            eval_interval=1_000,
            early_stopping={"metric": "eval/normalized_mean", "target": 90.0},
        ).learn(total_timesteps=20_000)
