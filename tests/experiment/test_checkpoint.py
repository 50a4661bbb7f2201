"""Checkpoints: complete or absent, verified, rotated, and never run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training import load
from rl_training.experiment import checkpoint, checkpoint_store, files
from rl_training.experiment.checkpoint import (
    MANIFEST,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.errors import CheckpointError, NewerFormatError
from rl_training.experiment.files import open_regular
from rl_training.runtime.evaluation import SELECTION_STATES
from tests.conftest import QUICK, Command

from ..each import each


def parts(value: float = 1.0) -> dict[str, Any]:
    return {"algorithm": {"w": torch.full((3,), value)}, "trainer": {"best": None, "at": [1, 2]}}


def save(store: CheckpointStore, tick: int, score: float | None = None) -> None:
    store.save(tick, parts(tick), {"score": score})


def ticks(store: CheckpointStore) -> list[int]:
    return [info.tick for info in store.all()]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path / "new" / "one", parts(), {"tick": 3, "score": -1.5})
    info, components = read_checkpoint(written.path)
    assert (info.tick, info.score) == (3, -1.5)
    assert torch.equal(components["algorithm"]["w"], torch.ones(3))
    assert components["trainer"] == {"best": None, "at": [1, 2]}
    assert list(read_checkpoint(written.path, ("trainer",))[1]) == ["trainer"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["one"], "no draft is left"


def test_replacing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "one"
    write_checkpoint(path, parts(1), {"tick": 1})
    write_checkpoint(path, parts(2), {"tick": 2})
    assert torch.equal(read_checkpoint(path)[1]["algorithm"]["w"], torch.full((3,), 2.0))
    # a lambda cannot be written: any failure will do, and Python 3.14 has another
    with pytest.raises((AttributeError, pickle.PicklingError)):
        write_checkpoint(path, {"algorithm": parts(3), "trainer": lambda: None}, {"tick": 3})
    assert read_checkpoint(path)[0].tick == 2
    assert os.listdir(tmp_path) == ["one"]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_nothing_else_is_replaced(tmp_path: Path, what: str) -> None:
    path = tmp_path / "mine"
    if what == "file":
        path.write_text("mine", encoding="utf-8")
    else:
        (path / "inside").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="other than a checkpoint is already there"):
        write_checkpoint(path, parts(), {"tick": 1})
    assert path.is_file() == (what == "file")


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """Sampled over all files; the manifest too, which holds the action space and the config."""
    header = {"tick": 3, "score": 1.25, "spaces": {"action_high": [2.0]}, "config": {"seed": 1}}
    path = write_checkpoint(tmp_path / "one", parts(), header).path
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        step = 1 if file.name == MANIFEST else max(1, len(content) // 60)
        for position in range(0, len(content), step):
            flipped = bytearray(content)
            flipped[position] ^= 1 << (position % 8)
            file.write_bytes(flipped)
            try:
                read_checkpoint(path)
            except CheckpointError:
                continue
            # JSON allows harmless changes, such as one kind of blank for another
            original, changed = (json.loads(text) for text in (content, bytes(flipped)))
            assert original == changed, f"{file.name}, byte {position}"
        file.write_bytes(content)
    read_checkpoint(path)


@pytest.mark.parametrize("length", [0, 1, 50])
def test_truncation_is_noticed(tmp_path: Path, length: int) -> None:
    path = write_checkpoint(tmp_path / "one", parts(), {"tick": 3}).path
    for file in path.iterdir():
        content = file.read_bytes()
        file.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            read_checkpoint(path)
        file.write_bytes(content)


@each("manifest", ["null", "[]", "3", '"x"', "{}", "[" * 100_000, "\x00"])
def test_manifests_that_are_none(tmp_path: Path, manifest: str) -> None:
    (tmp_path / MANIFEST).write_text(manifest, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"damaged.*manifest\.json"):
        read_manifest(tmp_path)


def test_a_newer_format_says_so_before_anything_else(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "one", parts(), {"tick": 3}).path
    (path / MANIFEST).write_text('{"format_version": 2}', encoding="utf-8")
    with pytest.raises(NewerFormatError, match="format 2"):
        read_manifest(path)


# --- the checkpoints of a run --------------------------------------------------------------------


def test_keep_last(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2, keep_best=False)
    for tick, score in ((10, 9.0), (2_000_000_000_000, None), (30, 1.0), (40, 2.0)):
        save(store, tick, score)
    assert ticks(store) == [40, 2_000_000_000_000], "by number, not by name"
    latest = store.latest()
    assert latest is not None
    assert latest.tick == 2_000_000_000_000


def test_keep_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=True)
    expected = {1: [1], 2: [2], 3: [2, 3], 4: [2, 4], 5: [2, 5], 6: [6], 7: [6, 7]}
    scores = {1: None, 2: -5.0, 3: -7.0, 4: -5.0, 5: None, 6: 0.0, 7: float("-inf")}
    for tick, score in scores.items():
        save(store, tick, score)
        assert ticks(store) == expected[tick]
    best = store.best()
    assert best is not None
    assert best.tick == 6


@pytest.mark.usefixtures("no_exchange")
def test_a_checkpoint_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=False)
    save(store, 1, score=3.0)
    (kept,) = tmp_path.iterdir()
    rename = Path.rename

    def fails_for_the_new_one(path: Path, target: Path) -> Path:
        if path.name.startswith(".draft-"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
    with pytest.raises(CheckpointError, match="could not be written"):
        save(store, 1, score=4.0)
    assert read_manifest(kept).score == 3.0
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]


class Killed(BaseException):
    """Stands for a killed process: nothing is put right after it."""


@pytest.mark.parametrize("in_one_step", [True, False])
def test_there_is_a_checkpoint_throughout_a_replacement(
    in_one_step: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Killed before each of the operations on the file system that replace one."""
    if not in_one_step:
        request.getfixturevalue("no_exchange")
    operations = {(Path, "rename"), (shutil, "rmtree"), (files, "exchange")}
    for last in range(12):
        store = CheckpointStore(tmp_path / str(last), keep_last=1, keep_best=False)
        save(store, 5, score=1.0)
        calls = 0

        def counted(function: Any, last: int = last) -> Any:
            def call(*given: Any, **rest: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > last:
                    raise Killed
                return function(*given, **rest)

            return call

        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            for owner, name in operations:
                patch.setattr(owner, name, counted(getattr(owner, name)))
            save(store, 5, score=2.0)
        again = CheckpointStore(tmp_path / str(last), keep_last=1, keep_best=False)
        assert ticks(again) == [5], last
        (info,) = again.all()
        assert read_checkpoint(info.path)[0].score in (1.0, 2.0)
        by_name = tmp_path / str(last) / f"{5:012d}"
        assert read_checkpoint(by_name)[0].tick == 5, "a saved agent is found by its own name"
        save(again, 5, score=3.0)
        assert [path.name for path in again.folder.iterdir()] == [f"{5:012d}"]
        assert again.all()[0].score == 3.0
        if calls <= last:
            return
    raise AssertionError("never came to an end")


def test_a_save_reads_no_manifest_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep_last=50, keep_best=True)
    for tick in range(20):
        save(store, tick, float(tick))
    read = []
    original = checkpoint.read_manifest
    monkeypatch.setattr(
        checkpoint_store, "read_manifest", lambda path: read.append(path.name) or original(path)
    )
    save(store, 20, 0.0)
    assert read == [f"{20:012d}"]
    write_checkpoint(tmp_path / f"{3:012d}", parts(), {"tick": 3, "score": 99.0})
    best = store.best()
    assert best is not None
    assert best.tick == 3, "what has changed is read again"


@each("version", [0, -5, 1.9, True, "1", None])
def test_formats_that_never_were(tmp_path: Path, version: Any) -> None:
    path = write_checkpoint(tmp_path / "one", parts(), {"tick": 3}).path
    rewrite(path, {"format_version": version})
    with pytest.raises(CheckpointError, match=r"damaged.*manifest\.json"):
        read_manifest(path)


def rewrite(path: Path, changes: dict[str, Any]) -> None:
    """Change a manifest with its checksum made right again."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8")) | changes
    manifest["checksum"] = checkpoint.manifest_checksum(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def test_what_could_be_read_for_ever_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("algorithm.pt", MANIFEST):
        for kind in ("pipe", "device"):
            path = write_checkpoint(tmp_path / f"{kind} {name}", parts(), {"tick": 3}).path
            (path / name).unlink()
            if kind == "pipe":
                os.mkfifo(path / name)
            else:
                (path / name).symlink_to("/dev/zero")
            with pytest.raises(CheckpointError, match=r"damaged.*not a regular file"):
                read_checkpoint(path)


def test_what_grows_when_it_is_read_is_refused_before(tmp_path: Path) -> None:
    """A component compressed a thousandfold, and one in a format that states no sizes."""
    for name in ("packed", "old format"):
        path = write_checkpoint(tmp_path / name, parts(), {"tick": 3}).path
        file = path / "algorithm.pt"
        if name == "packed":
            with zipfile.ZipFile(file) as archive:
                stored = {part.filename: archive.read(part) for part in archive.infolist()}
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for part, content in stored.items():
                    archive.writestr(part, content)
        else:
            torch.save(parts()["algorithm"], file, _use_new_zipfile_serialization=False)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        files = {"algorithm.pt": digest}
        rewrite(path, {"files": files})
        with pytest.raises(CheckpointError, match=r"is compressed|something other than tensors"):
            read_checkpoint(path)


def test_what_must_not_be_read_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "5", parts(), {"tick": 5}).path

    def forbidden(name: str) -> Any:
        def open_file(file: Path) -> Any:
            if file.name == name:
                raise PermissionError(13, "Permission denied", str(file))
            return open_regular(file)

        return open_file

    for name in (MANIFEST, "algorithm.pt"):
        monkeypatch.setattr(checkpoint, "open_regular", forbidden(name))
        with pytest.raises(CheckpointError, match=f"cannot be read: {name}: Permission denied"):
            read_checkpoint(path)

    def listdir(folder: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(checkpoint_store.os, "listdir", listdir)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        CheckpointStore(tmp_path, keep_last=1, keep_best=False).all()


def test_a_pinned_tick_is_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=False)
    for tick, pinned, expected in ((1, 1, [1]), (2, 1, [1, 2]), (3, 2, [2, 3]), (4, None, [4])):
        store.pinned = pinned
        save(store, tick)
        assert ticks(store) == expected


def test_an_empty_store(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "none", keep_last=1, keep_best=True)
    assert (store.all(), store.latest(), store.best(), store.unreadable()) == ([], None, None, {})


def test_drafts_are_ignored_and_removed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=3, keep_best=True)
    save(store, 1)
    draft = tmp_path / ".draft-abc"
    draft.mkdir()
    for file in (tmp_path / f"{1:012d}").iterdir():
        (draft / file.name).write_bytes(file.read_bytes())
    (tmp_path / ".draft-def").mkdir()
    assert ticks(store) == [1]
    save(store, 2)
    assert sorted(os.listdir(tmp_path)) == [f"{tick:012d}" for tick in (1, 2)]


def test_damaged_manifests_are_left_out_and_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=5, keep_best=True)
    for tick in (1, 2, 3):
        save(store, tick, float(tick))
    (tmp_path / f"{3:012d}" / MANIFEST).write_text("{", encoding="utf-8")
    (tmp_path / "5-notes").mkdir()
    assert ticks(store) == [1, 2]
    ((tick, problem),) = store.unreadable().items()
    assert tick == 3
    assert str(tmp_path / f"{3:012d}") in str(problem)
    save(store, 4)
    assert (tmp_path / "5-notes").exists(), "what is not a checkpoint is not ours to remove"


def test_a_manifest_of_another_tick_is_damage(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=3, keep_best=False)
    for tick in (10, 20):
        store.save(tick, {"a": {"x": tick}}, {})
    older, newer = (path / MANIFEST for path in sorted(tmp_path.iterdir()))
    newer.write_bytes(older.read_bytes())
    assert [info.tick for info in store.all()] == [10]
    ((tick, problem),) = store.unreadable().items()
    assert tick == 20
    assert "manifest.json is that of tick 10" in str(problem)


def test_best_is_the_best_evaluated_though_no_interval_hits_it(
    cli: Command, tmp_path: Path
) -> None:
    overrides = ["eval_interval=3", "checkpoint_interval=7", "keep_last=1", "algo_kwargs.lr=1e-2"]
    assert cli("train", "bc/pendulum", *QUICK, *overrides, "--output-dir", tmp_path).code == 0
    (run,) = tmp_path.iterdir()
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    scores = {
        event["tick"]: event["eval/return_mean"]
        for event in map(json.loads, lines)
        if event["event"] == "eval"
    }
    assert list(scores) == [3, 6, 9, 12, 15, 18, 20]
    store = CheckpointStore(run / "checkpoints", keep_last=1, keep_best=True)
    best = store.best()
    assert best is not None
    assert best.score == max(scores.values()) == scores[best.tick]
    assert set(ticks(store)) == {best.tick, 20}
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    chosen = {"tick": best.tick, "score": best.score, "metric": "eval/return_mean"}
    assert result["best"] == chosen
    chosen_on = ("--seed", SELECTION_STATES)
    seen = json.loads(cli("eval", run, "--checkpoint", "best", "-n", 1, "--json", *chosen_on).out)
    assert seen["eval/return_mean"] == pytest.approx(best.score)


def test_best_is_recorded_where_the_final_tick_was_saved_before_its_evaluation(
    cli: Command, tmp_path: Path
) -> None:
    command = ["train", "bc/pendulum", *QUICK, "eval_interval=0", "checkpoint_interval=10"]
    assert cli(*command, "--output-dir", tmp_path).code == 0
    (run,) = tmp_path.iterdir()
    best = CheckpointStore(run / "checkpoints", keep_last=1, keep_best=True).best()
    assert best is not None
    assert best.tick == 20


def test_loading_leaves_the_checkpoint_as_it_was(bc_run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in bc_run.rglob("*")}
    load(bc_run)
    load(bc_run / "checkpoints" / f"{10:012d}")
    assert {path: path.stat().st_mtime_ns for path in bc_run.rglob("*")} == before
