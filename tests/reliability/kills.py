"""Kill runs at random, resume them, and compare every bit with a run that nothing disturbed.

    python -m tests.reliability.kills --count 300
    python -m tests.reliability.kills --count 20 --only 'ppo*' --seed 7

A run gets SIGKILL, SIGTERM, SIGINT or SIGHUP, alone or with its whole process group, at a random
time, or SIGKILL at a random one of the operations on files of its run folder; once to three times
before it may end. Then all components of its last checkpoint, its metrics and its result must equal
those of the undisturbed run. Exit code 1 if one differs without saying so.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rl_training.experiment.errors import RLTrainingError
from rl_training.experiment.registry import algorithm_names

from ..contract.small_runs import LOOP_KNOBS, SMALL_SAC
from ..contract.test_updates import assert_same_state
from ..processes import processes
from ..runtime.test_resume import config_for, curve, final_state

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
ABORT_S = 300.0
"""A process that lives longer is a hang."""
NOT_COMPARED = {"wall_seconds", "profile", "hardware", "versions", "warnings"}
"""Facts of a result about the process that wrote it; its warnings are those of that process."""


def cases() -> dict[str, dict[str, Any]]:
    """Configurations by name: every algorithm, and what surrounds one."""
    found = {algo: config_for(algo, Path("runs")) for algo in algorithm_names()}
    online = {"early_stopping": None, "lr_schedule": {"kind": "constant"}}
    found["gail-sac"] = config_for("gail", Path("runs"))
    found["gail-sac"]["algo_kwargs"] |= {"generator": "sac", "ppo": {}, "sac": SMALL_SAC}
    for name, changes in {
        "sac-mujoco": {"algo": "sac", "env_id": "Hopper-v5"},
        "ppo-mujoco-async": {"algo": "ppo", "env_id": "HalfCheetah-v5", "vectorization": "async"},
        "dqn-box2d": {"algo": "dqn", "env_id": "LunarLander-v3"},
        "ppo-box2d-async": {"algo": "ppo", "env_id": "LunarLander-v3", "vectorization": "async"},
        "sac-bipedal": {"algo": "sac", "env_id": "BipedalWalker-v3", "num_envs": 1},
        "sac-async": {"algo": "sac", "vectorization": "async"},
    }.items():
        found[name] = config_for(changes["algo"], Path("runs")) | online | changes
    pixels = {"env_id": "rl_training/Atari-v0", "env_kwargs": {"game": "breakout"}, "num_envs": 2}
    found["dqn-atari"] = config_for("dqn", Path("runs")) | online | pixels
    found["dqn-atari"]["env_kwargs"] |= {"max_episode_steps": 40}
    found["dqn-atari"]["train_env_kwargs"] = {"life_loss": True}
    replay = LOOP_KNOBS["off_policy"] | {"hidden_sizes": [8]}
    found["dqn-prioritised"] = config_for("dqn", Path("runs"))
    found["dqn-prioritised"]["algo_kwargs"] = replay | {"prioritized": True, "n_step": 3}
    for algo in ("awr", "iql", "bc"):
        found[f"{algo}-seeds"] = config_for(algo, Path("runs")) | {"seeds": [3, 5, 9]}
    # stops in the middle: nothing improves by that much
    stops = {"early_stopping": {"patience": 1, "min_delta": 1e6}, "eval_interval": 10}
    for algo in ("crr", "sac", "ppo"):
        found[f"{algo}-stops"] = config_for(algo, Path("runs")) | stops
    found["awr-seeds-stops"] = config_for("awr", Path("runs")) | stops | {"seeds": [3, 5]}
    return found


# --- the process that is killed ---------------------------------------------------------------


def _command(arguments: list[str], folder: str, die_at: int, log: str) -> None:
    """The command line in a process and a session of its own, in `folder`.

    Dies at the `die_at`-th operation on files under the folder, where that is not 0; writes
    how many there were beside the log.
    """
    os.setsid()
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    own, seen = os.getpid(), [0]
    prefix = os.path.join(folder, "runs")

    def count(event: str, details: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir"):
            return
        if os.getpid() != own or not details or not isinstance(details[0], (str, bytes, Path)):
            return
        path = os.path.abspath(os.fsdecode(details[0]))
        if path.startswith(prefix):
            seen[0] += 1
            if seen[0] == die_at:
                os.kill(own, signal.SIGKILL)

    sys.addaudithook(count)
    import torch

    from rl_training.cli import main

    torch.set_num_threads(1)
    sys.argv = ["rl-training", *arguments]
    try:
        main()
    finally:
        Path(f"{log}.operations").write_text(str(seen[0]), encoding="utf-8")


@dataclass(frozen=True)
class Kill:
    """How one process is ended."""

    signal: str
    after: float = 0.0
    """Seconds from its start..."""
    operation: int = 0
    """... or the operation on a file at which it dies."""
    group: bool = False

    def __str__(self) -> str:
        when = f"operation {self.operation}" if self.operation else f"{self.after:.2f} s"
        return f"{self.signal}{' to the group' if self.group else ''} at {when}"


class HarnessError(AssertionError):
    """A trial that went wrong."""


def execute(arguments: list[str], folder: Path, log: Path, kill: Kill | None) -> tuple[int, float]:
    """Exit code and seconds, from the signal if one was sent in time."""
    process = processes.Process(
        target=_command,
        args=(arguments, str(folder), kill.operation if kill else 0, str(log)),
    )
    began = time.monotonic()
    process.start()
    assert process.pid is not None
    if kill and not kill.operation:
        process.join(kill.after)
        if process.is_alive():
            began = time.monotonic()
            number = signal.Signals[kill.signal]
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if kill.group else os.kill)(process.pid, number)
    process.join(ABORT_S)
    seconds = time.monotonic() - began
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        raise HarnessError(f"alive {ABORT_S:.0f} s after {kill or arguments}")
    _await_workers(process.pid)
    assert process.exitcode is not None
    return process.exitcode, seconds


def _await_workers(group: int) -> None:
    """Worker processes end with their parent."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    raise HarnessError("worker processes were left behind")


# --- one trial --------------------------------------------------------------------------------


@dataclass
class Reference:
    """The undisturbed run."""

    run_dir: Path
    seconds: float
    operations: int


@dataclass
class Trial:
    """What became of one disturbed run."""

    case: str
    kills: list[str] = field(default_factory=list)
    outcome: str = ""
    problem: str = ""
    slowest_end: float = 0.0
    """Seconds from a SIGTERM, SIGINT or SIGHUP to the end of the process."""


class Harness:
    """Runs trials below a folder of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.configs = cases()
        self.references: dict[str, Reference] = {}
        self.number = 0

    def _place(self, case: str) -> tuple[Path, Path]:
        self.number += 1
        place = self.folder / f"{self.number:04d}-{case}"
        place.mkdir()
        (place / "log.txt").touch()
        (place / "config.yaml").write_text(yaml.safe_dump(self.configs[case]), encoding="utf-8")
        return place, place / "log.txt"

    def reference(self, case: str) -> Reference:
        if case not in self.references:
            place, log = self._place(case)
            code, seconds = execute(["train", "config.yaml", "-q"], place, log, None)
            if code != 0:
                raise HarnessError(f"{case} ends with {code} undisturbed:\n{log.read_text()}")
            (run_dir,) = (place / "runs").iterdir()
            operations = int(Path(f"{log}.operations").read_text())
            self.references[case] = Reference(run_dir, seconds, operations)
        return self.references[case]

    def kill_for(self, case: str) -> Kill:
        reference = self.reference(case)
        if self.random.random() < 0.35:
            return Kill("SIGKILL", operation=self.random.randint(1, reference.operations))
        chosen = self.random.choice(SIGNALS)
        after = self.random.uniform(0.0, reference.seconds)
        return Kill(chosen, after, group=self.random.random() < 0.4)

    def trial(self, case: str, kills: Sequence[Kill] | None = None) -> Trial:
        """One run, killed as given or at random, resumed and compared."""
        reference, trial = self.reference(case), Trial(case)
        if kills is None:
            kills = [self.kill_for(case) for _ in range(self.random.choice((1, 1, 2, 3)))]
        place, log = self._place(case)
        try:
            trial.outcome = self._disturb(reference, trial, list(kills), place, log)
        except (HarnessError, AssertionError, OSError, RLTrainingError) as error:
            trial.outcome, trial.problem = "broken", f"{error} (kept in {place})"
        else:
            shutil.rmtree(place)
        return trial

    def _disturb(
        self, reference: Reference, trial: Trial, kills: list[Kill], place: Path, log: Path
    ) -> str:
        runs = place / "runs"
        while True:
            found = list(runs.iterdir()) if runs.is_dir() else []
            if len(found) > 1:
                raise HarnessError(f"{len(found)} run folders")
            begun = bool(found) and (found[0] / "config.yaml").is_file()
            if found and not begun:
                shutil.rmtree(found[0])  # killed before the run was one; a new one is started
                trial.outcome = "before the run"
            command = ["resume", str(found[0])] if begun else ["train", "config.yaml"]
            kill = kills.pop(0) if kills else None
            code, seconds = execute([*command, "-q"], place, log, kill)
            text = log.read_text(encoding="utf-8", errors="replace")
            if "Traceback" in text and not _only_of_workers(text):
                raise HarnessError(f"a traceback after {kill}:\n{text[-2000:]}")
            if kill is None:
                if code != 0:
                    raise HarnessError(f"{command[0]} ended with {code}:\n{text[-2000:]}")
                break
            if code != 0:
                trial.kills.append(str(kill))
                if kill.signal != "SIGKILL":
                    trial.slowest_end = max(trial.slowest_end, seconds)
        (run_dir,) = runs.iterdir()
        return compare(reference.run_dir, run_dir)


def _only_of_workers(text: str) -> bool:
    """Whether tracebacks are only those of environment workers whose parent was killed."""
    parts = text.split("Traceback")[1:]
    ends = ("EOFError", "BrokenPipeError", "ConnectionResetError")
    return all(any(end in part for end in ends) for part in parts)


def compare(whole: Path, disturbed: Path) -> str:
    """ "exact", or "declared inexact" where the result says so; raises AssertionError otherwise."""
    parts = [path.name for path in whole.glob("seed-*")] or ["."]
    try:
        for part in parts:
            assert_same_state(final_state(whole / part), final_state(disturbed / part), part)
            assert curve(whole / part) == curve(disturbed / part), f"metrics of {part} differ"
        # only results say whether a resume was exact, so only they may differ in it
        assert _result(whole) == _result(disturbed), "results differ"
    except AssertionError:
        told = json.loads((disturbed / "result.json").read_text())
        if told.get("exact") is False:
            return "declared inexact"
        raise
    return "exact"


def _result(run_dir: Path) -> Any:
    return _without(json.loads((run_dir / "result.json").read_text()))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(part) for key, part in value.items() if key not in NOT_COMPARED}
    return value


# --- the command ------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reliability.kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=300, help="kills (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the kills (%(default)s)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases that match")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after so many")
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    os.environ.setdefault("RL_TRAINING_CACHE", str(folder / "cache"))
    harness = Harness(folder, chosen.seed)
    names = fnmatch.filter(harness.configs, chosen.only)
    harness.random.shuffle(names)  # a short run meets other cases with another seed
    if not names:
        parser.error(f"--only: no case matches; known are {', '.join(harness.configs)}")
    began, trials = time.monotonic(), list[Trial]()
    kills = 0
    while kills < chosen.count and time.monotonic() - began < chosen.minutes * 60:
        trial = harness.trial(names[len(trials) % len(names)])
        trials.append(trial)
        kills += len(trial.kills)
        print(f"{kills:4d} {trial.case:18} {trial.outcome:16} {'; '.join(trial.kills)}", flush=True)
        if trial.problem:
            print(f"     {trial.problem}", flush=True)
    counts = Counter(trial.outcome for trial in trials)
    slowest = max((trial.slowest_end for trial in trials), default=0.0)
    print(
        f"{kills} kills in {len(trials)} runs of {len(names)} kinds: "
        + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        + f"; the slowest end after a signal took {slowest:.1f} s"
    )
    if not counts["broken"]:
        shutil.rmtree(folder)
    return 1 if counts["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
