"""An environment that fails in training costs nothing but the step in which it failed.

The probe fails only while a file is there: the run is broken by making the file and mended
by removing it, with one and the same configuration.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml

from rl_training import Callback, ManagedAlgorithm, TrainConfig
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.errors import CheckpointError, EnvironmentFailure, TrainingDivergedError
from rl_training.experiment.seeding import derive_seed, episode_seed
from rl_training.runtime.callbacks import StepEvent
from rl_training.runtime.signals import TerminatedRun
from tests.conftest import Command, failing_saves
from tests.contract.small_runs import LOOP_KNOBS, known_knobs
from tests.contract.test_updates import assert_same_state
from tests.envs.probe import PROBE_ID, ProbeEnv

SEED, NUM_ENVS, TOTAL, ROLLOUT = 5, 3, 120, 7
SCHEDULE = {"terminate_at": 6, "truncate_at": 8, "jitter": 4}
ENV, EPISODE = 1, 2  # where it happens
KNOBS: dict[str, dict[str, Any]] = {
    "dqn": {"learning_starts": 12, "n_step": 3, "prioritized": True, "train_frequency": 5},
    "sac": {"learning_starts": 12, "gradient_updates_per_step": 0.5},
    "dreamer": {**LOOP_KNOBS["world_model"], "learning_starts": 30},
    "ppo": {
        "rollout_length": ROLLOUT,
        "epochs": 2,
        "normalize_observations": True,
        "normalize_rewards": True,
    },
}


def collect_seed(episode: int) -> int:
    return episode_seed(derive_seed(SEED, "collect"), ENV, episode)


def length(episode: int) -> int:
    return SCHEDULE["terminate_at"] + collect_seed(episode) % (SCHEDULE["jitter"] + 1)


def config_for(algo: str, tmp_path: Path, failure: dict[str, Any], **changes: Any) -> TrainConfig:
    actions = "box" if algo == "sac" else "discrete"
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": PROBE_ID,
        "env_kwargs": {"actions": actions, "action_dim": 2, **SCHEDULE},
        "train_env_kwargs": {
            **failure,
            "only_seed": collect_seed(EPISODE),
            "only_while": str(tmp_path / "broken"),
        },
        "seed": SEED,
        "device": "cpu",
        "num_envs": NUM_ENVS,
        "total_timesteps": TOTAL,
        "log_interval": 10,
        "eval_interval": 50,
        "eval_episodes": 1,
        "lr_schedule": {"kind": "linear"},
        "tensorboard": False,
        "output_dir": str(tmp_path / "runs"),
        "algo_kwargs": known_knobs(
            algo, {"hidden_sizes": [8], "batch_size": NUM_ENVS * ROLLOUT, **KNOBS[algo]}
        ),
    }
    return TrainConfig(**{**values, **changes})


def whole_run(config: TrainConfig, folder: Path) -> Path:
    """The same run without a failure, saved at every tick."""
    quiet = {"output_dir": str(folder), "checkpoint_interval": 1, "keep_last": 1000}
    return ManagedAlgorithm(config.replace(**quiet)).learn(progress=False).run_dir


def state_at(run_dir: Path, tick: int | None = None) -> dict[str, Any]:
    store = CheckpointStore(run_dir / "checkpoints", 1, True)
    (info,) = [i for i in store.all() if i.tick == tick] if tick is not None else store.all()[-1:]
    parts = read_checkpoint(info.path)[1]
    parts["trainer"].pop("elapsed_seconds")
    for optimizer in parts["algorithm"]["optimizers"].values():
        optimizer.pop("lr")  # set by the schedule at the next step, whatever is stored
    return parts


def curve(run_dir: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in event.items() if not k.startswith("time/")} for event in events]


def steps_before(at: int) -> int:
    """The environment steps that are taken when step `at` of the chosen episode fails."""
    return (length(0) + length(1) + at - 1) * NUM_ENVS


FAILURES = {
    "raises": ({"fail_at": 4}, 4, "raised ValueError"),
    "observation": ({"nan_at": 4}, 4, "returned the observation"),
    "reward": ({"nan_at": 4, "nan_in": "reward"}, 4, "returned the reward nan"),
    "reset": ({"fail_at": 0}, 0, "raised ValueError"),  # the step before it was taken already
    "dies": ({"die_at": 4}, 4, "lost its worker process (exit code 3)"),
    "dies in reset": ({"die_at": 0}, 0, "lost its worker process (exit code 3)"),
}
CASES = [
    *((algo, "sync", name) for algo in KNOBS for name in ("raises", "reward", "reset")),
    ("dqn", "sync", "observation"),
    *((algo, "async", name) for algo in ("dqn", "ppo") for name in ("raises", "dies")),
    ("dqn", "async", "dies in reset"),
    ("sac", "workers", "dies"),
    ("dqn", "overlap", "dies"),
]
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"vectorization": "async"},
    "workers": {"env_workers": 2},  # for three environments
    "overlap": {"env_workers": 2, "overlap_updates": True},
}


@pytest.mark.parametrize(("algo", "mode", "name"), CASES)
def test_a_failure_is_saved_and_the_resumed_run_is_exact(
    algo: str, mode: str, name: str, tmp_path: Path
) -> None:
    failure, at, words = FAILURES[name]
    config = config_for(algo, tmp_path, failure, **MODES[mode])
    here = config.replace(vectorization="sync", env_workers=0)
    whole = whole_run(here, tmp_path / "whole")
    (tmp_path / "broken").touch()
    agent = ManagedAlgorithm(config)
    with pytest.raises(EnvironmentFailure) as caught:
        agent.learn(progress=False)
    run_dir, tick = agent.run_dir, steps_before(at)
    assert run_dir is not None
    checkpoint = run_dir / "checkpoints" / f"{tick:012d}"
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert f"environment {ENV} of '{PROBE_ID}'" in sentence
    assert f"(episode seed {collect_seed(EPISODE)}, step {at}) {words}" in sentence
    assert f"the state after {tick:,} env steps is kept in '{checkpoint}'" in sentence
    assert sentence.endswith(f"rl-training resume {run_dir}")
    result = json.loads((run_dir / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["stop_reason"] == f"EnvironmentFailure: {sentence}"
    assert result["env_steps"] == tick

    # PPO fails in the middle of a rollout, and keeps its steps; what overlaps, after updates
    if algo != "ppo" and mode != "overlap":
        # every part is that of a run which was saved at this tick without having failed
        assert_same_state(state_at(run_dir, tick), state_at(whole, tick))

    (tmp_path / "broken").unlink()
    resumed = ManagedAlgorithm.resume(run_dir, progress=False)
    assert resumed.result is not None
    assert resumed.result.env_steps >= TOTAL
    assert_same_state(state_at(run_dir), state_at(whole))
    assert curve(run_dir) == curve(whole)
    assert json.loads((run_dir / "result.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("algo", KNOBS)
def test_a_failure_before_the_first_tick_keeps_the_beginning(algo: str, tmp_path: Path) -> None:
    config = config_for(algo, tmp_path, {})
    broken = {"fail_at": 1, "only_while": str(tmp_path / "broken")}
    config = config.replace(train_env_kwargs=broken)
    (tmp_path / "broken").touch()
    agent = ManagedAlgorithm(config)
    with pytest.raises(EnvironmentFailure, match="the state after 0 env steps is kept in"):
        agent.learn(progress=False)
    with pytest.raises(EnvironmentFailure, match="the state after 0 env steps is kept in"):
        agent.learn(progress=False)  # not mended yet
    (tmp_path / "broken").unlink()
    result = agent.learn(progress=False)  # the same object goes on
    assert_same_state(state_at(result.run_dir), state_at(whole_run(config, tmp_path / "whole")))


def test_on_the_command_line(cli: Command, tmp_path: Path) -> None:
    config = config_for("dqn", tmp_path, {"fail_at": 4})
    file = tmp_path / "probe.yaml"
    file.write_text(yaml.safe_dump(config.to_dict()))
    (tmp_path / "broken").touch()
    outcome = cli("train", file, "-q")
    (run_dir,) = (tmp_path / "runs").iterdir()
    checkpoint = run_dir / "checkpoints" / f"{steps_before(4):012d}"
    assert outcome.code == 2
    assert outcome.err.splitlines() == outcome.error_lines
    (line,) = outcome.error_lines
    assert str(checkpoint) in line
    again = cli("resume", run_dir, "-q")
    assert again.code == 2, "the environment is as broken as before"
    assert again.error_lines == [line]
    (tmp_path / "broken").unlink()
    assert cli("resume", run_dir, "-q").code == 0
    whole = whole_run(config, tmp_path / "whole")
    assert_same_state(state_at(run_dir), state_at(whole))


def test_a_policy_that_diverged_is_not_blamed_on_the_environment(tmp_path: Path) -> None:
    """Its NaN actions make the probe return NaN within the same stride."""
    knobs = {"hidden_sizes": [8], "learning_starts": 12, "policy_lr": 1e30, "critic_lr": 1e30}
    config = config_for("sac", tmp_path, {}, algo_kwargs=knobs, log_interval=1000)
    agent = ManagedAlgorithm(config)
    with pytest.raises(TrainingDivergedError, match="loss became NaN or infinite at update"):
        agent.learn(progress=False)
    assert agent.run_dir is not None
    assert not list(agent.run_dir.glob("checkpoints/*"))


def test_a_failure_that_cannot_be_saved_is_still_the_failure(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with (
        failing_saves(CheckpointError("the disk is full")),
        pytest.raises(EnvironmentFailure, match=r"raised ValueError.*is lost: the disk is full"),
    ):
        ManagedAlgorithm(config_for("dqn", tmp_path, {"fail_at": 4})).learn(progress=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("algo", KNOBS)
def test_the_streams_of_a_gpu_are_wound_back_as_well(algo: str, tmp_path: Path) -> None:
    config = config_for(algo, tmp_path, {"fail_at": 4}, device="cuda")
    whole = whole_run(config, tmp_path / "whole")
    (tmp_path / "broken").touch()
    agent = ManagedAlgorithm(config)
    with pytest.raises(EnvironmentFailure, match="is kept in"):
        agent.learn(progress=False)
    assert agent.run_dir is not None
    if algo != "ppo":  # which fails in the middle of a rollout, and keeps the steps of it
        found, expected = (state_at(run, steps_before(4)) for run in (agent.run_dir, whole))
        for part in ("random", "collector", "returns"):
            assert_same_state(found[part], expected[part])
    (tmp_path / "broken").unlink()
    ManagedAlgorithm.resume(agent.run_dir, progress=False)
    assert_same_state(state_at(agent.run_dir)["random"], state_at(whole)["random"])


class Stubborn(gym.Env[Any, Any]):
    """Returns NaN among numbers that fill more than a line, and cannot be closed after it."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs = np.linspace(-1e-5, 1.0, 8, dtype=np.float32)
        if self.steps == 5:
            obs[3] = np.nan
        return obs, 0.0, False, False, {}

    def close(self) -> None:
        if self.steps:
            raise RuntimeError("cannot be closed")


def test_an_environment_that_cannot_be_closed_hides_nothing(tmp_path: Path) -> None:
    gym.register(id="test/Stubborn-v0", entry_point=Stubborn)
    try:
        changes = {"env_id": "test/Stubborn-v0", "env_kwargs": {}, "train_env_kwargs": {}}
        config = config_for("dqn", tmp_path, {}, **changes, final_eval=False, eval_interval=0)
        with pytest.raises(EnvironmentFailure, match=r"step 5\) returned the obs") as caught:
            ManagedAlgorithm(config).learn(progress=False)
        assert "\n" not in str(caught.value)
    finally:
        del gym.registry["test/Stubborn-v0"]


@pytest.mark.parametrize("failure", [{"fail_at": 3}, {"nan_at": 3, "nan_in": "reward"}])
def test_a_failure_in_an_evaluation_is_saved_too(failure: dict[str, Any], tmp_path: Path) -> None:
    """In evaluation only; resumed, the evaluation is made up for."""
    broken = tmp_path / "broken"
    config = config_for("dqn", tmp_path, {}, eval_interval=20)
    failing = {**config.env_kwargs, **failure, "only_while": str(broken)}
    never = {next(iter(failure)): None}
    config = config.replace(env_kwargs=failing, train_env_kwargs=never)
    whole = whole_run(config, tmp_path / "whole")
    broken.touch()
    agent = ManagedAlgorithm(config)
    with pytest.raises(EnvironmentFailure) as caught:
        agent.learn(progress=False)
    sentence = str(caught.value)
    assert "in evaluation episode 0" in sentence
    assert "is kept in" in sentence
    broken.unlink()
    assert agent.run_dir is not None
    ManagedAlgorithm.resume(agent.run_dir, progress=False)
    assert_same_state(state_at(agent.run_dir), state_at(whole))
    assert curve(agent.run_dir) == curve(whole)


class Signalling(ProbeEnv):
    """Ends its own process politely in the third step, while there is a file that says so."""

    def __init__(self, signal_while: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._while, self._steps = signal_while, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._while is not None and self._steps == 3 and Path(self._while).exists():
            Path(self._while).unlink()
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


@pytest.fixture
def signalling() -> Iterator[str]:
    gym.register(id="test/Signalling-v0", entry_point=Signalling)
    yield "test/Signalling-v0"
    del gym.registry["test/Signalling-v0"]


@pytest.mark.parametrize("eval_interval", [20, 0], ids=["on the way", "at the end"])
def test_a_signal_does_not_wait_for_an_evaluation(
    eval_interval: int, signalling: str, tmp_path: Path
) -> None:
    """It is left undone, and made up for in the resumed run, which ends as if nothing were."""
    told = tmp_path / "told"
    config = config_for("dqn", tmp_path, {}, eval_interval=eval_interval, env_id=signalling)
    config = config.replace(
        env_kwargs={**config.env_kwargs, "signal_while": str(told)},
        train_env_kwargs={"signal_while": None},
    )
    whole = whole_run(config, tmp_path / "whole")
    told.touch()
    agent = ManagedAlgorithm(config)
    with pytest.raises(TerminatedRun) as ended:
        agent.learn(progress=False)
    assert ended.value.code == 143
    result = ended.value.result
    assert not told.exists()
    assert result.interrupted
    assert result.stop_reason == "interrupted by SIGTERM", "also where the budget was spent"
    assert result.last_eval is None
    assert json.loads((result.run_dir / "result.json").read_text())["status"] == "interrupted"

    resumed = ManagedAlgorithm.resume(result.run_dir, progress=False)
    assert resumed.result is not None
    assert not resumed.result.interrupted
    assert_same_state(state_at(result.run_dir), state_at(whole))
    assert curve(result.run_dir) == curve(whole)
    stores = [CheckpointStore(run / "checkpoints", 1, True) for run in (result.run_dir, whole)]
    scores = [store.all()[-1].score for store in stores]
    assert scores[0] == scores[1] is not None


def test_a_checkpoint_knows_the_evaluation_that_came_after_it(tmp_path: Path) -> None:
    """A run that is stopped where a checkpoint has just been written is evaluated at its end."""

    class Stopping(Callback):
        def on_step(self, event: StepEvent) -> None:
            if event.tick == 30:
                event.request_stop("enough")

    config = config_for("dqn", tmp_path, {}, eval_interval=0, checkpoint_interval=30)
    result = ManagedAlgorithm(config).learn(progress=False, callbacks=[Stopping()])
    assert result.env_steps == 30
    assert result.last_eval is not None
    best = CheckpointStore(result.run_dir / "checkpoints", 1, True).best()
    assert best is not None
    assert (best.tick, best.score) == (30, result.last_eval.return_mean)
