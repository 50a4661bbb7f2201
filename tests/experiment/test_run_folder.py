"""A run folder: one process at a time, and nothing is written outside it."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training import BC, learn_seeds, load, resume_seeds
from rl_training.experiment import lock
from rl_training.experiment.errors import RLTrainingError, RunInUseError
from rl_training.experiment.lock import LOCK_FILE, working_in
from tests.conftest import Command, Outcome

HOLD = """
import os, sys, time
from pathlib import Path
from rl_training.experiment.lock import working_in
with working_in(Path(sys.argv[1])):
    if os.fork() == 0:  # a worker that outlives its parent
        time.sleep(600)
        os._exit(0)
    print("held", flush=True)
    time.sleep(600)
"""


def assert_one_sentence(outcome: Outcome, *fragments: str) -> None:
    assert outcome.code == 2
    assert len(outcome.err.strip().splitlines()) == 1
    assert all(fragment in outcome.err for fragment in fragments), outcome.err


def test_two_processes_do_not_share_a_run_folder(cli: Command, bc_run: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(bc_run)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        before = sorted((path, path.stat().st_mtime_ns) for path in bc_run.rglob("*"))
        outcome = cli("resume", bc_run, "total_updates=30")
        assert_one_sentence(outcome, str(bc_run), f"process {holder.pid} on {platform.node()}")
        assert sorted((p, p.stat().st_mtime_ns) for p in bc_run.rglob("*")) == before
        assert cli("predict", bc_run, "[1, 0, 0]").code == 0, "reading needs no lock"
        holder.kill()  # and not its worker
        holder.wait()
        assert cli("resume", bc_run, "total_updates=30").code == 0
        assert not (bc_run / LOCK_FILE).exists()
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()


def test_a_run_is_locked_while_it_trains(tmp_path: Path) -> None:
    from rl_training import Callback

    class Meddler(Callback):
        refused = 0

        def on_save(self, event: object) -> None:
            (run,) = tmp_path.iterdir()
            with pytest.raises(RunInUseError, match=f"in use by process {os.getpid()} on"):
                BC.resume(run, progress=False)
            self.refused += 1

    meddler = Meddler()
    agent = BC(
        "Pendulum-v1",
        dataset={"kind": "scripted", "name": "pendulum-expert", "max_episodes": 2},
        total_updates=3,
        hidden_sizes=[4],
        final_eval=False,
        tensorboard=False,
        output_dir=str(tmp_path),
    )
    agent.learn(callbacks=[meddler], progress=False)
    assert meddler.refused == 1
    assert not list(tmp_path.rglob(LOCK_FILE))
    agent.learn(5, callbacks=[meddler], progress=False)
    assert meddler.refused == 2


def test_seeds_are_locked_with_their_run(tmp_path: Path) -> None:
    run = learn_seeds(
        "bc/pendulum",
        2,
        total_updates=3,
        hidden_sizes=[4],
        final_eval=False,
        tensorboard=False,
        output_dir=str(tmp_path),
        progress=False,
    ).run_dir
    for folder in (run, run / "seed-1"):
        with working_in(folder), pytest.raises(RunInUseError, match=folder.name):
            resume_seeds(run, progress=False)
    assert not list(tmp_path.rglob(LOCK_FILE))


def test_a_lock_that_its_holder_removed_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking the file, the process that held it ended and removed it."""
    flock, removed = lock.fcntl.flock, []

    def too_late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(True)
            (tmp_path / LOCK_FILE).unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(lock.fcntl, "flock", too_late)
    with working_in(tmp_path):
        with pytest.raises(RunInUseError, match=f"process {os.getpid()} on"), working_in(tmp_path):
            pass
        assert (tmp_path / LOCK_FILE).exists()


PRECIOUS = "mine\n"


def test_no_planted_link_is_written_through(cli: Command, bc_run: Path, tmp_path: Path) -> None:
    """A run folder of a stranger, with links under the names of everything that is written."""
    target = tmp_path / "precious"
    target.write_text(PRECIOUS)
    for name in ("config.yaml", "metrics.jsonl", "result.json"):
        (bc_run / f".{name}.draft").symlink_to(target)
    (bc_run / "result.json").unlink()
    (bc_run / "result.json").symlink_to(target)
    assert cli("resume", bc_run, "total_updates=22").code == 0
    assert target.read_text() == PRECIOUS
    assert (bc_run / "result.json").is_file()
    assert not (bc_run / "result.json").is_symlink()

    elsewhere = tmp_path / "elsewhere"
    for name in ("checkpoints", "tensorboard", "metrics.jsonl", "wandb", LOCK_FILE):
        run = Path(shutil.copytree(bc_run, tmp_path / f"run of {name}", symlinks=True))
        if name == "checkpoints":
            shutil.move(run / name, elsewhere)
        else:
            (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(elsewhere if name == "checkpoints" else target)
        outcome = cli("resume", run, "total_updates=24", "tensorboard=true")
        assert_one_sentence(outcome, name, "link")
        assert target.read_text() == PRECIOUS
    assert len(list(elsewhere.iterdir())) == len(list((bc_run / "checkpoints").iterdir()))


def test_metrics_are_never_appended_through_a_link(tmp_path: Path) -> None:
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.sinks import MetricsLog

    values = {"dataset": {"kind": "random"}, "total_updates": 1, "tensorboard": False}
    config = TrainConfig(algo="bc", env_id="Pendulum-v1", **values)
    target = tmp_path / "precious"
    target.write_text(PRECIOUS)
    (tmp_path / "metrics.jsonl").symlink_to(target)
    with pytest.raises(RLTrainingError, match="a link is in its place"):
        MetricsLog(tmp_path, config)
    assert target.read_text() == PRECIOUS


def test_commands_that_go_on_can_be_pasted(bc_run: Path, cli: Command) -> None:
    spaced = bc_run.rename(bc_run.with_name("a run; of mine"))
    shutil.rmtree(spaced / "checkpoints")
    outcome = cli("predict", spaced, "[1, 0, 0]")
    assert_one_sentence(outcome, f"rl-training resume '{spaced}'")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_run_can_be_used(bc_run: Path) -> None:
    for path in (bc_run, *bc_run.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        load(bc_run).predict([1.0, 0.0, 0.0])
        with pytest.raises(RLTrainingError, match="make it writable"):
            BC.resume(bc_run, progress=False)
    finally:
        for path in (bc_run, *bc_run.rglob("*")):
            path.chmod(0o755)
