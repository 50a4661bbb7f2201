"""Vectors of environments: masked resets, no autoreset, failures in one sentence."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs import workers
from rl_training.envs.collector import make_vector_env
from rl_training.envs.spaces import Spaces
from rl_training.envs.vector import VectorEnvs
from rl_training.experiment.errors import (
    ConfigError,
    EnvironmentFailure,
    EnvironmentSetupError,
)
from tests.conftest import PATIENCE_S
from tests.envs import streams
from tests.envs.probe import PROBE_ID, ProbeEnv
from tests.processes import processes

MODES = ("sync", "async")
ALL = np.ones(3, np.bool_)


def make(mode: Any, num_envs: int = 3, **kwargs: Any) -> VectorEnvs:
    return make_vector_env(PROBE_ID, kwargs, num_envs, mode)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_sync_and_async_agree_with_the_environments_themselves(env_id: str, num_envs: int) -> None:
    kwargs = {"max_episode_steps": 40}
    plain = [gym.make(env_id, **kwargs) for _ in range(num_envs)]
    both = [make_vector_env(env_id, kwargs, num_envs, mode) for mode in MODES]  # type: ignore[arg-type]
    both.append(make_vector_env(env_id, kwargs, num_envs, workers=2))
    spaces = both[0].spaces
    assert spaces == Spaces.from_gymnasium(plain[0].observation_space, plain[0].action_space)
    try:
        seeds = list(range(10, 10 + num_envs))
        current = np.stack([env.reset(seed=s)[0] for env, s in zip(plain, seeds, strict=True)])
        for envs in both:
            envs.reset(np.ones(num_envs, np.bool_), seeds)
            np.testing.assert_array_equal(envs.obs, current)
        ends = 0
        assert len(getattr(both[-1], "processes")) == min(2, num_envs)  # noqa: B009
        for row in streams.actions(spaces, num_envs, 150):
            row = spaces.to_env(row)
            expected = [env.step(a) for env, a in zip(plain, row, strict=True)]
            results = [envs.step(row) for envs in both]
            for obs, reward, terminated, truncated in results:
                assert obs.dtype == reward.dtype == np.float32
                assert terminated.dtype == truncated.dtype == np.bool_
                for i, (o, r, te, tr, _) in enumerate(expected):
                    assert obs[i].tobytes() == np.asarray(o, np.float32).tobytes()
                    assert reward[i] == np.float32(r)
                    assert terminated[i] == te
                    assert truncated[i] == (tr and not te)
            mask = results[0][2] | results[0][3]
            if mask.any():
                ends += int(mask.sum())
                seeds = [seed + 100 for seed in seeds]
                before = results[0][0]
                for envs in both:
                    envs.reset(mask, seeds)
                for i in np.flatnonzero(mask):
                    first, _ = plain[i].reset(seed=seeds[i])
                    assert all(envs.obs[i].tobytes() == first.tobytes() for envs in both)
                for envs in both:
                    np.testing.assert_array_equal(envs.obs[~mask], before[~mask])
        assert ends >= 3
    finally:
        for envs in both:
            envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_masked_reset_leaves_the_others_alone(mode: str) -> None:
    envs = make(mode)
    envs.reset(ALL, [1, 2, 3])
    for _ in range(4):
        envs.step(np.zeros((3, 2), np.float32))
    handed_out = envs.obs
    copy = handed_out.copy()
    envs.reset(np.array([False, True, False]), [0, 77, 0])
    assert [ProbeEnv.decode(row)[:2] for row in envs.obs] == [(1, 4), (77, 0), (3, 4)]
    obs, reward, *_ = envs.step(np.ones((3, 2), np.float32))
    assert [ProbeEnv.decode(row)[:2] for row in obs] == [(1, 5), (77, 1), (3, 5)]
    assert reward.tolist() == [5.0, 1.0, 5.0]
    np.testing.assert_array_equal(handed_out, copy)
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_the_last_observation_is_the_true_one_and_terminated_wins(mode: str) -> None:
    envs = make(mode, terminate_at=3, truncate_at=3)
    envs.reset(ALL, [1, 2, 3])
    for step in range(1, 4):
        obs, _, terminated, truncated = envs.step(np.zeros((3, 2), np.float32))
        assert [ProbeEnv.decode(row)[:2] for row in obs] == [(1, step), (2, step), (3, step)]
    assert terminated.all()
    assert not truncated.any()
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_actions_arrive_in_the_environments_units(mode: str) -> None:
    envs = make(mode)
    envs.reset(ALL, [1, 2, 3])
    actions = np.arange(6, dtype=np.float32).reshape(3, 2) / 7
    np.testing.assert_array_equal(envs.step(actions)[0][:, 3:], actions)
    envs.close()
    envs = make(mode, actions="discrete", action_dim=5, start=-3)
    envs.reset(ALL, [1, 2, 3])
    assert envs.step(np.array([-3, 0, 1]))[0][:, 3].tolist() == [-3.0, 0.0, 1.0]
    envs.close()


FAILURES = [
    ({"fail_at": 4}, "raised ValueError: the probe was set to fail; correct the environment"),
    ({"nan_at": 4}, r"returned the observation \[.*nan.*\]; every number has to be finite"),
    ({"nan_at": 4, "nan_in": "reward"}, "returned the reward nan; every number has to be finite"),
    ({"shape_at": 4}, r"returned an observation of shape \(1,\), expected \(5,\)"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kwargs", "sentence"), FAILURES)
def test_a_failure_names_environment_seed_and_step(
    mode: str, kwargs: dict[str, Any], sentence: str
) -> None:
    envs = make(mode, **kwargs, only_seed=52)
    envs.reset(ALL, [51, 52, 53])
    for _ in range(3):
        envs.step(np.zeros((3, 2), np.float32))
    where = rf"environment 1 of '{PROBE_ID}' \(episode seed 52, step 4\) "
    with pytest.raises(EnvironmentFailure, match=where + sentence) as caught:
        envs.step(np.zeros((3, 2), np.float32))
    assert "\n" not in str(caught.value)
    envs.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kwargs", "word"),
    [({"fail_at": 0}, "raised"), ({"nan_at": 0}, "nan"), ({"shape_at": 0}, "shape")],
)
def test_a_failure_in_reset_is_step_0(mode: str, kwargs: dict[str, Any], word: str) -> None:
    envs = make(mode, **kwargs, only_seed=62)
    envs.reset(ALL, [51, 52, 53])
    envs.step(np.zeros((3, 2), np.float32))
    with pytest.raises(EnvironmentFailure, match=rf"environment 1 .*seed 62, step 0\).*{word}"):
        envs.reset(np.array([False, True, True]), [0, 62, 63])
    envs.close()


def test_an_action_that_is_no_number_is_blamed_on_the_policy() -> None:
    envs = make("sync")
    envs.reset(ALL, [1, 2, 3])
    actions = np.zeros((3, 2), np.float32)
    actions[2, 1] = np.nan
    with pytest.raises(EnvironmentFailure, match=r"environment 2 .*the policy has diverged"):
        envs.step(actions)


def begin_and_step(envs: VectorEnvs, seed: int) -> None:
    envs.reset(np.array([False, True, False]), [0, seed, 0])
    for _ in range(4):
        envs.step(np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("at", [0, 4])
def test_a_worker_that_dies_ends_the_others_promptly(at: int) -> None:
    envs = make("async", die_at=at, only_seed=62)
    envs.reset(ALL, [51, 52, 53])
    started = envs.processes  # type: ignore[attr-defined]
    began = time.monotonic()
    with pytest.raises(
        EnvironmentFailure, match=rf"environment 1 .*seed 62, step {at}\) lost .*exit code 3"
    ):
        begin_and_step(envs, 62)
    assert time.monotonic() - began < 0.2 * workers.ANSWER_LIMIT_S
    assert not any(process.is_alive() for process in started)
    envs.close()


def test_a_worker_that_is_killed_from_outside_is_noticed() -> None:
    envs = make("async")
    envs.reset(ALL, [1, 2, 3])
    started = envs.processes  # type: ignore[attr-defined]
    os.kill(started[2].pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailure, match=r"environment 2 .*killed by signal SIGKILL"):
        begin_and_step(envs, 62)
    assert not any(process.is_alive() for process in started)


def test_a_worker_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ANSWER_LIMIT_S", 1)
    envs = make("async")
    envs.reset(ALL, [1, 2, 3])
    started = envs.processes  # type: ignore[attr-defined]
    os.kill(started[1].pid, signal.SIGSTOP)
    with pytest.raises(EnvironmentFailure, match=r"environment 1 .*has not answered for 1 s"):
        envs.step(np.zeros((3, 2), np.float32))
    assert not any(process.is_alive() for process in started)


def test_workers_survive_signals_and_end_with_the_vector() -> None:
    """Signals go to the whole process group; the parent decides what happens."""
    envs = make("async")
    envs.reset(ALL, [1, 2, 3])
    started = envs.processes  # type: ignore[attr-defined]
    for process, number in itertools.product(
        started, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ):
        os.kill(process.pid, number)
    assert envs.step(np.zeros((3, 2), np.float32))[1].tolist() == [1.0, 1.0, 1.0]
    os.kill(started[1].pid, signal.SIGSTOP)  # as in the middle of a step without an end
    began = time.monotonic()
    envs.close()
    assert time.monotonic() - began < 0.2 * workers.ANSWER_LIMIT_S
    envs.close()
    assert not any(process.is_alive() for process in started)


def make_and_die(found: Any) -> None:
    other = make("async", 1)  # whose pipe the next workers inherit
    envs = make_vector_env(PROBE_ID, {}, 3, workers=2)
    pids = [process.pid for vector in (other, envs) for process in vector.processes]  # type: ignore[attr-defined]
    found.send(pids)
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_end_with_a_parent_that_was_killed() -> None:
    here, there = processes.Pipe()
    parent = processes.Process(target=make_and_die, args=(there,))
    parent.start()
    workers_of_it = here.recv()
    parent.join()
    until = time.monotonic() + PATIENCE_S
    while any(_lives(pid) for pid in workers_of_it):
        assert time.monotonic() < until, "workers without a parent go on"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class _Spoken(gym.Env[Any, Any]):
    observation_space, action_space = gym.spaces.Text(3), gym.spaces.Discrete(2)


@pytest.mark.parametrize("mode", MODES)
def test_what_cannot_be_made_is_refused_in_one_sentence(mode: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"environment 'CartPol-v1' \(did you"):
        make_vector_env("CartPol-v1", None, 2, mode)
    gym.register("tests/Spoken-v0", _Spoken)
    with pytest.raises(EnvironmentSetupError, match="observation space Text"):
        make_vector_env("tests/Spoken-v0", None, 2, mode)
    with pytest.raises(ConfigError, match="num_envs: 0"):
        make_vector_env("CartPole-v1", None, 0, mode)


def test_an_unknown_vectorization_is_refused() -> None:
    with pytest.raises(ConfigError, match="vectorization: 'threads'"):
        make_vector_env("CartPole-v1", None, 1, "threads")  # type: ignore[arg-type]
