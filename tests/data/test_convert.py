"""Every format gives back what it was given."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest

from rl_training.data.convert import save_dataset
from rl_training.data.dataset import TransitionDataset
from rl_training.data.sources import load_transition_dataset
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError

pytestmark = pytest.mark.filterwarnings("error::UserWarning")


def _targets(folder: Path) -> list[str]:
    return [str(folder / "a.npz"), str(folder / "a.h5"), str(folder / "a.hdf5"), "minari:toy/b-v0"]


def _identical(one: TransitionDataset, two: TransitionDataset) -> None:
    for name, array in one.to_arrays().items():
        other = getattr(two, name)
        assert other.dtype == array.dtype, name
        np.testing.assert_array_equal(other, array, err_msg=name)


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_round_trips_are_exact(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces, kind: str
) -> None:
    spaces = box_spaces
    arrays["rewards"] = np.array([0.1, -1e-30, 1 / 3, 1e30, -0.0], np.float32)
    if kind == "discrete":
        spaces = Spaces(2, "discrete", 3, action_start=1)
        arrays["actions"] = np.array([1, 2, 3, 1, 2])
    dataset = load_transition_dataset(arrays, spaces=spaces)
    for target in _targets(tmp_path):
        assert save_dataset(dataset, target) == target
        again = load_transition_dataset(target, spaces=spaces)
        _identical(dataset, again)
        assert again.fingerprint() == dataset.fingerprint()
        if target.startswith("minari:"):
            assert load_transition_dataset(target).spaces == spaces


def test_no_rewards_are_made_up(tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces) -> None:
    del arrays["rewards"]
    dataset = load_transition_dataset(arrays, spaces=box_spaces, needs_rewards=False)
    for target in _targets(tmp_path)[:3]:
        save_dataset(dataset, target)
        with pytest.raises(DataError, match="missing key 'rewards'"):
            load_transition_dataset(target, spaces=box_spaces)
        again = load_transition_dataset(target, spaces=box_spaces, needs_rewards=False)
        assert again.fingerprint() == dataset.fingerprint()
    with pytest.raises(DataError, match="has no rewards"):
        save_dataset(dataset, "minari:toy/b-v0")
    assert not minari.list_local_datasets()


def test_through_all_formats_in_turn(tmp_path: Path) -> None:
    source = {"kind": "scripted", "name": "pendulum-mixed", "max_episodes": 3}
    first = current = load_transition_dataset(source)
    for target in _targets(tmp_path):
        save_dataset(current, target)
        current = load_transition_dataset(target, env_id="Pendulum-v1")
    _identical(first, current)
    assert minari.load_dataset("toy/b-v0").env_spec.id == "Pendulum-v1"
    assert load_transition_dataset("minari:toy/b-v0").env_id == "Pendulum-v1"


def test_hdf5_speaks_d4rl(tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces) -> None:
    save_dataset(load_transition_dataset(arrays, spaces=box_spaces), tmp_path / "x.hdf5")
    with h5py.File(tmp_path / "x.hdf5") as file:
        assert set(file) == {
            "observations",
            "actions",
            "rewards",
            "next_observations",
            "terminals",
            "timeouts",
        }
        assert file["terminals"][()].tolist() == [False, False, True, False, False]


def test_existing_targets_are_kept(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    old = load_transition_dataset(arrays, spaces=box_spaces)
    new = dataclasses.replace(old, rewards=old.rewards * np.float32(2.0))
    for target in _targets(tmp_path):
        save_dataset(old, target)
        with pytest.raises(DataError, match="exists already; choose another"):
            save_dataset(new, target)
        _identical(old, load_transition_dataset(target, spaces=box_spaces))
        save_dataset(new, target, overwrite=True)
        _identical(new, load_transition_dataset(target, spaces=box_spaces))
    names = {path.name for path in tmp_path.rglob("*") if "minari" not in path.parts}
    assert not [name for name in names if "draft" in name or "replaced" in name]


def test_a_failed_save_leaves_the_old_one(
    tmp_path: Path,
    arrays: dict[str, Any],
    box_spaces: Spaces,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = load_transition_dataset(arrays, spaces=box_spaces)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    for target in _targets(tmp_path):
        save_dataset(dataset, target)
    monkeypatch.setattr(np, "savez_compressed", fails)
    monkeypatch.setattr(h5py.File, "create_dataset", fails)
    monkeypatch.setattr(minari, "create_dataset_from_buffers", fails)
    for target in _targets(tmp_path):
        with pytest.raises(DataError, match=r"cannot be written .*No space left"):
            save_dataset(dataset, target, overwrite=True)
        _identical(dataset, load_transition_dataset(target, spaces=box_spaces))
    assert not list(tmp_path.glob(".*"))


def test_targets_that_cannot_be(tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces) -> None:
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    with pytest.raises(DataError, match="does not say its format; end it in"):
        save_dataset(dataset, tmp_path / "x.txt")
    with pytest.raises(DataError, match="minari id 'toy/b' is malformed"):
        save_dataset(dataset, "minari:toy/b")
    with pytest.raises(DataError, match=r"minari id '\.\./b-v0' is malformed"):
        save_dataset(dataset, "minari:../b-v0")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        save_dataset(dataset, tmp_path / "folder.npz", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        save_dataset(dataset, tmp_path / "file" / "x.npz")
    assert save_dataset(dataset, tmp_path / "odd.data", "npz").endswith("odd.data")
    odd = {"kind": "npz", "path": str(tmp_path / "odd.data")}
    _identical(dataset, load_transition_dataset(odd, spaces=box_spaces))


def test_minari_refuses_what_it_cannot_hold(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["terminations"][2] = False
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    with pytest.raises(DataError, match="without loss, because row 2 is not followed by its"):
        save_dataset(dataset, "minari:toy/b-v0")


def test_a_cut_stream_stays_known_as_one(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    stream = {name: array[:2] for name, array in arrays.items()}
    dataset = load_transition_dataset(stream, spaces=box_spaces)
    for target in _targets(tmp_path)[:3]:
        save_dataset(dataset, target)
        again = load_transition_dataset(target, spaces=box_spaces)
        assert not again.has_whole_episode
        _identical(dataset, again)


def _killed_while_saving(data: TransitionDataset, target: str, operations: int) -> bool:
    """Save in a child process that is killed at the n-th file operation; False if it finished."""
    child = os.fork()
    if child == 0:
        watched = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree")
        left = operations

        def count(event: str, _: Any) -> None:
            nonlocal left
            if event in watched:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)
            save_dataset(data, target, overwrite=True)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_kill_never_costs_a_minari_data_set(
    exchanges: bool,
    arrays: dict[str, Any],
    box_spaces: Spaces,
    request: pytest.FixtureRequest,
) -> None:
    """Killed at any file operation of an overwrite: the old data or the new ones are there."""
    if not exchanges:
        request.getfixturevalue("no_exchange")
    old = load_transition_dataset(arrays, spaces=box_spaces)
    new = dataclasses.replace(old, rewards=old.rewards * np.float32(2.0))
    save_dataset(old, "minari:toy/b-v0")
    seen = set()
    for operations in range(1 + exchanges, 200, 3):
        killed = _killed_while_saving(new, "minari:toy/b-v0", operations)
        found = load_transition_dataset("minari:toy/b-v0", spaces=box_spaces)
        assert found.rewards.tolist() in (old.rewards.tolist(), new.rewards.tolist())
        assert list(minari.list_local_datasets()) == ["toy/b-v0"]
        seen.add(float(found.rewards[0]))
        if not killed:
            break
        save_dataset(old, "minari:toy/b-v0", overwrite=True)
    assert operations > 10
    assert seen == {1.0, 2.0}


def test_drafts_of_killed_processes_are_removed(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    data = load_transition_dataset(arrays, spaces=box_spaces)
    root = tmp_path / "minari"
    root.mkdir()
    stale = [tmp_path / ".a.k3_x92ab.draft.npz", tmp_path / ".a.0abcdefg.draft.h5"]
    fresh = [tmp_path / ".a.k3_x92ac.draft.npz", tmp_path / ".a.notes.npz"]
    for path in (*stale, *fresh):
        path.touch()
    for name in (".draft_k3_x92ab", ".draft_k3_x92ac"):
        (root / name / "toy" / "b-v0").mkdir(parents=True)
    stale.append(root / ".draft_k3_x92ab")
    fresh.append(root / ".draft_k3_x92ac")
    for path in (*stale, fresh[1]):
        for part in (path, *path.rglob("*")):
            os.utime(part, (1e9, 1e9))
    for target in _targets(tmp_path):
        save_dataset(data, target)
    assert [path.exists() for path in stale] == [False] * 3
    assert [path.exists() for path in fresh] == [True] * 3
