"""What macOS and Windows lack, taken away here: no machine of theirs runs these tests."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rl_training.envs import workers
from rl_training.envs.vector import SyncEnvs
from rl_training.experiment import files, lock
from rl_training.experiment.errors import ConfigError, RunInUseError
from rl_training.runtime.build import resolve_device
from rl_training.search.launch import kill


def locking(descriptor: int, mode: int, count: int) -> None:
    """As on Windows: the byte at the file's position, refused with a lack of permission."""
    assert (mode, count) == (2, 1)
    assert os.lseek(descriptor, 0, os.SEEK_CUR) > 1_000_000, "the text must stay readable"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None


def test_a_run_is_locked_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "POSIX", False)
    fake = SimpleNamespace(LK_NBLCK=2, locking=locking)
    monkeypatch.setattr(lock, "msvcrt", fake, raising=False)
    for name in ("pread", "pwrite", "O_NOFOLLOW"):
        monkeypatch.delattr(os, name)
    assert not lock.is_in_use(tmp_path)
    with lock.working_in(tmp_path):
        assert lock.is_in_use(tmp_path)
        with pytest.raises(RunInUseError, match=f"in use by process {os.getpid()}"):
            lock.working_in(tmp_path).__enter__()
    assert not lock.is_in_use(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with lock.working_in(tmp_path):
        pass


def test_no_folder_is_opened_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.flush_to_disk(tmp_path)
    monkeypatch.setattr(files, "os", SimpleNamespace(name="nt"))  # has no `open`
    files.flush_to_disk(tmp_path)


def test_workers_without_fork_and_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        for system in ("darwin", "win32"):
            elsewhere.setattr(sys, "platform", system)
            assert workers._start_method() is None
    monkeypatch.setenv("RL_TRAINING_START_METHOD", "thread")
    with pytest.raises(
        ConfigError, match="RL_TRAINING_START_METHOD: processes cannot be started by 'thread'"
    ):
        workers.AsyncEnvs("CartPole-v1", None, 1)
    monkeypatch.setenv("RL_TRAINING_START_METHOD", "spawn")
    monkeypatch.delattr(select, "poll")
    found = []
    for kind in (SyncEnvs, workers.AsyncEnvs):
        envs = kind("CartPole-v1", None, 1)
        try:
            envs.reset(np.array([True]), [3])
            found.append((envs.obs.copy(), *envs.step(np.array([1]))))
        finally:
            envs.close()
    for here, there in zip(*found, strict=True):
        np.testing.assert_array_equal(here, there)


def test_a_process_ends_without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        kill(process)
        assert process.returncode not in (None, 0)


def test_mps_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="float64, which"):
        resolve_device("mps")
