"""Exact resume: run 2N equals run N, die, resume N in another process, bit for bit.

The dying is real: a subprocess is killed with SIGKILL at ticks that are no multiple of
any interval, and the resumed process starts from another random state.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training import Callback, ManagedAlgorithm, TrainConfig
from rl_training.algorithms.loops import loop_family
from rl_training.envs.toys.catch import CATCH_ID
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.registry import algorithm_class
from rl_training.runtime.callbacks import StepEvent

from ..conftest import PATIENCE_S
from ..contract.small_runs import (
    LOOP_KNOBS,
    SMALL_SAC,
    TASKS,
    default_kind,
    known_knobs,
    runs,
    small_policy,
)
from ..contract.test_updates import assert_same_state
from ..processes import processes


class Die(Callback):
    """Ends the process by SIGKILL as soon as the clock has reached a tick."""

    def __init__(self, tick: int) -> None:
        self.tick = tick

    def on_step(self, event: StepEvent) -> None:
        if self.tick and event.tick >= self.tick:
            os.kill(os.getpid(), signal.SIGKILL)


def job(config: dict[str, Any] | None, resume: str | None, die_at: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))  # of no use to anyone
    callbacks = [Die(die_at)]
    if resume is not None:
        ManagedAlgorithm.resume(resume, progress=False, callbacks=callbacks)
    else:
        ManagedAlgorithm(TrainConfig(**config)).learn(progress=False, callbacks=callbacks)


def run(
    config: dict[str, Any] | None = None, *, resume: Path | None = None, die_at: int = 0
) -> None:
    process = processes.Process(target=job, args=(config, resume and str(resume), die_at))
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGKILL if die_at else 0)


def config_for(algo: str, folder: Path, loop: str | None = None, **changes: Any) -> dict[str, Any]:
    """Ticks at which nothing else happens lie between all intervals; three environments."""
    kind = default_kind(algo)
    family = loop_family(loop or algorithm_class(algo).loop)
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": TASKS[kind][0],
        "seed": 3,
        "device": "cpu",
        "eval_interval": 20,
        "eval_episodes": 1,
        "eval_max_steps": 40,
        "checkpoint_interval": 13,
        "log_interval": 7,
        "lr_schedule": {"kind": "cosine", "warmup": 0.1},
        "early_stopping": {"patience": 50},
        "tensorboard": False,
        "output_dir": str(folder),
        "algo_kwargs": {"hidden_sizes": [8, 8], "batch_size": 16},
    }
    if family.needs_data:
        values |= {"dataset": {"kind": "scripted", "name": TASKS[kind][1], "max_episodes": 8}}
    in_env = {"total_timesteps": 61, "num_envs": 3}
    values |= in_env if family.needs_env else {"total_updates": 61}
    values["algo_kwargs"] |= LOOP_KNOBS[family.name]
    if family.name == "offline_to_online":  # killed once in the pretraining and once after it
        values |= {"total_timesteps": 40}
        values["algo_kwargs"] |= {"offline_pretrain_updates": 21}
    if family.name == "imitation":
        ppo = {"rollout_length": 4, "batch_size": 6, "hidden_sizes": [8, 8]}
        moving = {"normalize_rewards": True, "normalize_observations": True}
        values["algo_kwargs"] |= {"demo_subsample": 3, "spectral_norm": True, "ppo": ppo | moving}
    if family.name == "on_policy":
        values["algo_kwargs"] |= {"rollout_length": 4, "batch_size": 6, "normalize_rewards": True}
    if algo == "fqe":
        values |= {"init_from": small_policy(kind)}
    values["algo_kwargs"] = known_knobs(algo, values["algo_kwargs"])
    return {**values, **changes}


def only_run(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def final_state(run_dir: Path) -> dict[str, Any]:
    newest = max((run_dir / "checkpoints").glob("[0-9]*"))
    _, parts = read_checkpoint(newest)
    parts["trainer"].pop("elapsed_seconds")
    return parts


def curve(run_dir: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in event.items() if not k.startswith("time/")} for event in events]


@pytest.mark.parametrize(("algo", "loop"), runs())
def test_killed_and_resumed_equals_uninterrupted(algo: str, loop: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(config_for(algo, whole, loop))
    run(config_for(algo, killed, loop), die_at=17)
    run_dir = only_run(killed)
    run(resume=run_dir, die_at=45)
    run(resume=run_dir)
    assert_same_state(final_state(only_run(whole)), final_state(run_dir))
    assert curve(only_run(whole)) == curve(run_dir), "the curves continue without a fold"


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_memory_is_resumed_exactly(algo: str, tmp_path: Path) -> None:
    """Killed in the middle of a rollout, of a sequence and of an episode."""
    knobs: dict[str, Any] = {"hidden_sizes": [8], "memory": "lstm", "memory_size": 4}
    knobs |= {"sequence_length": 4, "batch_size": 12}
    if algo == "ppo":
        knobs |= {"rollout_length": 8, "epochs": 2}
    else:
        knobs |= {"learning_starts": 30, "buffer_capacity": 40, "burn_in": 2}
    changes = {"env_id": "rl_training/CartPoleNoVelocity-v0", "algo_kwargs": knobs}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(config_for(algo, whole, **changes))
    run(config_for(algo, killed, **changes), die_at=45 if algo == "dqn" else 30)
    run_dir = only_run(killed)
    run(resume=run_dir)
    assert_same_state(final_state(only_run(whole)), final_state(run_dir))
    assert curve(only_run(whole)) == curve(run_dir)


def test_layers_that_policy_and_value_share_are_resumed_exactly(tmp_path: Path) -> None:
    knobs = {"hidden_sizes": [8], "shared_layers": True, "rollout_length": 8, "batch_size": 8}
    changes = {"env_id": CATCH_ID, "algo_kwargs": knobs}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(config_for("ppo", whole, **changes))
    run(config_for("ppo", killed, **changes), die_at=30)
    run_dir = only_run(killed)
    run(resume=run_dir)
    assert_same_state(final_state(only_run(whole)), final_state(run_dir))
    assert curve(only_run(whole)) == curve(run_dir)


def test_the_other_generator_resumes_exactly_too(tmp_path: Path) -> None:
    def config(folder: Path) -> dict[str, Any]:
        values = config_for("gail", folder)
        values["algo_kwargs"] |= {"generator": "sac", "ppo": {}, "sac": SMALL_SAC}
        values["algo_kwargs"] |= {"gradient_penalty": 10.0}
        return values

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(config(whole))
    run(config(killed), die_at=17)
    run_dir = only_run(killed)
    run(resume=run_dir, die_at=45)
    run(resume=run_dir)
    assert_same_state(final_state(only_run(whole)), final_state(run_dir))
    assert curve(only_run(whole)) == curve(run_dir)


def test_killed_before_the_first_checkpoint_starts_over(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(config_for("bc", whole))
    run(config_for("bc", killed), die_at=5)
    run_dir = only_run(killed)
    assert not list((run_dir).glob("checkpoints/*"))
    run(resume=run_dir)
    assert_same_state(final_state(only_run(whole)), final_state(run_dir))


def test_killed_at_any_time_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    """SIGKILL from outside, while checkpoints are written at every update."""
    config = config_for(
        "iql",
        tmp_path,
        total_updates=10_000,
        checkpoint_interval=1,
        eval_interval=0,
        early_stopping=None,
    )
    for delay in (0.0, 0.13):
        before = set(tmp_path.iterdir())
        process = processes.Process(target=job, args=(config, None, 0))
        process.start()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            new = set(tmp_path.iterdir()) - before
            if new and list(next(iter(new)).glob("checkpoints/[0-9]*")):
                break
            time.sleep(0.01)
        time.sleep(delay)
        process.kill()
        process.join()
        (run_dir,) = set(tmp_path.iterdir()) - before
        found = sorted((run_dir / "checkpoints").glob("[0-9]*"))
        assert found
        for path in found:
            info, parts = read_checkpoint(path)
            assert parts["trainer"]["progress"]["updates"] == info.tick


def test_evaluation_does_not_change_what_is_learned(tmp_path: Path) -> None:
    often, never = tmp_path / "often", tmp_path / "never"
    run(config_for("crr", often, eval_interval=3))
    quiet = {"eval_interval": 0, "early_stopping": None, "log_interval": 50, "final_eval": False}
    run(config_for("crr", never, **quiet))
    a, b = final_state(only_run(often)), final_state(only_run(never))
    assert_same_state(a["algorithm"], b["algorithm"])
    assert torch.equal(a["random"]["cpu"], b["random"]["cpu"])
