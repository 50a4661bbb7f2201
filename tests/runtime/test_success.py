"""Environments that report success: in training, evaluation, metrics and results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training import PPO, SAC, Callback, LogEvent
from rl_training.envs.collector import Collector
from rl_training.envs.contract import success_in
from rl_training.experiment.errors import ConfigError
from rl_training.runtime.loops.online import UNKNOWN, EpisodeStatistics, FinishedEpisode

ENV = "tests/Success-v0"


class SuccessEnv(gym.Env[Any, Any]):
    """Episodes of four steps; those from an even seed succeed, as the last step says."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, kind: str = "bool") -> None:
        self.kind = kind

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.good, self.steps = (seed or 0) % 2 == 0, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        ended = self.steps == 4
        said: dict[str, Any] = {"is_success": ended and self.good}
        if self.kind == "array":
            said = {"is_success": np.array([float(ended and self.good)])}
        elif self.kind == "none":
            said = {}
        return np.full(2, self.steps / 4, np.float32), 1.0, False, ended, said


gym.register(ENV, SuccessEnv)


def test_what_environments_say_of_success() -> None:
    said = [{"is_success": value} for value in (True, np.bool_(False), 1.0, np.array([0.0]))]
    assert [success_in(info) for info in said] == [True, False, True, False]
    silent: list[Any] = [{}, None, {"is_success": None}, {"is_success": [1, 0]}]
    assert [success_in(info) for info in [*silent, {"is_success": "yes"}]] == [None] * 5


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_last_step_of_an_episode_says_whether_it_succeeded(vectorization: Any) -> None:
    for kind, silent in (("bool", False), ("array", False), ("none", True)):
        collector = Collector(ENV, {"kind": kind}, 2, seed=3, vectorization=vectorization)
        try:
            for _ in range(12):
                collector.step(np.zeros((2, 1), np.float32))
            episodes = collector.drain_episodes()
        finally:
            collector.close()
        assert len(episodes) == 6
        for episode in episodes:
            assert episode.success is (None if silent else episode.seed % 2 == 0)
        assert silent or {episode.success for episode in episodes} == {True, False}


@pytest.mark.usefixtures("every_line")
def test_return_length_and_success_are_shown_logged_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[LogEvent] = []

    class Keep(Callback):
        def on_log(self, event: LogEvent) -> None:
            logged.append(event)

    agent = PPO(
        ENV,
        num_envs=2,
        rollout_length=8,
        batch_size=8,
        hidden_sizes=[4],
        log_interval=16,
        eval_episodes=6,
        tensorboard=False,
        device="cpu",
        output_dir=str(tmp_path),
    )
    result = agent.learn(total_timesteps=32, callbacks=[Keep()])
    assert result.last_eval is not None
    rate = result.last_eval.success_rate
    assert rate == sum(map(bool, result.last_eval.successes)) / 6
    assert 0.0 < rate < 1.0
    assert f"success {rate:.0%}" in str(result.last_eval)
    first = logged[0].metrics
    assert first["rollout/episodes"] == 4.0
    assert first["rollout/return_mean"] == first["rollout/length_mean"] == 4.0
    assert first["rollout/success_rate"] in (0.0, 0.25, 0.5, 0.75, 1.0)
    assert first["time/env_steps_per_second"] > 0.0
    assert "left, return 4.0, length 4, success " in capsys.readouterr().err
    stored = json.loads((result.run_dir / "result.json").read_text(encoding="utf-8"))
    assert stored["last_eval"]["eval/success_rate"] == rate
    assert "eval/success_rate" in stored["held_out"]["last"]
    resumed = PPO.resume(result.run_dir, progress=False)  # nothing left to do
    assert resumed.result is not None
    assert resumed.result.last_eval == result.last_eval


def test_stopping_by_success_needs_an_environment_that_reports_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "early_stopping": {"metric": "eval/success_rate", "target": 0.01},
        "eval_interval": 8,
        "eval_episodes": 6,
        "hidden_sizes": [4],
        "learning_starts": 40,
        "tensorboard": False,
        "device": "cpu",
        "output_dir": str(tmp_path),
    }
    stopped = SAC(ENV, **options).learn(total_timesteps=80, progress=False)
    assert stopped.stop_reason.startswith("early stopping: eval/success_rate reached the target")
    silent = SAC(ENV, env_kwargs={"kind": "none"}, **options)
    with pytest.raises(ConfigError, match=r"^early_stopping\.metric: .* does not report info\["):
        silent.learn(total_timesteps=80, progress=False)


def test_statistics_come_back_from_checkpoints_of_this_and_earlier_versions() -> None:
    statistics = EpisodeStatistics()
    assert str(statistics) == ""
    statistics.load_training_state({"pending": [1.0, 3.0]})  # as before lengths were kept
    assert str(statistics) == "return 2.0"
    statistics.pending.append(FinishedEpisode(5.0, 7, 1))
    again = EpisodeStatistics()
    again.load_training_state(statistics.training_state())
    assert again.pending == statistics.pending
    assert again.pending[0].length == UNKNOWN
    assert again.report() == {
        "rollout/return_mean": 3.0,
        "rollout/episodes": 3.0,
        "rollout/length_mean": 7.0,
        "rollout/success_rate": 1.0,
    }
    assert again.report() == {}
