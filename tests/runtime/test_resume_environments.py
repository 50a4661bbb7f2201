"""Runs killed in the middle of episodes go on bit for bit, whatever the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training.envs.atari_rules import ATARI_ID

from ..contract.test_updates import assert_same_state
from .test_resume import config_for, curve, final_state, only_run, run

SMALL_ATARI = {"game": "breakout", "screen_size": 36}
CASES: list[tuple[str, str, dict[str, Any], str | None]] = [
    # algo, env_id, further keys, needs
    ("dqn", "CartPole-v1", {"env_workers": 2, "overlap_updates": True}, None),
    ("sac", "Pendulum-v1", {}, None),
    ("dqn", "LunarLander-v3", {}, "Box2D"),
    ("sac", "HalfCheetah-v5", {"env_kwargs": {"max_episode_steps": 25}}, "mujoco"),
    (
        "dqn",
        ATARI_ID,
        {"env_kwargs": SMALL_ATARI, "train_env_kwargs": {"clip_rewards": True}},
        "ale_py",
    ),
    ("ppo", ATARI_ID, {"env_kwargs": SMALL_ATARI, "vectorization": "async"}, "ale_py"),
]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1].split('/')[-1]}")
def test_killed_in_the_middle_of_episodes(
    case: Any, num_envs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo, env_id, keys, needs = case
    if needs:
        pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log where it runs
    changes = {"env_id": env_id, "num_envs": num_envs, "threads": 1, **keys}
    changes |= {"eval_interval": 0, "early_stopping": None}
    if env_id == ATARI_ID:
        changes["final_eval"] = False  # games are long
    if algo == "ppo":
        knobs = {"hidden_sizes": [8], "rollout_length": 6, "batch_size": 3, "epochs": 2}
        changes["algo_kwargs"] = knobs
    elif env_id == ATARI_ID:
        knobs = {"hidden_sizes": [8], "batch_size": 8, "learning_starts": 12}
        changes["algo_kwargs"] = {**knobs, "buffer_capacity": 30, "n_step": 2, "prioritized": True}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(config_for(algo, whole, **changes))
    run(config_for(algo, killed, **changes), die_at=29)
    run_dir = only_run(killed)
    interrupted = final_state(run_dir)["collector"]["actions"]
    assert all(len(taken) > 0 for taken in interrupted), "in the middle of episodes"
    run(resume=run_dir)
    assert_same_state(final_state(only_run(whole)), final_state(run_dir))
    assert curve(only_run(whole)) == curve(run_dir)
