"""Whether an episode is its seed and its actions is tried out before a run relies on it."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import DQN, ManagedAlgorithm
from rl_training.envs import repeatability as module
from rl_training.envs.global_random import fingerprint
from rl_training.envs.repeatability import repeatability
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.checkpoint_store import CheckpointStore
from tests.contract.test_updates import assert_same_state


class Odd(gym.Env[Any, Any]):
    """A counter that is deterministic but for what `habit` names."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    opened = taken = 0

    def __init__(self, habit: str = "none") -> None:
        self.habit = habit
        self.episodes = self.steps = 0
        type(self).opened += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episodes += 1
        self.even = seed is not None and seed % 2 == 0  # those of the trial are odd
        self.steps = 0
        if self.habit == "seeds torch":
            torch.manual_seed(seed or 0)
        return self._observe(0), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        type(self).taken += 1
        if self.habit == "raises":
            raise ValueError("not today")
        return self._observe(action), 1.0, self.steps >= 7, False, {}

    def _observe(self, action: Any) -> Any:
        drawn = {
            "draws python": lambda: random.random(),
            "draws numpy": lambda: np.random.random(),
            "draws torch": lambda: float(torch.rand(())),
            "draws torch in vain": lambda: 0.0 * float(torch.rand(())),
            "draws torch at times": lambda: 0.0 * float(torch.rand(())) if self.even else 0.0,
            "remembers": lambda: float(self.episodes > 1),
            "system": lambda: time.perf_counter_ns() % 97 / 97,
        }
        more = drawn.get(self.habit, lambda: 0.0)()
        return np.array([self.steps + float(action), more], np.float32)

    def close(self) -> None:
        type(self).opened -= 1


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    gym.register(id="test/Odd-v0", entry_point=Odd, disable_env_checker=True)
    Odd.opened = Odd.taken = 0
    yield
    del gym.registry["test/Odd-v0"]


def test_what_an_environment_carries_over_or_draws_is_seen() -> None:
    before = fingerprint()
    for habit, draws, repeats in (
        ("none", False, True),
        ("draws python", True, True),
        ("draws numpy", True, True),
        ("draws torch", True, True),
        ("seeds torch", True, True),
        ("draws torch at times", False, True),
        ("remembers", False, False),
        ("system", False, False),
        ("raises", False, True),  # which training will tell
    ):
        tried = repeatability("test/Odd-v0", {"habit": habit})
        assert (tried.draws, tried.inexact is None, tried.untried) == (draws, repeats, None), habit
    assert "an episode of 'test/Odd-v0' depends on" in str(
        repeatability("test/Odd-v0", {"habit": "remembers"}).inexact
    )
    assert fingerprint() == before
    assert Odd.opened == 0


def test_a_slow_environment_is_not_tried_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(module, "SECONDS", 10.0)
    assert repeatability("test/Odd-v0", {}) == module.Repeatability()
    assert Odd.taken == 3 * 3, "a step takes a second, and each of three episodes has three"
    monkeypatch.setattr(module, "SECONDS", -1.0)
    assert "was not tried" in str(repeatability("test/Odd-v0", {}).untried)
    assert Odd.opened == 0


def test_box2d_tasks_are_distinguished() -> None:
    """Gymnasium keeps BipedalWalker's world, with the order of its contacts, across resets."""
    pytest.importorskip("Box2D")
    assert repeatability("BipedalWalker-v3", {}).inexact is not None
    assert repeatability("LunarLander-v3", {}).inexact is None


def run(tmp_path: Path, name: str, habit: str, **options: Any) -> ManagedAlgorithm:
    return DQN(
        "test/Odd-v0",
        env_kwargs={"habit": habit},
        device="cpu",
        total_timesteps=200,
        checkpoint_interval=70,
        keep_last=10,
        eval_episodes=1,
        num_envs=2,
        output_dir=str(tmp_path / name),
        tensorboard=False,
        hidden_sizes=[8],
        batch_size=8,
        learning_starts=20,
        **options,
    )


def state_at(run_dir: Path, tick: int) -> dict[str, Any]:
    parts = read_checkpoint(run_dir / "checkpoints" / f"{tick:012d}")[1]
    parts["trainer"].pop("elapsed_seconds")
    return parts


@pytest.mark.parametrize(
    "habit", ["seeds torch", "draws torch in vain", "draws numpy", "draws torch at times"]
)
def test_a_resumed_run_is_exact_though_the_environment_draws(habit: str, tmp_path: Path) -> None:
    """Brought back, it draws again: before the run's own streams are, or from its own. It may
    draw only in episodes that the trial before the run has not played."""
    whole = run(tmp_path, "whole", habit).learn(progress=False)
    for tick in (140, 200):  # as if killed after the first checkpoint
        folder = whole.run_dir / "checkpoints" / f"{tick:012d}"
        folder.rename(tmp_path / folder.name)
    resumed = ManagedAlgorithm.resume(whole.run_dir, progress=False)
    assert resumed.result is not None
    again = run(tmp_path, "again", habit).learn(progress=False)
    found, expected = (state_at(r.run_dir, 200) for r in (resumed.result, again))
    assert_same_state(found, expected)
    assert json.loads((whole.run_dir / "result.json").read_text())["exact"] is True


def test_a_run_that_cannot_be_resumed_exactly_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for habit, sentence in (("remembers", "depends on more than its seed"), ("none", None)):
        result = run(tmp_path, habit, habit).learn()
        said = " ".join(capsys.readouterr().err.split())
        written = json.loads((result.run_dir / "result.json").read_text())
        manifest = CheckpointStore(result.run_dir / "checkpoints", 1, True).all()[-1].manifest
        for stated in (written, manifest):
            assert stated["exact"] is (sentence is None), habit
            assert (sentence or "None") in str(stated["inexact_because"])
        assert ("will not be exact" in said) is (sentence is not None)
    assert Odd.opened == 0
