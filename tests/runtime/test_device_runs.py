"""Runs in worlds on the device: exact resume, failures, no host sync, and learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.speed.device_envs_job import Kill, KilledError
from torch.utils._pytree import tree_leaves

from rl_training import PPO, ManagedAlgorithm, TrainConfig
from rl_training.envs.device.register import CLASSIC
from rl_training.execution import interrupted_by
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.errors import EnvironmentFailure, RLTrainingError
from rl_training.replay.replay import ReplayBuffer
from rl_training.replay.windows import DeviceWindows
from rl_training.runtime.build import build_algorithm, build_loop, task_spaces

from ..contract.test_updates import HOST_SYNCS, OperationLog, assert_same_state
from ..envs import simulators

CPU = torch.device("cpu")
REACH = f"{simulators.__name__}:simulators/Reach-v0"
SMALL_PPO = {"rollout_length": 5, "batch_size": 15, "epochs": 2, "hidden_sizes": [8]}
SMALL_PPO |= {"normalize_observations": True, "normalize_rewards": True}


def config_of(folder: Path, algo: str = "ppo", **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": "torch/CartPole-v1" if algo == "dqn" else REACH,
        "num_envs": 6,
        "device": "cpu",
        "output_dir": str(folder),
        "total_timesteps": 120,
        "eval_episodes": 1,
        "tensorboard": False,
        "algo_kwargs": KNOBS.get(algo, {}),
    }
    return TrainConfig(**(values | changes))


SMALL_REPLAY = {"buffer_capacity": 90, "learning_starts": 18, "batch_size": 8, "hidden_sizes": [8]}
SMALL_REPLAY |= {"gradient_updates_per_step": 0.25}
KNOBS: dict[str, dict[str, Any]] = {
    "ppo": SMALL_PPO,
    "sac": SMALL_REPLAY,
    "td3": SMALL_REPLAY,
    "rlpd": {**SMALL_REPLAY, "offline_batch_ratio": 0.0, "num_critics": 2},
    "dqn": {**SMALL_REPLAY, "n_step": 3, "prioritized": True, "train_frequency": 6},
}


def loop_of(config: TrainConfig) -> Any:
    return build_loop(config, build_algorithm(config, task_spaces(config)))


def newest(run: Path) -> dict[str, Any]:
    last = max((run / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    _, parts = read_checkpoint(last)
    parts["trainer"].pop("elapsed_seconds")
    return parts


@pytest.mark.parametrize("algo", KNOBS)
def test_a_resumed_run_equals_an_uninterrupted_one(algo: str, tmp_path: Path) -> None:
    whole = ManagedAlgorithm(config_of(tmp_path, algo, run_name="whole"))
    whole.learn(progress=False)
    torch.manual_seed(1)  # of no use to a resumed run
    config = config_of(tmp_path, algo, run_name="killed", checkpoint_interval=60)
    with pytest.raises(KilledError):
        ManagedAlgorithm(config).learn(progress=False, callbacks=Kill(66))
    torch.manual_seed(2)
    resumed = ManagedAlgorithm.resume(tmp_path / "killed", progress=False)
    assert_same_state(resumed.algorithm.state_dict(), whole.algorithm.state_dict())
    assert_same_state(
        newest(tmp_path / "killed")["collector"], newest(tmp_path / "whole")["collector"]
    )


def test_a_rollout_that_was_begun_is_continued_exactly(tmp_path: Path) -> None:
    loops = []
    for saved_after in (0, 3):
        torch.manual_seed(0)
        loop = loop_of(config_of(tmp_path))
        gathering = loop.gathering
        if saved_after:
            gathering.rollout.first_seen = True
            gathering.algorithm.normalizer.observe(gathering.worlds.obs)
            gathering.rollout.filled += gathering.experience.steps(saved_after)
            parts = {name: part.training_state() for name, part in loop.components().items()}
            learned, random = loop.algorithm.training_state(), torch.get_rng_state()
            loop = loop_of(config_of(tmp_path))
            for name, part in loop.components().items():
                part.load_training_state(parts[name])
            loop.algorithm.load_training_state(learned)
            torch.set_rng_state(random)
        loop.gathering.collect()
        loops.append(loop)
    for one, other in zip(*(loop.rollout.taken() for loop in loops), strict=True):
        assert torch.equal(one, other)
    assert loops[0].rollout.is_full


def test_a_failed_world_ends_the_run_and_the_state_before_is_kept(tmp_path: Path) -> None:
    broken = {"fails_at": 8}
    config = config_of(tmp_path, run_name="broken", train_env_kwargs=broken, log_interval=30)
    with pytest.raises(
        EnvironmentFailure, match=r"world 2 \(seed \d+, step 8\).*after 30 env steps"
    ):
        ManagedAlgorithm(config).learn(progress=False)
    kept = newest(tmp_path / "broken")
    assert kept["trainer"]["progress"]["env_steps"] == 30
    # the statistics of observations among them
    tensors = [x for x in tree_leaves((kept["collector"], kept["algorithm"])) if torch.is_tensor(x)]
    assert len(tensors) > 20
    assert all(bool(torch.isfinite(x).all()) for x in tensors)


@pytest.mark.usefixtures("no_branches")
def test_a_step_waits_for_nothing_and_is_the_same_each_time(tmp_path: Path) -> None:
    """So that a GPU can capture it; as `test_update_is_capturable` does for updates."""
    tasks = {REACH: ["ppo", "sac", "td3"], "torch/CartPole-v1": ["ppo", "dqn"]}
    tasks |= {f"torch/{name}": ["ppo"] for name in CLASSIC[1:]}
    for env_id, algos in tasks.items():
        for algo in algos:
            loop = loop_of(config_of(tmp_path, algo, env_id=env_id))
            learner, logs = loop.experience.engine.learner, []
            for _ in range(3):
                with OperationLog() as log:
                    learner.update()
                logs.append(log.operations)
            assert not [op for op, _ in logs[0] if op in HOST_SYNCS], (algo, env_id)
            assert logs[0] == logs[1] == logs[2], (algo, env_id)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_agrees_with_an_eager_one(tmp_path: Path) -> None:
    cartpole = {"env_id": "torch/CartPole-v1"}
    waiting = {"train_env_kwargs": {"waits": True}}  # divides the steps into several graphs
    for algo, env in (("ppo", cartpole), ("dqn", cartpole), ("ppo", waiting), ("sac", waiting)):
        found = []
        for engine in ("eager", "graph"):
            torch.manual_seed(0)
            loop = loop_of(config_of(tmp_path, algo, device="cuda", engine=engine, **env))
            torch.cuda.manual_seed(0)
            loop.advance(60)
            assert not [note for note in loop.link.notes if "capture" in note]
            assert loop.experience.engine.mode == engine
            found.append([x.cpu() for x in loop.experience.collector.tensors().values()])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_work_between_graphs_is_recorded_in_its_place(tmp_path: Path) -> None:
    """A simulator that waits for the device learns as one that does not; while a step is
    captured, its work is handed on and not done."""
    found = []
    for waits in (False, True):
        torch.manual_seed(0)
        loop = loop_of(config_of(tmp_path, train_env_kwargs={"waits": waits}))
        loop.advance(60)
        assert loop.link.notes == ["the simulator waits"] * waits  # once
        found.append(loop.algorithm.state_dict())
    assert_same_state(*found)
    worlds, handed = loop.experience.collector, []
    with interrupted_by(handed.append):
        before = worlds.env.place.clone()
        worlds.step(torch.ones(6, 1))
    assert torch.equal(worlds.env.place, before)
    (work,) = handed
    work()
    assert torch.equal(worlds.env.place, before + 0.5)


def test_rows_of_the_device_are_those_of_the_host(tmp_path: Path) -> None:
    """n-step windows, episode ends of both kinds, and a ring that overwrites."""
    for env_id, n_step in (("torch/CartPole-v1", 1), ("torch/CartPole-v1", 3), (REACH, 2)):
        spaces = task_spaces(config_of(tmp_path, env_id=env_id))
        own, host = (ReplayBuffer(40, 4, spaces, CPU, gamma=0.9, n_step=n_step) for _ in range(2))
        windows = DeviceWindows(4, spaces, CPU, 0.9, n_step)
        torch.manual_seed(0)
        for _ in range(25):
            shape = () if spaces.is_discrete else (spaces.action_dim,)
            action = torch.rand(4, *shape) if spaces.is_box else torch.randint(2, (4,))
            terminated, truncated = torch.rand(4) < 0.2, torch.rand(4) < 0.2
            obs, after = torch.randn(2, 4, spaces.obs_dim)
            step = (obs, action, torch.randn(4), after, terminated, truncated & ~terminated)
            host.add(*(x.numpy() for x in step))
            windows.add(*step)
            rows = windows.complete()
            if rows is not None:
                own.add_rows(rows)
        assert len(own) == len(host) == 40
        for a, b in zip(own.everything(), host.everything(), strict=True):
            assert a is b is None or torch.allclose(a, b, atol=1e-6)


def test_what_cannot_be_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for algo, changes, message in (
        ("ppo", {"wrappers": ["gymnasium.wrappers:RecordEpisodeStatistics"]},
         "wrappers: the worlds of 'simulators/Reach-v0' are simulated together"),
        ("ppo", {"vectorization": "async"}, "vectorization: the worlds of 'simulators/Reach-v0'"),
        ("ppo", {"algo_kwargs": {**SMALL_PPO, "memory": "gru", "sequence_length": 5}},
         "algo_kwargs.memory: policies with memory"),
        ("ppo", {"num_envs": 1_000_000, "total_timesteps": 10**10,
                 "algo_kwargs": {**SMALL_PPO, "rollout_length": 10_000, "batch_size": 1000}},
         r"num_envs: rollouts of 10,000 steps of 1,000,000 worlds would take .* would fit"),
        ("ppo", {"num_envs": 10_001, "total_timesteps": 10**6, "env_id": "CartPole-v1",
                 "algo_kwargs": {**SMALL_PPO, "batch_size": 10_001}},
         "num_envs: at most 10,000 environments.*got 10,001; lower it, or use worlds"),
        ("dreamer", {"env_id": "torch/CartPole-v1", "total_timesteps": 10_000},
         "env_id: dreamer does not learn in worlds on the device.*env_id=CartPole-v1"),
        ("ppo", {"train_env_kwargs": {"width": 1}}, "observations of shape"),
    ):  # fmt: skip
        with pytest.raises(RLTrainingError, match=message) as raised:
            loop_of(config_of(tmp_path, algo, **changes))
        assert "\n" not in str(raised.value)


def cartpole(folder: Path, **knobs: Any) -> float:
    """The return after some seconds in 256 worlds."""
    agent = PPO(
        "torch/CartPole-v1",
        num_envs=256,
        device="cpu",
        output_dir=str(folder),
        tensorboard=False,
        lr_schedule={"kind": "linear"},
        **GATE | knobs,
    )
    result = agent.learn(total_timesteps=GATE_STEPS, eval_episodes=10, progress=False)
    assert result.return_mean is not None
    return result.return_mean


GATE_STEPS = 163_840
GATE: dict[str, Any] = {
    "rollout_length": 32,
    "batch_size": 1024,
    "epochs": 5,
    "lr": 3e-3,
    "normalize_rewards": True,
}


def test_ppo_balances_the_pole_in_256_worlds(tmp_path: Path) -> None:
    assert cartpole(tmp_path) >= 475.0


def test_its_twin_without_the_future_does_not(tmp_path: Path) -> None:
    assert cartpole(tmp_path, gamma=0.0, gae_lambda=0.0) < 200.0
