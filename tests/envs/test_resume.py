"""A collector that is loaded in another process goes on as if it had never stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.envs.collector import Collector
from rl_training.experiment.errors import CheckpointError, EnvironmentFailure
from rl_training.experiment.seeding import episode_seed
from tests.conftest import PATIENCE_S
from tests.envs import streams
from tests.envs.probe import PROBE_ID
from tests.processes import processes

SEED = 11
CASES: list[tuple[str, dict[str, Any], int, Any, int, int, str | None]] = [
    # env_id, env_kwargs, num_envs, vectorization, steps before, steps after, needs
    *(
        (env_id, {}, num_envs, mode, 137, 150, None)
        for env_id in ("CartPole-v1", "Pendulum-v1")
        for num_envs in (1, 3)
        for mode in ("sync", "async")
    ),
    ("LunarLander-v3", {}, 2, "sync", 137, 120, "Box2D"),
    ("LunarLander-v3", {"continuous": True}, 2, "async", 137, 120, "Box2D"),
    ("HalfCheetah-v5", {"max_episode_steps": 90}, 2, "sync", 137, 80, "mujoco"),
    (
        "ALE/Pong-v5",
        {"obs_type": "ram", "frameskip": 4, "repeat_action_probability": 0.25},
        2,
        "sync",
        137,
        80,
        "ale_py",
    ),
]


def continue_elsewhere(path: str, env_id: str, kwargs: dict[str, Any], *rest: Any) -> None:
    """In a new process: load, go on with the rest of the actions, leave the arrays behind."""
    num_envs, mode, before, after = rest
    np.random.seed(123)  # a global state that is not the first process's
    collector = Collector(env_id, kwargs, num_envs, SEED, mode)
    collector.load_training_state(torch.load(path, weights_only=True))
    stream = streams.actions(collector.spaces, num_envs, before + after)
    steps = streams.collect(collector, stream[before:])
    result = {
        "exact": collector.exact,
        "notes": collector.notes,
        "env_steps": collector.env_steps,
        "episodes": [list(record) for record in collector.drain_episodes()],
        "steps": [[torch.from_numpy(array) for array in step] for step in steps],
    }
    torch.save(result, path + ".result")
    collector.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}-{case[3]}")
def test_resume_in_a_new_process_is_exact(
    case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_id, kwargs, num_envs, mode, before, after, needs = case
    if needs:
        pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log where it runs
    collector = Collector(env_id, kwargs, num_envs, SEED, mode)
    stream = streams.actions(collector.spaces, num_envs, before + after)
    streams.collect(collector, stream[:before])
    path = str(tmp_path / "collector.pt")
    state = collector.training_state()
    torch.save(state, path)
    assert all(len(taken) > 0 for taken in state["actions"]), "saved in the middle of episodes"
    expected = streams.collect(collector, stream[before:])

    process = processes.Process(
        target=continue_elsewhere, args=(path, env_id, kwargs, num_envs, mode, before, after)
    )
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    result = torch.load(path + ".result", weights_only=True)
    # on a busy machine the trial of the environment may run out of its two seconds
    assert [note for note in result["notes"] if "was not tried" not in note] == []
    assert result["exact"] is True
    assert result["env_steps"] == collector.env_steps == (before + after) * num_envs
    assert result["episodes"] == [list(record) for record in collector.drain_episodes()]
    found = [streams.Step(*(tensor.numpy() for tensor in step)) for step in result["steps"]]
    streams.assert_same(expected, found)
    collector.close()


def test_resume_right_after_the_start_and_right_after_an_end(tmp_path: Path) -> None:
    for before in (0, 4, 8, 9):
        kwargs = {"truncate_at": 4}
        first = Collector(PROBE_ID, kwargs, 3, SEED)
        stream = streams.actions(first.spaces, 3, before + 20)
        streams.collect(first, stream[:before])
        torch.save(first.training_state(), tmp_path / "state.pt")
        second = Collector(PROBE_ID, kwargs, 3, SEED)
        streams.collect(second, stream[:3])  # whatever it did before is forgotten
        second.load_training_state(torch.load(tmp_path / "state.pt", weights_only=True))
        assert second.exact
        streams.assert_same(
            streams.collect(first, stream[before:]), streams.collect(second, stream[before:])
        )
        assert first.drain_episodes() == second.drain_episodes()


def test_a_state_does_not_change_after_it_was_taken_and_stays_small(tmp_path: Path) -> None:
    collector = Collector("Pendulum-v1", None, 1, SEED)
    stream = streams.actions(collector.spaces, 1, 1203)
    streams.collect(collector, stream[:1003])
    state = collector.training_state()
    torch.save(state, tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 10_000
    assert len(state["actions"][0]) == 3
    copy = torch.load(tmp_path / "state.pt", weights_only=True)
    streams.collect(collector, stream[1003:])
    for name in ("obs", "returns"):
        assert torch.equal(state[name], copy[name])
    assert torch.equal(state["actions"][0], copy["actions"][0])
    assert state["seeds"] == copy["seeds"]


class Unseeded(gym.Env[Any, Any]):
    """Draws from NumPy's global generator, as no environment should, or from the system."""

    observation_space = gym.spaces.Box(-1.0, 2.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, hidden: bool = False, system: bool = True) -> None:
        self.hidden, self.system = hidden, system

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode = seed
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        # With `hidden` only the reward shows that the state was another one.
        return self._observe(), self._draw(), False, False, {}

    def _observe(self) -> Any:
        return np.full(2, 0.5 if self.hidden else self._draw(), np.float32)

    def _draw(self) -> float:
        # four bytes: two draws of one are the same in every 256th run
        return int.from_bytes(os.urandom(4), "big") / 2**32 if self.system else np.random.random()


class Alternating(Unseeded):
    """Deterministic in environments whose seed is even."""

    def step(self, action: Any) -> Any:
        return self._observe(), 1.0, False, False, {}

    def _observe(self) -> Any:
        odd = int(self.episode or 0) % 2
        return np.full(2, self._draw() if odd else 0.25, np.float32)


@pytest.fixture(autouse=True)
def _registered() -> Any:
    for cls in (Unseeded, Alternating):
        gym.register(id=f"test/{cls.__name__}-v0", entry_point=cls)
    yield
    for cls in (Unseeded, Alternating):
        del gym.registry[f"test/{cls.__name__}-v0"]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("hidden", [False, True])
def test_an_environment_that_does_not_repeat_itself_begins_afresh(mode: Any, hidden: bool) -> None:
    kwargs = {"hidden": hidden}
    first = Collector("test/Unseeded-v0", kwargs, 2, SEED, mode)
    stream = streams.actions(first.spaces, 2, 30)
    streams.collect(first, stream[:17])
    state = first.training_state()
    first.close()
    second = Collector("test/Unseeded-v0", kwargs, 2, SEED, mode)
    second.load_training_state(state)
    assert second.exact is False
    assert len(second.notes) == 3
    assert "depends on more than its seed and its actions" in second.notes[0]
    assert second.notes[2] == (
        "environment 1 of 'test/Unseeded-v0' did not repeat the 17 steps of its interrupted "
        f"episode (seed {episode_seed(SEED, 1, 0)}), so it is not deterministic; a new episode "
        "was started, and from here on the run differs from an uninterrupted one"
    )
    fresh = second.training_state()
    assert fresh["seeds"] == [episode_seed(SEED, i, 1) for i in range(2)]
    assert [len(taken) for taken in fresh["actions"]] == [0, 0]
    assert fresh["returns"].tolist() == [0.0, 0.0]
    assert fresh["exact"] is False
    assert second.env_steps == 34
    assert second.drain_episodes() == []  # an interrupted episode has no return
    streams.collect(second, stream[17:])
    second.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_that_draw_from_the_global_generator_repeat_themselves(mode: Any) -> None:
    """Each has generators of its own, and the caller's are left alone."""
    kwargs = {"system": False}
    np.random.seed(3)
    _, following = np.random.random(2)
    np.random.seed(3)
    first = Collector("test/Unseeded-v0", kwargs, 2, SEED, mode)
    assert first.obs[0, 0] != first.obs[1, 0], "two environments must not draw the same numbers"
    stream = streams.actions(first.spaces, 2, 30)
    streams.collect(first, stream[:17])
    np.random.random()  # as other code in this process may
    second = Collector("test/Unseeded-v0", kwargs, 2, SEED, mode)
    second.load_training_state(first.training_state())
    assert second.exact
    streams.assert_same(streams.collect(first, stream[17:]), streams.collect(second, stream[17:]))
    first.close()
    second.close()
    assert np.random.random() == following


def test_what_was_not_exact_once_stays_so() -> None:
    first, second = (Collector(PROBE_ID, {}, 2, SEED) for _ in range(2))
    streams.collect(first, streams.actions(first.spaces, 2, 7))
    second.load_training_state({**first.training_state(), "exact": False})
    assert not second.notes, "this time everything was repeated"
    assert second.exact is False
    assert second.training_state()["exact"] is False


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_only_the_environments_that_differ_begin_afresh(mode: Any) -> None:
    num_envs = 6
    first = Collector("test/Alternating-v0", None, num_envs, SEED, mode)
    stream = streams.actions(first.spaces, num_envs, 9)
    streams.collect(first, stream)
    state = first.training_state()
    second = Collector("test/Alternating-v0", None, num_envs, SEED, mode)
    second.load_training_state(state)
    odd = [seed % 2 for seed in state["seeds"]]
    assert 0 < sum(odd) < num_envs
    assert len(second.notes) == sum(odd) + 1, "and one of the trial before"
    lengths = [len(taken) for taken in second.training_state()["actions"]]
    assert lengths == [0 if is_odd else 9 for is_odd in odd]
    first.close()
    second.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_was_brought_back_stays_while_another_begins_afresh(mode: Any) -> None:
    first = Collector(PROBE_ID, {}, 3, SEED, mode)
    streams.collect(first, streams.actions(first.spaces, 3, 7))
    kwargs = {"fail_at": 5, "only_seed": episode_seed(SEED, 1, 0)}
    second = Collector(PROBE_ID, kwargs, 3, SEED, mode)
    second.load_training_state(first.training_state())
    np.testing.assert_array_equal(second.obs[[0, 2]], first.obs[[0, 2]])
    assert (second.obs[1] != first.obs[1]).any()
    first.close()
    second.close()


@pytest.mark.parametrize("kwargs", [{"fail_at": 5}, {"truncate_at": 5}, {"terminate_at": 7}])
def test_an_episode_that_ends_or_raises_in_the_replay_is_not_exact(kwargs: dict[str, Any]) -> None:
    """As after an upgrade of the environment."""
    first = Collector(PROBE_ID, {}, 2, SEED)
    streams.collect(first, streams.actions(first.spaces, 2, 7))
    second = Collector(PROBE_ID, kwargs, 2, SEED)
    second.load_training_state(first.training_state())
    assert second.exact is False
    assert second.training_state()["episodes"] == [1, 1]


def test_a_worker_that_dies_in_the_replay_is_a_failure() -> None:
    first = Collector(PROBE_ID, {}, 2, SEED)
    streams.collect(first, streams.actions(first.spaces, 2, 7))
    kwargs = {"die_at": 3, "only_seed": episode_seed(SEED, 1, 0)}
    second = Collector(PROBE_ID, kwargs, 2, SEED, "async")
    with pytest.raises(EnvironmentFailure, match=r"environment 1 .*lost its worker process"):
        second.load_training_state(first.training_state())


def test_a_checkpoint_of_other_environments_is_refused() -> None:
    state = Collector("Pendulum-v1", None, 3, SEED).training_state()
    sentence = r"3 environments with observations \(3,\), this run has 2 with \(3,\)"
    with pytest.raises(CheckpointError, match=sentence):
        Collector("Pendulum-v1", None, 2, SEED).load_training_state(state)
