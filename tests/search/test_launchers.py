"""Launchers: what runs elsewhere can be paused, killed and gone on with, and leaves nothing."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.errors import ConfigError
from rl_training.search.launch import MOST_RESTARTS, PAUSED, Ended, Job, Launcher, Restarts
from rl_training.search.local import LocalProcesses, Process, Slots
from rl_training.search.tune import Tuner
from rl_training.search.tuning import TuningFolder
from rl_training.search.verdict import judged
from tests.conftest import PATIENCE_S, Command
from tests.search.test_sweep import KNOBS, same_weights, trained_whole
from tests.search.test_tune import plan_for

PATIENCE = 240.0
"""Seconds; only a failing test waits so long."""
# Ray reads it once, when it is imported: by default a node that takes longer to start is an error.
os.environ.setdefault("RAY_raylet_start_wait_time_s", f"{PATIENCE:.0f}")

COUNTING = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
saved, gate = Path(sys.argv[1]), Path(sys.argv[2])
saved.write_text(saved.read_text() + "x" if saved.exists() else "x")
while not gate.exists():
    time.sleep(0.02)
"""


@dataclass(frozen=True)
class Counting(Job):
    """Notes that it was started, and ends once a file is there."""

    saved: Path
    gate: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("-c", COUNTING, str(self.saved), str(self.gate))

    @property
    def progress(self) -> str:
        return self.saved.read_text() if self.saved.exists() else ""


def counting(folder: Path, name: str = "count") -> Counting:
    return Counting(name, folder / f"{name}.log", folder / f"{name}.txt", folder / "gate")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def the_end(launcher: Launcher[Any]) -> Ended:
    found: list[Ended] = []

    def look() -> bool:
        found.extend(launcher.ended())
        return bool(found)

    until(look)
    return found[0]


def paused_and_gone_on_with(launcher: Launcher[Any], folder: Path) -> None:
    """Start, pause, start again and let it end."""
    job = counting(folder)
    with launcher:
        launcher.start(job)
        until(lambda: job.progress == "x")
        assert launcher.running == {"count"}
        launcher.pause({"count"})
        assert the_end(launcher).code == PAUSED
        launcher.start(job)
        until(lambda: job.progress == "xx")
        job.gate.touch()
        assert the_end(launcher).code == 0
        job.gate.unlink()
        launcher.start(job)
        until(lambda: job.progress == "xxx")
    assert launcher.running == set()  # stopped at the end of the context


def test_processes_of_this_machine_are_paused_and_end_with_the_launcher(tmp_path: Path) -> None:
    paused_and_gone_on_with(LocalProcesses(Slots(1, 1)), tmp_path)


def test_a_job_is_started_again_as_long_as_it_saves_something_new(tmp_path: Path) -> None:
    job, restarts = counting(tmp_path), Restarts()
    for text in ("a", "b", "c", "d", "e"):
        job.saved.write_text(text)
        assert restarts.allowed(job)
    assert [restarts.allowed(job) for _ in range(MOST_RESTARTS)] == [True, True, False]


def test_a_full_disk_is_named_where_not_even_the_log_could_be_written(
    tmp_path: Path, full_disk: Callable[[], None]
) -> None:
    end = Ended(counting(tmp_path), 1, 0.0)
    assert end.why == "exit code 1"
    full_disk()
    assert end.why.startswith("there is no space left on the disk")
    end.job.log_file.write_text("error: another reason\n")
    assert end.why == "error: another reason"


def test_jobs_of_slurm_are_paused_and_leave_no_pickled_files(tmp_path: Path) -> None:
    """With submitit's executor for one machine, which has the same jobs without Slurm."""
    pytest.importorskip("submitit")
    from rl_training.search.slurm_jobs import SlurmJobs

    launcher = SlurmJobs(tmp_path, 1, settings={"cluster": "local"})
    assert list(tmp_path.iterdir()) == []
    paused_and_gone_on_with(launcher, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_no_launcher_can_do_is_refused_before_anything_is_made(
    cli: Command, tmp_path: Path
) -> None:
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as other:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        wrong = f"127.0.0.1:{other.getsockname()[1]}"
        threading.Thread(target=_answer_as_a_web_page, args=(other,), daemon=True).start()
        for arguments, words, package in (
            (("--launcher", "ray", "--address", address), "no Ray cluster answers at", "ray"),
            (("--launcher", "ray", "--address", wrong), "no Ray cluster answers at", "ray"),
            (("device=cuda:99",), "device: 'cuda:99' does not exist", None),
            (("--launcher", "ray", "--address", "ray://a:1"), "is not the address of", "ray"),
            (("--launcher", "ray", "--gpus", "0"), "--gpus: it needs --launcher local", None),
            (("--address", address), "--address: it needs --launcher ray", None),
            (("--gpus", "999"), "--gpus: GPU 999 was not found", None),
            (("--launcher", "slurm", "--slurm", "cluster=moon"), "--slurm", "submitit"),
            (
                ("--launcher", "slurm", "--gpus-per-run", "0.5"),
                "Slurm gives whole GPUs",
                "submitit",
            ),
            (("--launcher", "cloud"), "--launcher", None),
            (("--out", "s3://bucket/study"), "a study needs file locks", None),
        ):
            if package is not None and package not in sys.modules:
                try:
                    __import__(package)
                except ImportError:
                    words = f"needs the package '{package}'"
            out = tmp_path / "study"
            refused = cli("sweep", "bc/pendulum", "total_updates=10", "--out", out, *arguments)
            assert refused.code == 2
            assert words in refused.err
            assert not out.exists()


def _answer_as_a_web_page(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_ctrl_c_while_a_job_begins_is_kept_until_the_job_is_known(tmp_path: Path) -> None:
    """Whatever a signal raises while Python forks is lost."""

    class Interrupted(LocalProcesses):
        def _begin(self, job: Job) -> Process:
            signal.raise_signal(signal.SIGINT)
            return super()._begin(job)

    launcher = Interrupted(Slots(1, 1))
    job = counting(tmp_path)
    with launcher:
        with pytest.raises(KeyboardInterrupt):
            launcher.start(job)
        assert launcher.running == {"count"}
    assert launcher.running == set()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # as before


# --- Ray ------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray cluster of a head without CPUs and two nodes with one each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    from rl_training.search.ray_tasks import OWN_CLUSTER

    for name, value in OWN_CLUSTER.items():
        os.environ.setdefault(name, value)
    found = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(2):
            found.add_node(num_cpus=1)
        yield found
    finally:
        import ray

        ray.shutdown()
        found.shutdown()


@pytest.mark.timeout(900)
def test_a_trial_whose_ray_node_is_lost_goes_on_elsewhere_bit_for_bit(
    cluster: Any, tmp_path: Path, light_fuse: Callable[[int, str], str]
) -> None:
    """Of a tuning, whose test is a sweep on the nodes that are left."""
    pytest.importorskip("optuna")
    from rl_training.search.ray_tasks import RayTasks

    launcher = RayTasks(cluster.address)
    assert launcher.workers == 2
    assert "on a Ray cluster of 3 nodes with 2 CPUs" in launcher.words
    for arguments, words in (
        ({"threads": 64}, "no node of the Ray cluster has 64 CPUs"),
        ({"gpus_per_run": 1}, "no node of the Ray cluster has 1 GPUs"),
    ):
        with pytest.raises(ConfigError, match=words):
            RayTasks(cluster.address, **arguments)
    paused_and_gone_on_with(launcher, tmp_path)

    said: list[str] = []
    keys = [*KNOBS, "total_updates=100", "checkpoint_interval=20", "eval_interval=20"]
    keys += [light_fuse(3, "node")]
    study = TuningFolder(tmp_path / "study", plan_for(keys))
    tuner = Tuner(study, launcher, 1, said.append)
    (trial,) = tuner.run()
    assert (trial.state, len(trial.scores)) == ("finished", 1), said
    assert "lost by the Ray cluster" in said[0]
    deadline = time.monotonic() + PATIENCE_S
    while launcher.workers != 1 and time.monotonic() < deadline:
        time.sleep(0.2)  # the cluster is counted every few seconds
    assert launcher.workers == 1  # of two nodes one is left
    run = study.trial("trial-0000-s0").run_dir
    assert same_weights(run, trained_whole(keys, tmp_path))
    verdict = judged(study, launcher, said.append, [trial])
    assert verdict.sentence.startswith("no better than the defaults")
