"""The memory that a process may take, read from a made-up /proc and control groups."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rl_training.experiment.cores import usable_cores
from rl_training.experiment.errors import ConfigError, DataError
from rl_training.experiment.memory import Claim, host_memory, require_data_memory, require_memory

GB = 10**9
CPU = torch.device("cpu")


class FakeProc:
    """A /proc with 8 GB available, nothing else unless it is written."""

    def __init__(self, root: Path) -> None:
        self.root, self.mount = root / "proc", root / "sys fs" / "cgroup"
        self.write("meminfo", f"MemTotal: 9 kB\nMemAvailable: {8 * GB // 1024} kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def in_group(self, version: int, path: str, root: str = "/") -> None:
        """Put the process into the group `path` of a hierarchy mounted from `root` on."""
        mount = str(self.mount).replace(" ", "\\040")
        if version == 2:
            self.write("self/cgroup", f"0::{path}\n")
            line = f"30 24 0:26 {root} {mount} rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
        else:
            self.write("self/cgroup", f"12:cpu,cpuacct:/x\n4:memory:{path}\n0::/x\n")
            line = (
                f"29 24 0:25 {root} {mount}-cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                f"30 24 0:26 {root} {mount} rw shared:4 - cgroup cgroup rw,memory\n"
            )
        self.write("self/mountinfo", f"22 1 8:1 / / rw - ext4 /dev/sda rw\nodd line\n{line}")

    def group(self, path: str, **files: object) -> None:
        folder = self.mount / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / f"memory.{name}").write_text(f"{value}\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def about(gigabytes: float) -> object:
    return pytest.approx(gigabytes * GB, abs=2048)


def test_the_machine_alone(proc: FakeProc, tmp_path: Path) -> None:
    assert host_memory(proc.root) == about(8)
    assert host_memory(tmp_path / "nothing") is None
    proc.write("meminfo", "damaged")
    assert host_memory(proc.root) is None


def test_groups_of_version_2_with_their_parents(proc: FakeProc) -> None:
    proc.in_group(2, "/slurm/job_7/task")
    proc.group("slurm/job_7/task", max="max", high="max", current=GB)
    assert host_memory(proc.root) == about(8)
    proc.group("slurm/job_7", max=3 * GB, current=GB)
    assert host_memory(proc.root) == about(2)
    # cached files are given back when memory is needed
    proc.group("slurm/job_7", stat=f"anon 5\nfile {GB}\ninactive_file {GB // 2}\nslab 3")
    assert host_memory(proc.root) == about(2.5)
    proc.group("slurm", max=4 * GB, high=2 * GB, current=GB)
    assert host_memory(proc.root) == about(1)
    proc.group("slurm/job_7/task", max=GB // 4, current=GB)
    assert host_memory(proc.root) == 0


def test_groups_of_version_1(proc: FakeProc) -> None:
    proc.in_group(1, "/docker/a1")
    proc.group("docker/a1", limit_in_bytes=2 * GB, usage_in_bytes=GB)
    assert host_memory(proc.root) == about(1)
    proc.group("docker/a1", stat=f"inactive_file 5\ntotal_inactive_file {GB // 4}\n")
    assert host_memory(proc.root) == about(1.25)
    proc.group("docker/a1", limit_in_bytes=9223372036854771712)  # no limit
    assert host_memory(proc.root) == about(8)


def test_a_container_that_sees_its_group_as_the_root(proc: FakeProc) -> None:
    for version, path, root in ((2, "/", "/"), (2, "/docker/a1", "/docker/a1"), (2, "/../x", "/")):
        proc.in_group(version, path, root)
        proc.group("", max=2 * GB, current=GB)
        assert host_memory(proc.root) == about(1), (path, root)
    proc.in_group(1, "/docker/a1", "/")  # named from outside, mounted without its parents
    proc.group("", limit_in_bytes=GB, usage_in_bytes=GB // 2)
    assert host_memory(proc.root) == about(0.5)


def test_cores_that_a_container_grants(proc: FakeProc) -> None:
    bound = len(os.sched_getaffinity(0))
    assert usable_cores(proc.root) == bound
    proc.in_group(2, "/job/task")
    folder = proc.mount / "job"
    folder.mkdir(parents=True)
    for text, cores in (("max 100000", bound), ("50000 100000", 1), ("150000 100000", 1)):
        (folder / "cpu.max").write_text(f"{text}\n")
        assert usable_cores(proc.root) == cores
    (folder / "cpu.max").write_text(f"{(bound + 1) * 1000} 1000\n")  # more than there are
    assert usable_cores(proc.root) == bound
    (folder / "cpu.max").unlink()
    first = proc.mount.with_name(f"{proc.mount.name}-cpu") / "x"
    first.mkdir(parents=True)
    proc.in_group(1, "/job")
    (first / "cpu.cfs_period_us").write_text("100000\n")
    for text, cores in (("-1", bound), ("100000", 1)):
        (first / "cpu.cfs_quota_us").write_text(f"{text}\n")
        assert usable_cores(proc.root) == cores


def test_the_limit_on_address_space(proc: FakeProc) -> None:
    proc.write("self/limits", "Limit Soft\nMax address space unlimited unlimited bytes\n")
    proc.write("self/status", f"Name: python\nVmSize:\t {GB // 1024} kB\n")
    assert host_memory(proc.root) == about(8)
    proc.write("self/limits", f"Limit Soft\nMax address space      {3 * GB}  unlimited bytes\n")
    assert host_memory(proc.root) == about(2)


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="no /proc here")
def test_a_real_limit_is_seen() -> None:
    code = "from rl_training.experiment.memory import host_memory; print(host_memory())"
    limit = 6 * GB
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert 0 < int(done.stdout) < limit - 10**8  # importing torch takes more than that


def test_claims_are_checked_together(free_memory: Callable[[int], None]) -> None:
    free_memory(10 * GB)
    replay = Claim("a replay", 10**6, 6 * GB)
    fit = Claim("a fit", 10**6, 2 * GB)
    other = Claim("rollouts", 1_000, 3 * GB, "algo_kwargs.rollout_batch_size")
    require_memory(CPU, replay)
    require_memory(CPU, replay, fit)
    require_memory(CPU, replay, fit, other, held=GB)
    with pytest.raises(ConfigError) as caught:
        require_memory(CPU, other, fit, replay)
    assert str(caught.value) == (
        "algo_kwargs.buffer_capacity: a replay of 1,000,000 transitions would take 6.0 GB "
        "(11.0 GB with a fit and rollouts), but 10.0 GB are free on cpu; 620,000 would fit"
    )
    much = other._replace(needed=9 * GB)
    with pytest.raises(ConfigError, match=r"lower it and algo_kwargs\.rollout_batch_size$"):
        require_memory(CPU, replay._replace(needed=10 * GB), much)


def test_data_that_do_not_fit_are_refused(free_memory: Callable[[int], None]) -> None:
    free_memory(GB)
    require_data_memory("npz file 'x'", GB)
    with pytest.raises(DataError, match=r"^npz file 'x': the arrays would take 2\.0 GB, but 1\.0"):
        require_data_memory("npz file 'x'", 2 * GB)
