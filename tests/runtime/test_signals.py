"""A run that is asked to end does so at once, saved, and what it was doing is no loss.

Where it ends is chosen by counting how often its work looks at the pause: every such place can
be hit. Times are taken of real processes that get a real signal.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from rl_training import ManagedAlgorithm, TrainConfig
from rl_training.algorithms.fitting import Fitting
from rl_training.envs.collector import Collector
from rl_training.envs.probe import ProbeEnv
from rl_training.runtime import engine as engine_module
from rl_training.runtime import trainer as trainer_module
from rl_training.runtime.evaluation import Evaluator
from rl_training.runtime.signals import Pause, TerminatedRun
from rl_training.runtime.trainer import Autosave

from ..contract.test_updates import assert_same_state
from .test_resume import config_for, curve, final_state

SOME = ("bc", "sac", "ppo", "gail", "mbpo", "mopo", "dreamer", "rlpd")
"""One of every loop, and both that learn from rollouts."""


def small_config(algo: str, folder: Path, **changes: Any) -> TrainConfig:
    """Several updates per environment step, where there are such."""
    values = config_for(algo, folder, checkpoint_interval=0, keep_last=1000, **changes)
    if algo == "sac":
        values["algo_kwargs"] |= {"train_frequency": 6, "gradient_updates_per_step": 1.0}
    return TrainConfig(**values)


def learn(config: TrainConfig) -> Path:
    return ManagedAlgorithm(config).learn(progress=False).run_dir


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("[0-9]*"))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is left half done at every place where it may be, and saved there."""
    monkeypatch.setattr(trainer_module, "STRIDE_SECONDS", 0.0)
    monkeypatch.setattr(Autosave, "due", lambda autosave: autosave.seconds > 0.0)


@pytest.mark.parametrize("algo", SOME)
def test_a_run_goes_on_exactly_from_the_middle_of_a_step(
    algo: str, tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learn(small_config(algo, tmp_path / "often"))
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "STRIDE_SECONDS", 100.0)
        plain = learn(small_config(algo, tmp_path / "plain", checkpoint_minutes=0))
    assert_same_state(final_state(plain), final_state(whole))
    assert curve(plain) == curve(whole)
    saved = checkpoints(whole)
    assert len(saved) > len(checkpoints(plain))
    for i in (len(saved) // 3, 3 * len(saved) // 4):
        part = tmp_path / f"part-{i}"
        shutil.copytree(whole, part)
        for later in checkpoints(part)[i + 1 :]:
            shutil.rmtree(later)
        ManagedAlgorithm.resume(part, progress=False, checkpoint_minutes=0)
        assert_same_state(final_state(part), final_state(whole))
        assert curve(part) == curve(whole)


class Looks:
    """Counts the looks at the pause, and sends a signal to this process at one of them."""

    def __init__(
        self, patch: pytest.MonkeyPatch, at: int = 0, number: int = signal.SIGTERM
    ) -> None:
        self.count, self.at, self.number = 0, at, number
        patch.setattr(engine_module, "CHUNK_SECONDS", 0.0)  # a look after every update
        due, check, enter = Pause.due, Pause.check, Pause.__enter__
        patch.setattr(Pause, "due", lambda pause: self.looked(lambda: due(pause)))
        patch.setattr(Pause, "check", lambda pause: self.looked(lambda: check(pause)))
        patch.setattr(Pause, "__enter__", lambda pause: self.entered(lambda: enter(pause)))

    def looked(self, look: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return look()

    def entered(self, enter: Callable[[], Any]) -> Any:
        result = enter()
        self.looked(lambda: None)  # raises inside
        return result


@pytest.mark.parametrize("algo", SOME)
def test_a_signal_at_any_time_is_no_loss(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        looks = Looks(patch)
        whole = learn(small_config(algo, tmp_path / "whole"))
    assert looks.count > 5
    for share in (0.03, 0.5, 0.9):
        config = small_config(algo, tmp_path / f"part-{share}")
        with monkeypatch.context() as patch:
            Looks(patch, at=max(1, int(share * looks.count)))
            with pytest.raises(TerminatedRun) as ended:
                learn(config)
        assert ended.value.code == 143
        result = ended.value.result
        assert result.interrupted
        assert result.stop_reason == "interrupted by SIGTERM"
        run_dir = result.run_dir
        written = json.loads((run_dir / "result.json").read_text())
        assert (written["status"], written["stop_reason"]) == ("interrupted", result.stop_reason)
        ManagedAlgorithm.resume(run_dir, progress=False)
        assert_same_state(final_state(run_dir), final_state(whole))
        assert curve(run_dir) == curve(whole)


# --- how long it takes -----------------------------------------------------------------------

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["rl_training.api.algorithms", "torch", "numpy"])


class Slow(ProbeEnv):
    """Takes its time for each step."""

    def __init__(self, seconds: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return super().step(action)


def job(config: dict[str, Any], what: str, sign: str) -> None:
    """Train in a process group of its own; `sign` is made when the work in question begins."""
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    gym.register(id="test/Slow-v0", entry_point=Slow, max_episode_steps=50)
    (owner, name), _ = WORK[what]
    method = getattr(owner, name)

    def noted(*arguments: Any, **options: Any) -> Any:
        Path(sign).touch()
        return method(*arguments, **options)

    setattr(owner, name, noted)
    learn(TrainConfig(**config))


ENDLESS = 10_000_000
DATA = {"dataset": {"kind": "scripted", "name": "pendulum-mixed"}, "env_id": "Pendulum-v1"}
STEP = (Collector, "step")
WORK: dict[str, tuple[tuple[Any, str], dict[str, Any]]] = {
    "slow steps": (STEP, {"algo": "sac", "train_env_kwargs": {"seconds": 0.5}}),
    "a vector of slow steps": (
        STEP,
        {"algo": "sac", "train_env_kwargs": {"seconds": 1.0}, "num_envs": 16},
    ),
    "slow workers": (
        STEP,
        {
            "algo": "sac",
            "train_env_kwargs": {"seconds": 8.0},
            "num_envs": 3,
            "vectorization": "async",
        },
    ),
    "a rollout": (
        STEP,
        {
            "algo": "ppo",
            "train_env_kwargs": {"seconds": 0.03},
            "algo_kwargs": {"rollout_steps": 2048, "batch_size": 64},
        },
    ),
    "an evaluation": (
        (Evaluator, "run"),
        {
            "algo": "sac",
            "env_kwargs": {"seconds": 0.5},
            "train_env_kwargs": {"seconds": 0.0},
            "eval_interval": 50,
        },
    ),
    "a fit": (
        (Fitting, "fit"),
        {
            "algo": "mopo",
            "algo_kwargs": {"model_max_epochs": ENDLESS, "model_patience": ENDLESS},
            **DATA,
        },
    ),
    "a compilation": ((engine_module, "make_fx"), {"algo": "bc", "engine": "compile", **DATA}),
}


@pytest.mark.parametrize("what", WORK)
def test_a_signal_ends_any_work_within_seconds(what: str, tmp_path: Path) -> None:
    """To the whole process group, as service managers and schedulers send it."""
    sign = tmp_path / "begun"
    _, changes = WORK[what]
    values: dict[str, Any] = {
        "env_id": "test/Slow-v0",
        "device": "cpu",
        "eval_episodes": 3,
        "tensorboard": False,
        "output_dir": str(tmp_path / "runs"),
        **changes,
    }
    if "dataset" in values:
        values["total_updates"] = ENDLESS
    else:
        actions = {"actions": "box", "action_dim": 2}
        values["env_kwargs"] = {**actions, **values.get("env_kwargs", {})}
        values["total_timesteps"] = ENDLESS
    process = processes.Process(target=job, args=(values, what, str(sign)))
    process.start()
    deadline = time.monotonic() + 60.0
    while not sign.exists():
        assert time.monotonic() < deadline
        assert process.exitcode is None
        time.sleep(0.01)
    time.sleep(0.3)
    assert process.pid is not None
    began = time.time()
    os.killpg(process.pid, signal.SIGTERM)
    process.join(60.0)
    process.kill()
    assert process.exitcode == 143
    (run_dir,) = (tmp_path / "runs").iterdir()
    # what the interpreter then takes to end is not looked at: on a busy machine that is seconds
    assert (run_dir / "result.json").stat().st_mtime - began < 5.0
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["status"], result["stop_reason"]) == ("interrupted", "interrupted by SIGTERM")
    assert checkpoints(run_dir)
