"""What every test shares: one cache of scripted data, one thread, the command line at hand."""

from __future__ import annotations

import os
import random
import resource
import runpy
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

QUICK = (
    "total_updates=20",
    "eval_episodes=1",
    "tensorboard=false",
    "algo_kwargs.hidden_sizes=[8]",
    "lr_schedule.kind=constant",
)
"""Overrides that make a packaged config a run of a fraction of a second."""


PATIENCE_S = 300.0
"""Seconds that a test waits for another process before it fails. Machines can be busy."""

LONG = (
    "test_learning.py",
    "test_readme.py",
    "test_examples.py",
    "test_knobs.py",
    "test_every_algorithm.py",
)
"""Files whose tests take long. They run first, so that no process is left with one at the end."""


def pytest_configure() -> None:
    """Shells start what runs in the background deaf to Ctrl-C; tests of it need Python's way."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


@contextmanager
def without_branches() -> Iterator[None]:
    """Updates on the CPU as they are executed on other devices."""
    asking = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("rl_training.") and "can_branch_on" in vars(module)
    ]
    assert len(asking) > 3
    with pytest.MonkeyPatch.context() as patch:
        for module in asking:
            patch.setattr(module, "can_branch_on", lambda tensor: False)
        yield


@pytest.fixture
def no_branches() -> Iterator[None]:
    with without_branches():
        yield


@pytest.fixture
def free_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """`free_memory(10**9)`: as many bytes are free on every device, or nobody knows how many."""
    from rl_training.experiment import memory

    def set_free(amount: int | None) -> None:
        monkeypatch.setattr(memory, "available_memory", lambda device: amount)

    return set_free


@pytest.fixture
def stacking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """`stacking()`: from here on networks are stacked as on a GPU."""
    from rl_training.models import stacked

    return lambda: monkeypatch.setattr(stacked, "stacking_pays", lambda x: True)


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of random numbers that end within a short run."""
    from rl_training.runtime import randomness

    monkeypatch.setattr(randomness, "BLOCK", 10)


@pytest.fixture
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is printed at every step, where it is not shown by a bar."""
    from rl_training.experiment.console import ProgressConsole

    monkeypatch.setattr(ProgressConsole, "PLAIN_LINE_SECONDS", 0.0)


@contextmanager
def failing_saves(
    error: Exception, when: Callable[[Path, int], bool] = lambda folder, tick: True
) -> Iterator[list[int]]:
    """Saving raises `error` where `when(folder, tick)` holds; yields the ticks of the others."""
    from rl_training.experiment.checkpoint_store import CheckpointStore

    save, saved = CheckpointStore.save, []

    def failing(store: CheckpointStore, tick: int, *rest: Any) -> Any:
        if when(store.folder, tick):
            raise error
        saved.append(tick)
        return save(store, tick, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "save", failing)
        yield saved


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """No file of this process can grow beyond `limit` bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """`full_disk()`: from here on the system reports 100 free bytes on every disk."""
    full = shutil.disk_usage("/")._replace(free=100)
    return lambda: monkeypatch.setattr(shutil, "disk_usage", lambda path: full)


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems where two folders cannot change their names in one step."""
    from rl_training.experiment import files

    monkeypatch.setattr(files, "exchange", lambda one, other: False)


@pytest.fixture
def own_names() -> Iterator[None]:
    """Algorithms and loops that a test registers are forgotten after it."""
    from rl_training.algorithms.loops import LOOPS
    from rl_training.experiment.registry import TARGETS

    algorithms, loops = dict(TARGETS), dict(LOOPS)
    yield
    TARGETS.clear()
    TARGETS.update(algorithms)
    LOOPS.clear()
    LOOPS.update(loops)


@pytest.fixture
def run_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """`run_script(path, "--seed", 0)`: a program in this process; returns what it prints."""

    def run(path: Path, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="session", autouse=True)
def _one_cache_and_one_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # the cache writes atomically, so workers share it
        folder = folder.parent
    from rl_training.envs import repeatability

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_CACHE", str(folder / "scripted-data"))
        patch.setattr(os, "fsync", lambda descriptor: None)  # see tests/preload.py
        # on a busy machine even a quick environment is tried for longer than two seconds
        patch.setattr(repeatability, "SECONDS", PATIENCE_S)
        torch.set_num_threads(1)
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """What a test draws depends neither on the tests before it nor on chance."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


Command = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Command:
    """`cli("train", "bc/pendulum", ...)`: the installed command, in this process."""
    from rl_training.cli import main

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments)])
        captured = capsys.readouterr()
        return Outcome(int(end.value.code or 0), captured.out, captured.err)

    return run


def _train(config: str, folder: Path, *overrides: str) -> Path:
    from rl_training.api.managed import ManagedAlgorithm
    from rl_training.experiment.config import load_config

    values = [*QUICK, *overrides, f"output_dir={folder}"]
    return ManagedAlgorithm(load_config(config, values)).learn(progress=False).run_dir


@pytest.fixture(scope="session")
def _finished_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    often = ("checkpoint_interval=5", "eval_interval=10", "keep_last=4", "log_interval=5")
    return {algo: _train(f"{algo}/pendulum", folder, *often) for algo in ("bc", "awr")}


@pytest.fixture
def bc_run(_finished_runs: dict[str, Path], tmp_path: Path) -> Path:
    """A finished BC run of 20 updates with checkpoints at 5, 10, 15 and 20, to be spoilt."""
    return Path(shutil.copytree(_finished_runs["bc"], tmp_path / "bc-run"))


@pytest.fixture
def awr_run(_finished_runs: dict[str, Path], tmp_path: Path) -> Path:
    """The same of AWR."""
    return Path(shutil.copytree(_finished_runs["awr"], tmp_path / "awr-run"))
