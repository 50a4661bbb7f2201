"""A run that is asked to end does so at once, saved, and what it was doing is no loss.

Where it ends is chosen by counting how often its work looks at the pause: every such place can
be hit. Times are taken of real processes that get a real signal.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from rl_training import Callback, ManagedAlgorithm, TrainConfig
from rl_training.algorithms.fitting import Fitting
from rl_training.api.seeds import learn_seeds, resume_seeds
from rl_training.envs.collector import Collector
from rl_training.runtime import engine as engine_module
from rl_training.runtime import recording
from rl_training.runtime import trainer as trainer_module
from rl_training.runtime.callbacks import StepEvent
from rl_training.runtime.evaluation import Evaluator
from rl_training.runtime.saving import Autosave
from rl_training.runtime.signals import InterruptedRun, Pause, TerminatedRun
from tests.envs.probe import ProbeEnv

from ..conftest import PATIENCE_S
from ..contract.test_updates import assert_same_state
from ..processes import processes
from .test_resume import config_for, curve, final_state

SOME = ("bc", "sac", "ppo", "gail", "mbpo", "mopo", "dreamer", "rlpd")
"""One of every loop, and both that learn from rollouts."""


def small_config(algo: str, folder: Path, **changes: Any) -> TrainConfig:
    """Several updates per environment step, where there are such."""
    short = {"env_kwargs": {"max_episode_steps": 20}, "checkpoint_interval": 0, "keep_last": 1000}
    values = config_for(algo, folder, **{**short, **changes})
    if algo == "sac":
        values["algo_kwargs"] |= {"train_frequency": 6, "gradient_updates_per_step": 1.0}
    return TrainConfig(**values)


def learn(config: TrainConfig) -> Path:
    return ManagedAlgorithm(config).learn(progress=False).run_dir


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("[0-9]*"))


@contextmanager
def saving_where(due: Callable[[Autosave], bool]) -> Iterator[None]:
    """Strides of a single step, and checkpoints by the clock where `due` says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "STRIDE_SECONDS", 0.0)
        patch.setattr(Autosave, "due", due)
        yield


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
def test_a_run_may_end_anywhere_and_goes_on_exactly(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        looks = Looks(patch)
        whole = learn(small_config(algo, tmp_path / "whole"))

    # every step is left half done wherever it may be, some are saved there
    asked = itertools.count()
    with saving_where(lambda _: next(asked) % 5 == 3):
        often = learn(small_config(algo, tmp_path / "often"))
    same_run(often, whole)
    saved = checkpoints(often)
    assert len(saved) > len(checkpoints(whole))
    middle = 2 * len(saved) // 3
    for later in saved[middle + 1 :]:
        shutil.rmtree(later)
    ManagedAlgorithm.resume(often, progress=False)
    same_run(often, whole)

    # a signal at one of the looks at the pause
    for share in (0.05, 0.7):
        with monkeypatch.context() as patch:
            Looks(patch, at=max(1, int(share * looks.count)))
            with pytest.raises(TerminatedRun) as ended:
                learn(small_config(algo, tmp_path / f"part-{share}"))
        assert ended.value.code == 143
        result = ended.value.result
        assert result.interrupted
        assert result.stop_reason == "interrupted by SIGTERM"
        written = json.loads((result.run_dir / "result.json").read_text())
        assert (written["status"], written["stop_reason"]) == ("interrupted", result.stop_reason)
        ManagedAlgorithm.resume(result.run_dir, progress=False)
        same_run(result.run_dir, whole)


def same_run(found: Path, expected: Path) -> None:
    assert_same_state(final_state(found), final_state(expected))
    assert curve(found) == curve(expected)


class Acting(Callback):
    """Does something to the run once the clock has reached a tick."""

    def __init__(self, tick: int, action: Callable[[StepEvent], None]) -> None:
        self.tick, self.action = tick, action

    def on_step(self, event: StepEvent) -> None:
        if event.tick >= self.tick:
            self.tick = sys.maxsize
            self.action(event)


def test_ctrl_c_goes_on_to_end_the_script_and_a_stop_of_a_callback_does_not(
    tmp_path: Path,
) -> None:
    config = small_config("bc", tmp_path)
    stopping = Acting(20, lambda event: event.request_stop("enough"))
    result = ManagedAlgorithm(config).learn(progress=False, callbacks=[stopping])
    assert (result.stop_reason, result.interrupted) == ("enough", False)
    for number, kind, code in (
        (signal.SIGINT, KeyboardInterrupt, None),
        (signal.SIGTERM, SystemExit, 143),
        (signal.SIGHUP, SystemExit, 129),
    ):
        before = signal.getsignal(number)
        if before is signal.SIG_IGN:  # as nohup does with SIGHUP: then it ends nothing
            continue
        sending = Acting(20, lambda _, number=number: os.kill(os.getpid(), number))
        with pytest.raises(kind) as ended:
            ManagedAlgorithm(config).learn(progress=False, callbacks=[sending])
        assert signal.getsignal(number) is before
        assert getattr(ended.value, "code", None) == code
        assert ended.value.result.interrupted
        assert ended.value.result.stop_reason == f"interrupted by {number.name}"
        resuming = Acting(30, lambda _, number=number: os.kill(os.getpid(), number))
        with pytest.raises(kind):
            ManagedAlgorithm.resume(
                ended.value.result.run_dir, progress=False, callbacks=[resuming]
            )
        assert int(checkpoints(ended.value.result.run_dir)[-1].name) >= 30


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    def twice(_: StepEvent) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the second signal has raised already")

    agent = ManagedAlgorithm(small_config("bc", tmp_path))
    with pytest.raises(SystemExit) as ended:
        agent.learn(progress=False, callbacks=[Acting(10, twice)])
    assert ended.value.code == 143
    assert not isinstance(ended.value, TerminatedRun)
    assert agent.run_dir is not None
    assert json.loads((agent.run_dir / "result.json").read_text())["status"] == "failed"


def test_a_hang_up_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        hanging_up = Acting(20, lambda _: os.kill(os.getpid(), signal.SIGHUP))
        config = small_config("bc", tmp_path)
        result = ManagedAlgorithm(config).learn(progress=False, callbacks=[hanging_up])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not result.interrupted


def test_several_seeds_end_together_and_save_by_the_clock(tmp_path: Path) -> None:
    values = config_for("bc", tmp_path / "whole", checkpoint_interval=0, keep_last=1000)
    whole = learn_seeds(TrainConfig(**values), [1, 2], progress=False)
    values["output_dir"] = str(tmp_path / "part")
    asked = itertools.count()

    def due(autosave: Autosave) -> bool:
        if next(asked) == 30:
            os.kill(os.getpid(), signal.SIGINT)
        return autosave.seconds > 0.0

    with saving_where(due), pytest.raises(InterruptedRun) as ended:
        learn_seeds(TrainConfig(**values), [1, 2], progress=False)
    run_dir = ended.value.result.run_dir
    ticks = [[path.name for path in checkpoints(run_dir / f"seed-{seed}")] for seed in (1, 2)]
    assert ticks[0] == ticks[1]
    assert len(ticks[0]) >= 30
    resume_seeds(run_dir, progress=False)
    for seed in (1, 2):
        folders = [run / f"seed-{seed}" for run in (run_dir, whole.run_dir)]
        assert_same_state(*(final_state(folder) for folder in folders))


def test_a_clock_that_stands_still_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    learn(small_config("bc", tmp_path))


# --- how long it takes -----------------------------------------------------------------------


class Slow(ProbeEnv):
    """Takes its time for each step, as soon as the file `since` exists."""

    def __init__(self, seconds: float = 0.0, since: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._seconds, self._since = seconds, Path(since)

    def step(self, action: Any) -> Any:
        if self._seconds and self._since.exists():
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
STEP = (Collector, "finish")
WORK: dict[str, tuple[tuple[Any, str], dict[str, Any]]] = {
    "slow steps": (STEP, {"algo": "sac", "train_env_kwargs": {"seconds": 0.5}}),
    "a vector of slow steps": (
        STEP,
        {"algo": "sac", "train_env_kwargs": {"seconds": 1.0}, "num_envs": 100},
    ),
    "slow workers": (
        STEP,
        {
            "algo": "sac",
            "train_env_kwargs": {"seconds": 100.0},
            "num_envs": 3,
            "env_workers": 2,
            "overlap_updates": True,
        },
    ),
    "a rollout": (
        STEP,
        {
            "algo": "ppo",
            "train_env_kwargs": {"seconds": 0.05},
            "algo_kwargs": {"rollout_length": 2048, "batch_size": 64},
        },
    ),
    "an evaluation": (
        (Evaluator, "run"),
        {
            "algo": "sac",
            "env_kwargs": {"seconds": 0.5},
            "train_env_kwargs": {"seconds": 0.0},
            "eval_interval": 50,
            "eval_episodes": 4,
        },
    ),
    "a fit": (
        (Fitting, "fit"),
        {
            "algo": "mopo",
            "algo_kwargs": {"model_max_epochs": 100_000, "model_patience": 10_000},
            **DATA,
        },
    ),
    "a compilation": ((recording, "make_fx"), {"algo": "bc", "engine": "compile", **DATA}),
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
        values["env_kwargs"] = {**actions, "since": str(sign), **values.get("env_kwargs", {})}
        values["total_timesteps"] = ENDLESS
    process = processes.Process(target=job, args=(values, what, str(sign)))
    process.start()
    deadline = time.monotonic() + PATIENCE_S
    while not sign.exists():
        assert time.monotonic() < deadline
        assert process.exitcode is None
        time.sleep(0.01)
    time.sleep(0.3)
    assert process.pid is not None
    began = time.time()
    os.killpg(process.pid, signal.SIGTERM)
    process.join(PATIENCE_S)
    gone = time.time() - began
    process.kill()
    assert process.exitcode == 143
    (run_dir,) = (tmp_path / "runs").iterdir()
    saved = (run_dir / "result.json").stat().st_mtime - began
    # 0.1 s to save and 3 s to end on an idle machine; all work but the compilation takes 100 s
    assert saved <= gone < 60.0, f"saved after {saved:.1f} s, gone after {gone:.1f} s"
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["status"], result["stop_reason"]) == ("interrupted", "interrupted by SIGTERM")
    assert checkpoints(run_dir)
