"""Studies as users run them: a killed worker, a tuning, what a sweep adds, seeds at once."""

from __future__ import annotations

import csv
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.process import Request, answer_job
from rl_training import ManagedAlgorithm
from rl_training.experiment.config import load_config
from rl_training.search.study import TABLE_FILE
from rl_training.search.tuning import JOURNAL_FILE

importlib.import_module("rl_training.search.tune")  # a part of what is measured

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 600.0
MOST_TRIES = 5


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rl_training", *arguments]


def cpu_seconds() -> float:
    """Of all processes that this one started and that have ended, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def started(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is terminated, and waited for, when the context ends early."""
    with log.open("ab") as output:
        process = subprocess.Popen(command(*arguments), stdout=output, stderr=output)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()


def finished(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.wait() != 0:
        raise RuntimeError(f"exit code {process.returncode}: {log.read_text()[-2000:]}")


# --- a killed worker -----------------------------------------------------------------------------


def kill(request: Request) -> dict[str, Any]:
    """Two workers on one study; the one that trains trial 0 is killed in the middle of it."""
    for attempt in range(MOST_TRIES):
        folder = request.scratch / f"study-{attempt}"
        if (found := kill_once(request, folder)) is not None:
            print(f"taken over, parameters equal: {found['equal']}")
            return {**found, "attempts": attempt + 1}
    raise RuntimeError("the trial always ended before it could be killed")


def kill_once(request: Request, folder: Path) -> dict[str, Any] | None:
    """None if the trial had ended before the kill."""
    spec = request.spec
    keys = [f"{key}={json.dumps(value)}" for key, value in spec["keys"].items()]
    arguments = ["tune", spec["config"], *keys, "--trials", str(spec["trials"]), "--seeds", "1"]
    arguments += ["--test-seeds", "1", "--workers", "1", "--threads", "1", "--out", str(folder)]
    run = folder / "runs" / "trial-0000-s0"
    interval = int(spec["keys"]["checkpoint_interval"])
    tick = interval * (1 + request.seed % int(spec["kill_after"]))
    log = folder.with_suffix(".log")
    with started(arguments, log) as one, started(arguments, log) as two:
        wait_for(lambda: newest(run) >= tick or (run / "result.json").exists())
        worker, trainer = (_holder(path) for path in (folder / "trials" / "0000", run))
        if worker not in (one.pid, two.pid) or trainer is None:
            return None
        os.kill(worker, signal.SIGKILL)
        if request.seed % 2:  # otherwise the run is left to notice that its worker is gone
            os.kill(trainer, signal.SIGKILL)
        if (run / "checkpoints" / spec["last"]).exists():
            return None
        survivor = two if worker == one.pid else one
        finished(survivor, log)
    with (folder / TABLE_FILE).open() as file:
        rows = list(csv.DictReader(file))
    whole = ManagedAlgorithm(
        load_config(
            str(folder / "configs" / "trial-0000-s0.yaml"), [f"output_dir={folder}", "run_name=w"]
        )
    )
    whole.learn(progress=False)
    states = [
        torch.load(path / "checkpoints" / spec["last"] / "algorithm.pt", weights_only=True)
        for path in (run, folder / "w")
    ]
    return {
        "ended": sum(row["state"] == "finished" for row in rows),
        "trials": len(rows),
        "open": open_trials(folder),
        "left_running": len(processes_of(folder)),
        "taken_over": "trial 0: taken over" in log.read_text(),
        "equal": is_equal(*states),
        "killed": ["worker", "worker and trainer"][request.seed % 2],
        "after_updates": tick,
    }


def newest(run: Path) -> int:
    """The tick of a run's newest checkpoint; 0 without any."""
    found = (path.parent.name for path in run.glob("checkpoints/*/manifest.json"))
    return max((int(name) for name in found if name.isdigit()), default=0)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the study did not get so far")
        time.sleep(POLL_SECONDS)


def _holder(folder: Path) -> int | None:
    """The process that holds the lock of a folder."""
    try:
        return int((folder / ".lock").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def open_trials(folder: Path) -> int:
    """Trials of the journal that have not ended."""
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE)))
    study = optuna.load_study(study_name="tune", storage=storage)
    return sum(not trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def processes_of(folder: Path) -> list[int]:
    """Processes that have this folder among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended
        if str(folder) in arguments:
            found.append(int(path.parent.name))
    return found


def is_equal(one: Any, other: Any) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other)


# --- a whole tuning ------------------------------------------------------------------------------


def tune(request: Request) -> dict[str, Any]:
    """The command of the README; an interrupted study is kept and gone on with."""
    spec, folder = request.spec, Path(request.inputs["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    spent, log = folder / "cpu.json", folder / "log.txt"
    study = folder / "study"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        with started(["tune", *spec["arguments"], "--out", str(study)], log) as process:
            finished(process, log)
    finally:
        pieces = json.loads(spent.read_text()) if spent.exists() else []
        pieces.append([time.monotonic() - began, cpu_seconds()])
        spent.write_text(json.dumps(pieces))
    verdict = json.loads((study / "verdict.json").read_text())
    with (study / TABLE_FILE).open() as file:
        states = [row["state"] for row in csv.DictReader(file)]
    parts = minutes_by_part(study)
    shutil.rmtree(folder)
    winner, defaults = (verdict[f"{who}_scores"]["iqm"] for who in ("winner", "defaults"))
    interval = defaults["high"] - defaults["low"]
    minutes = sum(cpu for _, cpu in pieces) / 60.0
    print(f"{verdict['verdict']}; {minutes:.1f} core-minutes")
    return {
        "core_minutes": minutes,
        "wall_minutes": sum(wall for wall, _ in pieces) / 60.0,
        "pieces": len(pieces),
        "trials": len(states),
        "pruned": states.count("pruned"),
        "failed": states.count("failed"),
        "parts": parts,
        "winner": winner,
        "defaults": defaults,
        "margin": winner["value"] - (defaults["value"] - interval),
        "verdict": verdict["verdict"],
        "values": verdict["values"],
    }


def minutes_by_part(study: Path) -> dict[str, float]:
    """Of the trials and of the test, by the profiles of their runs."""
    found: dict[str, float] = {}
    for path in [*study.glob("runs/*/result.json"), *study.glob("test-*/runs/*/result.json")]:
        result = json.loads(path.read_text())
        parts = result["profile"] or {}
        rest = result["wall_seconds"] - sum(parts.values())
        for name, seconds in {**parts, "everything else": rest}.items():
            found[name] = found.get(name, 0.0) + seconds / 60.0
    return dict(sorted(found.items(), key=lambda part: -part[1]))


# --- what a sweep adds ---------------------------------------------------------------------------


def overhead(request: Request) -> dict[str, Any]:
    """A sweep and the same runs started by hand, side by side, so that both see the same load."""
    spec, folder = request.spec, request.scratch
    axis, values = spec["axis"]
    common = [spec["config"], *(f"{key}={json.dumps(v)}" for key, v in spec["keys"].items())]
    sweep = ["sweep", *common, f"{axis}={','.join(map(str, values))}", "--workers", "1"]
    arms = {
        "sweep": [[*sweep, "--threads", "1", "--out", str(folder / "study")]],
        "hand": [
            ["train", *common, f"{axis}={v}", f"output_dir={folder / 'runs'}", "--quiet"]
            for v in values
        ],
    }
    measured = {name: _Arm(commands, folder / f"{name}.log") for name, commands in arms.items()}
    _wait_for_all(measured.values())
    hand, swept = measured["hand"], measured["sweep"]
    print(f"{swept.wall / hand.wall:.3f} of the wall time, {swept.cpu / hand.cpu:.3f} of the CPU")
    return {
        "runs": len(values),
        **{f"{name}_wall": arm.wall for name, arm in measured.items()},
        **{f"{name}_cpu": arm.cpu for name, arm in measured.items()},
        "wall_ratio": swept.wall / hand.wall,
        "cpu_ratio": swept.cpu / hand.cpu,
        "load": os.getloadavg()[0],
    }


class _Arm:
    """Commands one after the other, and what they took."""

    def __init__(self, commands: list[list[str]], log: Path) -> None:
        self._left, self._log = commands, log
        self._began = time.monotonic()
        self.wall = self.cpu = 0.0
        self._process: int | None = None

    def is_busy(self) -> bool:
        if self._process is not None:
            done, status, used = os.wait4(self._process, os.WNOHANG)
            if not done:
                return True
            if status:
                raise RuntimeError(f"a command failed: {self._log.read_text()[-2000:]}")
            self._process = None
            self.wall = time.monotonic() - self._began
            self.cpu += used.ru_utime + used.ru_stime  # with the processes it waited for
        if self._left:
            with self._log.open("ab") as output:
                self._process = subprocess.Popen(
                    command(*self._left.pop(0)), stdout=output, stderr=output
                ).pid
        return self._process is not None


def _wait_for_all(arms: Iterable[_Arm]) -> None:
    busy = list(arms)
    while busy:
        busy = [arm for arm in busy if arm.is_busy()]  # starts the next command of each
        time.sleep(POLL_SECONDS)


def seeds(request: Request) -> dict[str, Any]:
    """Seeds of one config in one batched run, and then as many processes at once."""
    spec, folder = request.spec, request.scratch
    keys = [f"{key}={json.dumps(value)}" for key, value in spec["keys"].items()]
    train = ["train", spec["config"], *keys, f"output_dir={folder / 'runs'}", "--quiet"]
    count = int(spec["seeds"])
    ways = {
        "batched": [[*train, "--seeds", str(count)]],
        "processes": [[*train, "--seed", str(seed)] for seed in range(count)],
    }
    found: dict[str, float] = {}
    for name, commands in ways.items():
        arms = [_Arm([one], folder / f"{name}-{i}.log") for i, one in enumerate(commands)]
        _wait_for_all(arms)
        found[f"{name}_wall"] = max(arm.wall for arm in arms)
        found[f"{name}_cpu"] = sum(arm.cpu for arm in arms)
    ratio = found["processes_wall"] / found["batched_wall"]
    print(
        f"{count} seeds: {found['batched_wall']:.0f} s in one run, {ratio:.1f} times by processes"
    )
    return {**found, "ratio": ratio, "load": os.getloadavg()[0]}


def work(request: Request) -> dict[str, Any]:
    parts = {"kill": kill, "tune": tune, "overhead": overhead, "seeds": seeds}
    return parts[request.spec["what"]](request)


if __name__ == "__main__":
    answer_job(work, ("rl-training", "optuna", "torch", "numpy", "gymnasium"))
