"""Every transition that the collector hands out is one that the environment made."""

from __future__ import annotations

import statistics
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.collector import Collector, _ActionLog
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import EnvironmentFailure
from rl_training.experiment.seeding import episode_seed
from tests.envs import streams
from tests.envs.probe import PROBE_ID, ProbeEnv

from ..each import each

SCHEDULES = [
    {"terminate_at": 5, "jitter": 3},
    {"truncate_at": 6, "jitter": 2, "actions": "discrete", "action_dim": 4, "start": 2},
    {"terminate_at": 9, "truncate_at": 9, "jitter": 4},
    {"terminate_at": 1},
]


@each("mode", ["sync", "async"])
@each("num_envs", [1, 3])
@each("schedule", SCHEDULES)
def test_every_transition_is_the_environments_own(
    schedule: dict[str, Any], num_envs: int, mode: Any
) -> None:
    collector = Collector(PROBE_ID, schedule, num_envs, 5, mode)
    steps = 400 if mode == "sync" else 120
    stream = streams.actions(collector.spaces, num_envs, steps)
    seeds: list[list[int]] = [[ProbeEnv.decode(row)[0]] for row in collector.obs]
    lengths = [0] * num_envs
    expected_records = []
    handed_out: list[tuple[Any, bytes]] = []
    for row in stream:
        before = collector.obs
        step = collector.step(row)
        assert step.obs is before
        assert step.action is row
        env_action = collector.spaces.to_env(row).reshape(num_envs, -1)
        assert not (step.terminated & step.truncated).any()
        for i in range(num_envs):
            seed, at, _ = ProbeEnv.decode(step.obs[i])
            next_seed, next_at, echo = ProbeEnv.decode(step.next_obs[i])
            assert seed == next_seed == seeds[i][-1]  # no transition crosses episodes
            assert (at, next_at) == (lengths[i], lengths[i] + 1)  # and no step is missing
            np.testing.assert_array_equal(echo, env_action[i].astype(np.float32))
            assert step.reward[i] == next_at
            lengths[i] += 1
            wait = seed % (schedule.get("jitter", 0) + 1)
            ends = "terminate_at" in schedule and next_at == schedule["terminate_at"] + wait
            cut = "truncate_at" in schedule and next_at == schedule["truncate_at"] + wait
            assert step.terminated[i] == ends
            assert step.truncated[i] == (cut and not ends)
            new_seed, new_at, new_echo = ProbeEnv.decode(collector.obs[i])
            if ends or cut:
                total = lengths[i] * (lengths[i] + 1) / 2
                expected_records.append((i, total, lengths[i], seed))
                assert new_at == 0
                assert not new_echo.any()
                assert new_seed == episode_seed(5, i, len(seeds[i]))
                seeds[i].append(new_seed)
                lengths[i] = 0
            else:
                assert collector.obs[i].tobytes() == step.next_obs[i].tobytes()
        handed_out += [(array, array.tobytes()) for array in (step.next_obs, collector.obs)]
    assert all(array.tobytes() == content for array, content in handed_out)
    assert [tuple(record)[:4] for record in collector.drain_episodes()] == expected_records
    assert collector.drain_episodes() == []
    assert collector.env_steps == steps * num_envs
    everything = [seed for of_env in seeds for seed in of_env]
    assert len(set(everything)) == len(everything) > num_envs * 5
    collector.close()


def test_seeds_are_reproducible_and_far_apart() -> None:
    assert episode_seed(0, 0, 0) == episode_seed(0, 0, 0)
    seeds = {episode_seed(s, e, k) for s in range(4) for e in range(8) for k in range(100)}
    assert len(seeds) == 3200
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_arguments_and_the_actions_decide_everything(mode: Any) -> None:
    def run(seed: int) -> list[Any]:
        collector = Collector("Pendulum-v1", {"max_episode_steps": 15}, 2, seed, mode)
        steps = streams.collect(collector, streams.actions(collector.spaces, 2, 40))
        collector.close()
        return steps

    streams.assert_same(run(3), run(3))
    assert not np.array_equal(run(3)[0].obs, run(4)[0].obs)


def test_actions_reach_the_environment_in_its_units() -> None:
    low, high = np.array((-2.0, 0.1, -1e-3, -7.3)), np.array((3.0, 0.7, 5.0, 11.9))
    spaces = Spaces(1, "box", 4, tuple(low), tuple(high))
    actions = np.random.default_rng(0).uniform(-1.2, 1.2, (5000, 4)).astype(np.float32)
    copy = actions.copy()
    found = spaces.to_env(actions)
    expected = np.clip(low + (actions.astype(np.float64) + 1.0) / 2.0 * (high - low), low, high)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert (found >= low.astype(np.float32)).all()
    assert (found <= high.astype(np.float32)).all()
    np.testing.assert_array_equal(actions, copy)
    assert spaces.to_env(actions.astype(np.float64)).dtype == np.float32
    discrete = Spaces(1, "discrete", 3, action_start=-1)
    assert discrete.to_env(np.array([0, 2])).tolist() == [-1, 1]


@pytest.mark.parametrize(
    "spaces", [Spaces(1, "box", 2, (-1, -1), (1, 1)), Spaces(1, "discrete", 9)]
)
def test_the_action_log_keeps_each_episode_and_little_more(spaces: Spaces) -> None:
    log = _ActionLog(spaces, 3, capacity=4)
    generator = np.random.default_rng(0)
    kept: list[list[Any]] = [[], [], []]
    for row in streams.actions(spaces, 3, 3000):
        log.append(row)
        for i in range(3):
            kept[i].append(row[i])
            if generator.random() < 0.05 * (i + 1):
                log.restart(i)
                kept[i] = []
            assert log.length(i) == len(kept[i])
    for i in range(3):
        np.testing.assert_array_equal(
            log.since_reset(i), np.array(kept[i]).reshape(len(kept[i]), *row.shape[1:])
        )
    assert len(log._rows) <= 1024  # the longest episode is some 200 steps


def test_actions_of_another_shape_are_a_programming_error() -> None:
    collector = Collector("Pendulum-v1", None, 3, 0)
    with pytest.raises(ValueError, match=r"actions of shape \(3,\), expected \(3, 1\)"):
        collector.step(np.zeros(3, np.float32))
    collector.close()


def test_a_failure_in_a_later_episode_is_named_as_such() -> None:
    seed = episode_seed(9, 1, 2)
    kwargs = {"terminate_at": 3, "fail_at": 2, "only_seed": seed}
    collector = Collector(PROBE_ID, kwargs, 3, 9)
    where = rf"environment 1 of '{PROBE_ID}' \(episode seed {seed}, step 2\) raised ValueError"
    with pytest.raises(EnvironmentFailure, match=where):
        streams.collect(collector, streams.actions(collector.spaces, 3, 20))
    assert collector.env_steps == 3 * 7
    collector.close()


def test_a_step_costs_about_what_it_does_in_stable_baselines3() -> None:
    """Although ours seeds every episode, logs the actions and checks every number."""
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    num_envs, steps = 4, 250
    ours = Collector("CartPole-v1", None, num_envs, 0)
    theirs = vec_env.DummyVecEnv([lambda: gym.make("CartPole-v1")] * num_envs)
    theirs.reset()
    stream = streams.actions(ours.spaces, num_envs, steps)

    def measure() -> float:
        times: dict[Any, list[float]] = {ours.step: [], theirs.step: []}
        for _ in range(15):  # in turns, so that both see the same load
            for step, taken in times.items():
                began = time.process_time()
                for row in stream:
                    step(row)
                taken.append(time.process_time() - began)
        a, b = (statistics.median(taken) for taken in times.values())
        return a / b

    # about 0.93 when measured; the room is for a machine that is busy with other work
    assert any(measure() <= 1.2 for _ in range(4))
    ours.close()
    theirs.close()
