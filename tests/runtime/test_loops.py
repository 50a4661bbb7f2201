"""Loops as objects: keys of one are refused by another, what does not fit is said in a sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_training import AWAC, BC, CQL, DQN, IQL, PPO, SAC, RLTrainingError
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.bc import BCAlgorithm
from rl_training.algorithms.dqn import DQNAlgorithm
from rl_training.algorithms.loops import LOOPS, LoopFamily, register_loop
from rl_training.api.algorithms import managed_class
from rl_training.api.managed import ManagedAlgorithm
from rl_training.experiment.registry import algorithm_class, algorithm_names, register
from rl_training.runtime.build import build_loop

from ..each import each


@each(
    ("cls", "options", "message"),
    [
        (SAC, {"dataset": "pendulum-mixed"}, "dataset: SAC learns in the environment"),
        (SAC, {"total_updates": 5}, "total_updates: SAC learns in the environment"),
        (PPO, {"total_epochs": 5}, "total_epochs: PPO learns in the environment"),
        (BC, {"total_timesteps": 5}, "total_timesteps: BC learns from data alone"),
        (IQL, {"total_updates": 5, "num_envs": 2}, "num_envs: IQL learns from data alone.*, or"),
        (
            IQL,
            {"total_updates": 5, "total_timesteps": 9},
            r"total_updates: IQL .*; remove this key \(total_updates=null\), or remove total_time",
        ),
        (
            AWAC,
            {"total_epochs": 5, "offline_pretrain_updates": 9},
            "algo_kwargs.offline_pretrain_updates: AWAC reads this key only where it goes on in",
        ),
        (CQL, {"total_timesteps": 9, "seeds": [1, 2]}, "seeds: CQL trains one seed per run"),
        (
            CQL,
            {"total_timesteps": 9, "batch_size": 1},
            "algo_kwargs.offline_batch_ratio: a batch_size of 1 cannot hold both parts",
        ),
        (BC, {"num_envs": 2}, "num_envs: BC learns from data alone"),
        (BC, {"vectorization": "async"}, "vectorization: BC learns from data alone"),
        (BC, {"train_env_kwargs": {"g": 1.0}}, "train_env_kwargs: BC learns from data alone"),
    ],
)
def test_keys_of_the_other_loop(cls: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RLTrainingError, match=message):
        cls("Pendulum-v1", **options)


@each(
    ("cls", "env_id", "options", "message"),
    [
        (SAC, "Pendulum-v1", {}, "total_timesteps: sac learns in the environment; give a budget"),
        (PPO, "CartPole-v1", {}, "total_timesteps: ppo learns in the environment; give a budget"),
        (SAC, "Pendulum-v1", {"total_timesteps": 500}, "algo_kwargs.learning_starts: 1,000"),
        (
            DQN,
            "CartPole-v1",
            {"total_timesteps": 9000, "buffer_capacity": 10**12},
            "algo_kwargs.buffer_capacity: a replay of",
        ),
        (
            PPO,
            "CartPole-v1",
            {"total_timesteps": 9000, "rollout_length": 10, "batch_size": 64},
            "algo_kwargs.batch_size: 64 does not divide a rollout of 10 steps",
        ),
    ],
)
def test_online_runs_refuse_before_a_folder_exists(
    cls: Any, env_id: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    agent = cls(env_id, output_dir=str(tmp_path), **options)
    with pytest.raises(RLTrainingError, match=message):
        agent.learn(progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cls", [SAC, DQN, PPO])
def test_an_online_run_in_python(cls: Any, tmp_path: Path) -> None:
    env_id = "Pendulum-v1" if cls is SAC else "CartPole-v1"
    knobs = {"rollout_length": 32} if cls is PPO else {"learning_starts": 32}
    agent = cls(
        env_id,
        num_envs=2,
        hidden_sizes=[8],
        batch_size=16,
        eval_episodes=1,
        tensorboard=False,
        output_dir=str(tmp_path),
        **knobs,
    )
    result = agent.learn(total_timesteps=128, progress=False)
    assert result.env_steps == 128
    assert result.updates > 0
    assert result.return_mean is not None
    again = cls.load(result.run_dir)
    assert again.evaluate(1).return_mean == agent.evaluate(1).return_mean


def test_a_budget_chooses_between_two_ways_to_learn(tmp_path: Path) -> None:
    """Until there is one, keys of either may stand; a run keeps the way it began with."""
    small = {"hidden_sizes": [8], "batch_size": 16, "eval_episodes": 1, "tensorboard": False}
    options = {"dataset": "pendulum-mixed", "output_dir": str(tmp_path), "device": "cpu", **small}
    for cls in (AWAC, CQL, IQL):
        both = cls("Pendulum-v1", num_envs=2, learning_starts=10, total_updates=None, **options)
        with pytest.raises(RLTrainingError, match="total_epochs, or total_timesteps to go on"):
            both.learn(progress=False)
        online = both.learn(total_timesteps=30, progress=False)
        assert (online.env_steps, online.updates) == (30, 20)
        # the config's budget makes way for the one that is given
        alone = cls("Pendulum-v1", total_timesteps=30, **options)
        offline = alone.learn(total_updates=3, progress=False)
        assert (offline.env_steps, offline.updates) == (0, 3)
        for agent, budget in ((alone, {"total_timesteps": 40}), (both, {"total_updates": 40})):
            with pytest.raises(RLTrainingError, match=r"^(total_|algo_kwargs.|num_envs)") as caught:
                agent.learn(**budget, progress=False)
            assert "\n" not in str(caught.value)
        with pytest.raises(RLTrainingError, match="this run is offline and cannot turn into"):
            cls.resume(offline.run_dir, total_timesteps=40, total_updates=None, progress=False)


class Misspelt(BCAlgorithm):
    loop = "ofline"


class RollingOut(BCAlgorithm):
    loop = "on_policy"


class Replaying(BCAlgorithm):
    loop = "off_policy"


class GreedyRollingOut(DQNAlgorithm):
    loop = "on_policy"


class Own(BCAlgorithm):
    loop = "own"


def class_for(algorithm: type[Algorithm]) -> type[ManagedAlgorithm]:
    """The class of agents of an algorithm that is registered here."""
    name = algorithm.__name__.lower()
    register(name, algorithm)
    return managed_class(name)


@pytest.mark.usefixtures("own_names")
def test_an_unknown_loop_is_refused() -> None:
    with pytest.raises(
        RLTrainingError, match=r"loop 'ofline' is not known \(did you mean 'offline'"
    ):
        class_for(Misspelt)("Pendulum-v1")


def refusal(loop: LoopFamily, cls: Any) -> str:
    try:
        loop.refuse_unfit(cls)
    except RLTrainingError as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("own_names")
def test_an_algorithm_that_does_not_fit_its_loop_is_refused_in_one_sentence() -> None:
    """Every algorithm in every loop that is not its own: fitting, or one sentence and no run."""
    refused = set()
    for name in algorithm_names():
        cls = algorithm_class(name)
        for loop in LOOPS.values():
            if loop.name in cls.loops():
                loop.refuse_unfit(cls)
                continue
            said = refusal(loop, cls)
            if said:
                assert said.startswith(f"algo: {cls.name()} asks for the loop '{loop.name}'")
                assert "\n" not in said
                refused.add((name, loop.name))
    others = set(LOOPS) - {"offline", "off_policy", "offline_to_online"}
    assert {("bc", loop) for loop in others} <= refused
    assert ("ppo", "offline") in refused, "its batches are others"
    for unfit, message in (
        (RollingOut, "no collect, follow_schedules; add what .*RolloutLearner"),
        (Replaying, "its Params have no buffer_capacity, "),
    ):
        with pytest.raises(RLTrainingError, match=message):
            class_for(unfit)("Pendulum-v1")
    with pytest.raises(RLTrainingError, match="GreedyRollingOut asks for the loop 'on_policy'"):
        class_for(GreedyRollingOut)("CartPole-v1", total_timesteps=9)


def test_what_an_object_lacks_is_refused_when_its_loop_is_built() -> None:
    agent = PPO("CartPole-v1", total_timesteps=64, rollout_length=32, batch_size=32)
    del agent.algorithm.actor
    with pytest.raises(RLTrainingError, match=r"PPO asks for the loop .* no actor"):
        build_loop(agent.config, agent.algorithm)


BUILT: list[str] = []


def build_own(config: Any, algorithm: Any, dataset: Any) -> Any:
    """A third party's loop: the offline one, and a note of what was built."""
    BUILT.append(config.algo)
    return LOOPS["offline"].builder("rl_training.runtime.loops")(config, algorithm, dataset)


@pytest.mark.usefixtures("own_names")
def test_a_third_party_registers_a_loop(tmp_path: Path) -> None:
    own = replace(LOOPS["offline"], name="own", build=f"{__name__}:build_own")
    with pytest.raises(RLTrainingError, match="a loop 'offline' is registered already"):
        register_loop(replace(own, name="offline"))
    with pytest.raises(RLTrainingError, match="build 'here' must have the form"):
        register_loop(replace(own, build="here"))
    with pytest.raises(RLTrainingError, match="unread names 'envs', which is not a key"):
        register_loop(replace(own, unread=("envs",)))
    own = replace(own, unread=(*own.unread, "lr_schedule"))
    register_loop(own)
    agent_class = class_for(Own)
    options: dict[str, Any] = {"dataset": "pendulum-mixed", "output_dir": str(tmp_path)}
    small = {"hidden_sizes": [8], "eval_episodes": 1, "tensorboard": False, "device": "cpu"}
    with pytest.raises(RLTrainingError, match="lr_schedule: Own learns from data alone"):
        agent_class("Pendulum-v1", lr_schedule={"kind": "cosine"}, **options)
    result = agent_class("Pendulum-v1", **options, **small).learn(total_updates=3, progress=False)
    assert (result.updates, BUILT) == (3, ["own"])
