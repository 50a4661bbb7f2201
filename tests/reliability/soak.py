"""Work for a long time in one process and watch memory, threads and open files.

    python -m tests.reliability.soak --minutes 10

Half the time goes to many short runs (train, load, predict, evaluate, resume, refuse), half to one
long DQN that saves often. Exit code 1 if memory, threads, open files, processes or checkpoints on
the disk grow after the first tenth.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training import Callback, ManagedAlgorithm, load
from rl_training.experiment.errors import RLTrainingError
from rl_training.experiment.registry import algorithm_names
from rl_training.runtime.callbacks import StepEvent

from ..contract.small_runs import small_config

GROWTH_MB = 30.0
"""Resident memory may differ by this much between the first tenth and the end."""


@dataclass(frozen=True)
class Usage:
    """What this process holds."""

    seconds: float
    resident_mb: float
    threads: int
    files: int
    children: int

    @classmethod
    def now(cls, began: float) -> Usage:
        gc.collect()
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
        tasks = Path("/proc/self/task")
        children = sum(len((task / "children").read_text().split()) for task in tasks.iterdir())
        return cls(
            time.monotonic() - began,
            resident,
            threading.active_count(),
            len(list(Path("/proc/self/fd").iterdir())),
            children,
        )


class Stop(Callback):
    """Ends a run at a time."""

    def __init__(self, deadline: float, watch: Callable[[], None]) -> None:
        self.deadline, self.watch = deadline, watch

    def on_step(self, event: StepEvent) -> None:
        self.watch()
        if time.monotonic() > self.deadline:
            event.request_stop("the soak is over")


def short_runs(folder: Path, deadline: float, watch: Callable[[], None]) -> dict[str, int]:
    """Everything that a session of work does, over all algorithms, again and again."""
    done = dict.fromkeys(("runs", "loads", "evaluations", "refusals"), 0)
    names = algorithm_names()
    while time.monotonic() < deadline:
        algo = names[done["runs"] % len(names)]
        changes: dict[str, Any] = {"output_dir": str(folder), "checkpoint_interval": 20}
        if done["runs"] % 5 == 0 and algo in ("sac", "ppo", "dqn"):
            changes |= {"vectorization": "async", "num_envs": 2}
        config = small_config(algo, seed=done["runs"], **changes)
        run_dir = ManagedAlgorithm(config).learn(progress=False).run_dir
        done["runs"] += 1
        agent = load(run_dir, device="cpu")
        spaces = agent.algorithm.spaces
        agent.predict(np.zeros((3, *spaces.obs_shape), spaces.obs_dtype))
        agent.evaluate(1)
        agent.save(folder / "agent.ckpt")
        done["loads"] += 1
        done["evaluations"] += 1
        for mistake in ({"seed": -1}, {"algo_kwargs": {"no_such": 1}}):
            try:
                ManagedAlgorithm(config, **mistake)
            except RLTrainingError:
                done["refusals"] += 1
        shutil.rmtree(folder)
        folder.mkdir()
        watch()
    return done


def long_run(folder: Path, deadline: float, watch: Callable[[], None]) -> dict[str, int]:
    """A DQN whose replay fills early and whose checkpoints come and go."""
    agent = ManagedAlgorithm(
        small_config(
            "dqn",
            total_timesteps=100_000_000,
            checkpoint_interval=2_000,
            eval_interval=10_000,
            log_interval=1_000,
            keep_last=3,
            output_dir=str(folder),
            tensorboard=True,
            engine="eager",
            algo_kwargs={"prioritized": True, "n_step": 3, "buffer_capacity": 20_000},
        )
    )
    result = agent.learn(progress=False, callbacks=[Stop(deadline, watch)])
    kept = len(list((result.run_dir / "checkpoints").iterdir()))
    return {"steps": result.env_steps, "checkpoints kept": kept}


def growth(usages: Sequence[Usage]) -> list[str]:
    """What is larger at the end than after the first tenth, when everything was loaded."""
    settled = usages[max(1, len(usages) // 10) :]
    first, last = settled[: max(1, len(settled) // 5)], settled[-max(1, len(settled) // 5) :]

    def middle(part: Sequence[Usage], name: str) -> float:
        return float(np.median([getattr(usage, name) for usage in part]))

    found = []
    for name, allowed in (
        ("resident_mb", GROWTH_MB),
        ("threads", 0),
        ("files", 0),
        ("children", 0),
    ):
        before, after = middle(first, name), middle(last, name)
        if after > before + allowed:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return found


def soak(
    name: str, work: Callable[[Path, float, Callable[[], None]], dict[str, int]], minutes: float
) -> list[str]:
    """One kind of work for some minutes; what grew meanwhile."""
    began = time.monotonic()
    usages: list[Usage] = []
    every = minutes * 60 / 200

    def watch() -> None:
        if not usages or time.monotonic() - began > usages[-1].seconds + every:
            usages.append(Usage.now(began))

    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        used = resource.getrusage(resource.RUSAGE_SELF)
        done = work(Path(folder), began + minutes * 60, watch)
        cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime - used.ru_utime
    usages.append(Usage.now(began))
    found = growth(usages)
    early, end = usages[max(1, len(usages) // 10)], usages[-1]
    print(
        f"{name}: {end.seconds / 60:.1f} minutes ({cpu / 60:.1f} of computing), "
        + ", ".join(f"{count:,} {what}" for what, count in done.items())
        + f"; memory {early.resident_mb:.0f} -> {end.resident_mb:.0f} MB, "
        f"threads {early.threads} -> {end.threads}, files {early.files} -> {end.files}, "
        f"processes {early.children} -> {end.children}",
        flush=True,
    )
    return [f"{name}: {sentence}" for sentence in found]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reliability.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=600.0, help="in all (%(default)g)")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    problems = []
    with tempfile.TemporaryDirectory(prefix="soak-cache-") as cache:
        os.environ.setdefault("RL_TRAINING_CACHE", cache)
        for name, work in (("short runs", short_runs), ("a long DQN", long_run)):
            problems += soak(name, work, chosen.minutes / 2)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
