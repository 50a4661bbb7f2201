"""Runs and data in object storage: copied once, saved in an order that a kill cannot harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rl_training import ManagedAlgorithm, load
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment import storage
from rl_training.experiment.config import load_config
from rl_training.experiment.errors import RLTrainingError
from tests.conftest import Command
from tests.search.test_sweep import KNOBS, same_weights, trained_whole

KEYS = [*KNOBS, "total_updates=60", "checkpoint_interval=20", "eval_interval=20"]
KEYS += ["engine=eager", "tensorboard=false"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_a_url_is() -> None:
    for text, url in (
        ("s3://bucket/runs/", "s3://bucket/runs"),
        (Path("s3://bucket/runs"), "s3://bucket/runs"),  # Path takes a slash
        ("file:///runs/a", "file:///runs/a"),
        (Path("file:///runs/a"), "file:///runs/a"),
        ("runs/a", None),
        ("/tmp/s3://a", None),
        ("minari:a/b-v0", None),
        ("C:/runs", None),
    ):
        assert storage.url_of(text) == url


class Noted(MemoryFileSystem):
    """A storage that notes in which order files are written and removed."""

    protocol = "noted"
    orders: ClassVar[list[str]] = []
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("noted://").strip("/")

    def put_file(self, local: str, target: str, **options: Any) -> None:
        self.orders.append("+" + target.removeprefix("/runs/mine/"))
        super().put_file(local, target, **options)

    def rm_file(self, target: str) -> None:
        self.orders.append("-" + target.removeprefix("/runs/mine/"))
        super().rm_file(target)


def test_a_checkpoint_counts_from_its_manifest_on_and_old_ones_go_last() -> None:
    """Whenever it is killed, the storage has a newest whole checkpoint."""
    fsspec.register_implementation("noted", Noted)
    remote, orders = "noted://runs", Noted.orders
    run = storage.run_parent(remote) / "mine"
    run.mkdir(parents=True)
    storage.begin_remote(remote, run)

    def checkpoint(tick: int) -> None:
        folder = run / "checkpoints" / f"{tick:012d}"
        folder.mkdir(parents=True)
        for name in ("algorithm.pt", "manifest.json", "zeta.pt"):
            (folder / name).write_text(str(tick))

    checkpoint(1)
    (run / "config.yaml").write_text("a: 1\n")
    (run / "checkpoints" / ".draft-x").mkdir()
    (run / "checkpoints" / ".draft-x" / "half.pt").write_text("half")
    storage.publish(run)
    first = "checkpoints/000000000001"
    assert orders[-1] == f"+{first}/manifest.json"
    assert sorted(orders[:-1]) == [
        f"+{first}/algorithm.pt",
        f"+{first}/zeta.pt",
        "+config.yaml",
    ]
    orders.clear()
    checkpoint(2)
    shutil.rmtree(run / "checkpoints" / "000000000001")
    storage.publish(run)
    second = "checkpoints/000000000002"
    assert orders == [
        f"+{second}/algorithm.pt",
        f"+{second}/zeta.pt",
        f"+{second}/manifest.json",
        f"-{first}/manifest.json",
        f"-{first}/algorithm.pt",
        f"-{first}/zeta.pt",
    ]

    system = Noted()
    system.mv(f"/runs/mine/{second}/manifest.json", "/runs/kept")
    shutil.rmtree(run)
    copy = storage.local_run(f"{remote}/mine")
    assert copy == run
    assert not (copy / second).exists()  # a half
    system.mv("/runs/kept", f"/runs/mine/{second}/manifest.json")
    assert (storage.local_run(f"{remote}/mine") / second / "zeta.pt").read_text() == "2"


def test_data_are_copied_once_and_again_when_they_change(tmp_path: Path, cache: Path) -> None:
    dataset = load_transition_dataset({"kind": "random", "steps": 30}, env_id="Pendulum-v1")
    from rl_training.data.convert import save_dataset

    save_dataset(dataset, tmp_path / "log.npz")
    url = f"file://{tmp_path}/log.npz"
    for _ in range(2):
        read = load_transition_dataset(url, env_id="Pendulum-v1")
        np.testing.assert_array_equal(read.observations, dataset.observations)
        assert len(list((cache / "data").rglob("*.npz"))) == 1
    os.utime(tmp_path / "log.npz", (1, 1))
    load_transition_dataset(url, env_id="Pendulum-v1")
    assert len(list((cache / "data").rglob("*.npz"))) == 2
    with pytest.raises(RLTrainingError, match="has no file"):
        load_transition_dataset(f"file://{tmp_path}/none.npz", env_id="Pendulum-v1")


def test_what_cannot_be_used_is_one_sentence(cli: Command, tmp_path: Path) -> None:
    for path, words in (
        ("nothing://bucket/a", "nothing://bucket/a"),
        (f"file://{tmp_path}/none", "is not a run"),
    ):
        refused = cli("resume", path)
        assert refused.code == 2
        assert words in refused.err
        assert len(refused.err.strip().splitlines()) == 1


# --- a real server --------------------------------------------------------------------------------


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server on this machine."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server")
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    try:
        yield "s3://bucket"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        running.stop()


def test_a_killed_run_goes_on_from_its_bucket_bit_for_bit(
    bucket: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process has none of the files of the first."""
    dataset = load_transition_dataset({"kind": "random", "steps": 160}, env_id="Pendulum-v1")
    from rl_training.data.convert import save_dataset

    save_dataset(dataset, tmp_path / "log.npz")
    system, root = storage.file_system(f"{bucket}/log.npz")
    system.put_file(str(tmp_path / "log.npz"), root)
    keys = [key for key in KEYS if not key.startswith("dataset=")]
    keys += [
        f"dataset={{kind: npz, path: {bucket}/log.npz}}",
        f"output_dir={bucket}/runs",
        "run_name=mine",
    ]
    code = (
        "import os, signal\n"
        "from rl_training.experiment import storage\n"
        "put = storage.publish\n"
        "def publish(folder):\n"
        "    put(folder)\n"
        "    if (folder / 'checkpoints' / '000000000040').exists():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "import rl_training.experiment.checkpoint_store as checkpoint_store\n"
        "checkpoint_store.publish = publish\n"
        "from rl_training.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "train", "bc/pendulum", *keys, "--quiet"]
    killed = subprocess.run(command, check=False, capture_output=True, timeout=300)
    assert killed.returncode == -9, killed.stderr.decode()[-2000:]

    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "another machine"))
    resumed = ManagedAlgorithm.resume(f"{bucket}/runs/mine", progress=False)
    assert resumed.run_dir is not None
    assert resumed.result is not None
    assert json.loads((resumed.run_dir / "result.json").read_text())["updates"] == 60
    whole = trained_whole([*keys[:-2], "run_name=null"], tmp_path)
    assert same_weights(resumed.run_dir, whole)
    names = {name.partition("/runs/mine/")[2] for name in system.find("bucket/runs/mine")}
    assert {"config.yaml", "metrics.jsonl", "result.json"} <= names
    shutil.rmtree(tmp_path / "another machine")
    loaded = load(f"{bucket}/runs/mine", device="cpu")
    action, _ = loaded.predict(dataset.observations[0])
    np.testing.assert_array_equal(action, resumed.predict(dataset.observations[0])[0])
    config = load_config("bc/pendulum", keys)
    with pytest.raises(RLTrainingError, match="holds a run already"):
        ManagedAlgorithm(config).learn(progress=False)
