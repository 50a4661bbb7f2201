"""What online loops share: training environments of their own, and sizes that cannot work."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training import DQN, PPO, SAC, ManagedAlgorithm, RLTrainingError
from rl_training.replay.replay import ReplayBuffer
from rl_training.runtime.controls import crossed, last_crossing, owed_updates
from tests.envs.probe import PROBE_ID

from ..each import each

SMALL: dict[str, Any] = {
    "eval_episodes": 1,
    "tensorboard": False,
    "device": "cpu",
    "hidden_sizes": [8],
    "batch_size": 12,
}
KNOBS: dict[Any, dict[str, Any]] = {
    DQN: {"learning_starts": 12, "buffer_capacity": 200},
    SAC: {"learning_starts": 12, "buffer_capacity": 200},
    PPO: {"rollout_length": 12},
}


def probe_agent(cls: Any, folder: Path, **options: Any) -> Any:
    env_kwargs = {"actions": "box" if cls is SAC else "discrete", "truncate_at": 9}
    small = {**SMALL, **KNOBS[cls], "env_kwargs": env_kwargs, "output_dir": str(folder)}
    return cls(PROBE_ID, **{**small, "total_timesteps": 60, **options})


# --- training environments of their own ------------------------------------------------------


@pytest.mark.parametrize("cls", [DQN, SAC, PPO])
def test_train_env_kwargs_are_for_training_only(cls: Any, tmp_path: Path) -> None:
    agent = probe_agent(cls, tmp_path, train_env_kwargs={"truncate_at": 3}, log_interval=60)
    result = agent.learn(progress=False)
    assert result.last_eval.lengths == (9,), "evaluation keeps env_kwargs"
    events = map(json.loads, (result.run_dir / "metrics.jsonl").read_text().splitlines())
    (log,) = [event for event in events if event["event"] == "train"]
    assert log["rollout/return_mean"] == 1 + 2 + 3
    assert log["episodes"] == 60 // 3
    assert agent.evaluate(1).lengths == (9,)


@each("mode", ["sync", "async"])
@each(
    ("cls", "kwargs", "sentence"),
    [
        (DQN, {"action_dim": 7}, "and 7 Discrete actions from 0, but the policy was made for"),
        (SAC, {"high": 4.0}, "actions from -2 to 4, but the policy was made for"),
        (PPO, {"actions": "box"}, "has observations (5,) float32 and Box(2,) actions"),
    ],
)
def test_spaces_have_to_agree(
    cls: Any, kwargs: dict[str, Any], sentence: str, mode: str, tmp_path: Path
) -> None:
    agent = probe_agent(cls, tmp_path, train_env_kwargs=kwargs, vectorization=mode)
    with pytest.raises(RLTrainingError, match=r"^train_env_kwargs: ") as caught:
        agent.learn(progress=False)
    assert sentence in str(caught.value)
    assert not list(tmp_path.iterdir())


@each("mode", ["sync", "async"])
@each(
    ("kwargs", "words"),
    [
        ({"truncat_at": 3}, "does not accept.*truncat_at"),
        ({"actions": "box", "low": 3.0}, "action space .* is not supported"),
        ({"action_dim": 0}, "cannot be made"),
    ],
)
def test_what_the_environment_refuses_is_said_of_the_right_key(
    kwargs: dict[str, Any], words: str, mode: str, tmp_path: Path
) -> None:
    agent = probe_agent(DQN, tmp_path, train_env_kwargs=kwargs, vectorization=mode)
    with pytest.raises(RLTrainingError, match=rf"^train_env_kwargs: .*{words}") as caught:
        agent.learn(progress=False)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_environment_that_is_gone_is_not_blamed_on_train_env_kwargs(tmp_path: Path) -> None:
    agent = probe_agent(DQN, tmp_path, train_env_kwargs={"truncate_at": 3})
    agent.config = agent.config.replace(env_id="rl_training/Prob-v0")
    with pytest.raises(RLTrainingError, match=r"^env_id: unknown environment"):
        agent.learn(progress=False)


def test_an_agent_for_another_task_is_refused(tmp_path: Path) -> None:
    probe_agent(DQN, tmp_path).save(tmp_path / "agent")
    agent = DQN.load(tmp_path / "agent")
    other = {"actions": "discrete", "action_dim": 5}
    agent.config = agent.config.replace(env_kwargs=other)  # as if the environment had changed
    with pytest.raises(RLTrainingError, match=r"^env_id: .* 5 Discrete .* made for .* 2 Disc"):
        agent.learn(progress=False)


def test_train_env_kwargs_decide_what_is_learned(tmp_path: Path) -> None:
    agent = probe_agent(DQN, tmp_path, train_env_kwargs={"truncate_at": 3})
    run_dir = agent.learn(progress=False).run_dir
    with pytest.raises(RLTrainingError, match=r"train_env_kwargs\.truncate_at: 3 -> 4"):
        ManagedAlgorithm.resume(run_dir, progress=False, train_env_kwargs={"truncate_at": 4})
    assert agent.config.replace(train_env_kwargs={}).hash() != agent.config.hash()


# --- sizes that cannot work --------------------------------------------------------------------


@each(
    ("cls", "options", "sentence"),
    [
        (DQN, {"num_envs": 64}, "num_envs: 64 environments take more .* the 60 of .* at most 60"),
        (PPO, {"num_envs": 64}, "num_envs: 64 environments take more .* the 60 of .* at most 60"),
        (
            DQN,
            {"n_step": 5, "num_envs": 3, "learning_starts": 14},
            "algo_kwargs.learning_starts: 14 is too small for 3 environments and 5-step returns, "
            "nothing could be sampled at the first update; set at least 15",
        ),
        (SAC, {"learning_starts": 0}, "algo_kwargs.learning_starts: 0 is too .* at least 1"),
        (SAC, {"learning_starts": 60}, "algo_kwargs.learning_starts: 60 random .* the 60 in total"),
        (
            DQN,
            {"learning_starts": 40, "buffer_capacity": 30},
            "algo_kwargs.learning_starts: of 40 random steps only 30 fit",
        ),
        (
            DQN,
            {"batch_size": 31, "buffer_capacity": 30},
            "algo_kwargs.batch_size: 31 is more than the 30 .*; set at most 30",
        ),
        (
            DQN,
            {"n_step": 5, "num_envs": 3, "learning_starts": 15, "buffer_capacity": 17},
            "algo_kwargs.buffer_capacity: 17 is too small .* at least 18",
        ),
        (
            DQN,
            {"train_frequency": 61},
            "algo_kwargs.train_frequency: .* every 61 .* the 60 of .* the 12 .* at most 48",
        ),
        (
            DQN,
            {"train_frequency": 50, "learning_starts": 55},
            "algo_kwargs.train_frequency: .* every 50 .* at most 5",
        ),
        (
            SAC,
            {"gradient_updates_per_step": 0.02},
            "algo_kwargs.gradient_updates_per_step: 0.02 makes no whole .* the 48 .* least 1/48",
        ),
        (
            PPO,
            {"rollout_length": 31, "num_envs": 2},
            r"algo_kwargs.rollout_length: one rollout takes 62 steps \(rollout_length 31 times "
            r"num_envs 2\), more than the 60 in total_timesteps; set at most 30",
        ),
        (
            PPO,
            {"batch_size": 25},
            r"algo_kwargs.batch_size: 25 does not divide a rollout of 12 steps \(rollout_length 12 "
            r"times num_envs 1\); 12 would fit",
        ),
        (PPO, {"batch_size": 5}, "algo_kwargs.batch_size: 5 does not divide .*; 4 would fit"),
        (PPO, {"batch_size": 1}, "algo_kwargs.batch_size: 1 advantage cannot be .* at least 2"),
    ],
)
def test_sizes_that_cannot_work_are_refused_in_one_sentence(
    cls: Any, options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    agent = probe_agent(cls, tmp_path, **options)
    with pytest.raises(RLTrainingError, match=f"^{sentence}") as caught:
        agent.learn(progress=False)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@each(
    ("cls", "options"),
    [
        (DQN, {"n_step": 5, "num_envs": 3, "learning_starts": 15, "buffer_capacity": 18}),
        (SAC, {"learning_starts": 1}),
        (SAC, {"learning_starts": 59}),
        (DQN, {"train_frequency": 48}),
        (DQN, {"train_frequency": 5, "learning_starts": 55, "gradient_updates_per_step": 1.0}),
        (SAC, {"gradient_updates_per_step": 1 / 48}),
        (PPO, {"rollout_length": 30, "num_envs": 2}),
        (PPO, {"batch_size": 4}),
        (PPO, {"batch_size": 1, "normalize_advantages": False}),
    ],
)
def test_what_a_sentence_offers_does_work(
    cls: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    result = probe_agent(cls, tmp_path, final_eval=False, **options).learn(progress=False)
    assert result.updates > 0
    assert cls.load(result.run_dir).algorithm.nonfinite_weight() is None


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_replay_that_does_not_fit_says_what_would(
    prioritized: bool, tmp_path: Path, free_memory: Callable[[int | None], None]
) -> None:
    free_memory(10**6)
    options = {"prioritized": prioritized, "buffer_capacity": 10**6}
    agent = probe_agent(DQN, tmp_path, **options)
    with pytest.raises(RLTrainingError, match=r"^algo_kwargs\.buffer_capacity: ") as caught:
        agent.learn(progress=False)
    size = ReplayBuffer.memory_needed(
        10**6, agent.algorithm.spaces, prioritised=options["prioritized"]
    )
    found = re.search(
        r"a replay of 1,000,000 transitions would take ([\d.]+) GB, but 0\.0 GB are free on cpu; "
        r"([\d,]+) would fit",
        str(caught.value),
    )
    assert found
    assert float(found[1]) == pytest.approx(size / 1e9, abs=0.05)
    agent = probe_agent(
        DQN, tmp_path, **{**options, "buffer_capacity": int(found[2].replace(",", ""))}
    )
    assert agent.learn(progress=False).updates > 0


@each("stride", [1, 3, 7])
@each("every", [1, 4, 9, 50])
@each("total", [1, 10, 48, 49])
def test_the_last_crossing_is_the_one_that_a_run_would_see(
    total: int, every: int, stride: int
) -> None:
    seen, tick, updates = 0, 0, 0
    while tick < total:
        tick += stride
        if crossed(tick - stride, tick, every):
            seen = tick
            updates += owed_updates(0.3, 5, tick, updates)
    assert last_crossing(total, stride, every) == seen
    assert updates == owed_updates(0.3, 5, seen, 0)


def test_the_order_of_building_leaves_no_environment_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is refused is refused before environments and their processes are made."""
    monkeypatch.setenv("PATH", "")
    for cls in (DQN, PPO):
        agent = probe_agent(cls, tmp_path, engine="compile", vectorization="async")
        before = multiprocessing.active_children()
        with pytest.raises(RLTrainingError, match="engine: 'compile' needs"):
            agent.learn(progress=False)
        assert multiprocessing.active_children() == before
