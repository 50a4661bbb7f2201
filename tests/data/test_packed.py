"""Packed data: made by streaming, equal to the same data in memory, refused where damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.data import dataset as dataset_module
from rl_training.data import homes, pack_writer, pieces, statistics
from rl_training.data.convert import save_dataset
from rl_training.data.dataset import ARRAY_NAMES, WIDE, TransitionDataset
from rl_training.data.disk_rows import DiskRows, mapped
from rl_training.data.homes import MemoryHome, chosen_home
from rl_training.data.packed import TRANSITIONS
from rl_training.data.sources import load_transition_dataset, pack_source
from rl_training.data.summary import summarize
from rl_training.experiment.data_config import PACKED_MANIFEST
from rl_training.experiment.errors import ConfigError, DataError, RLTrainingError
from tests.conftest import small_files

GIB = 1 << 30


def log(rows: int = 60, discrete: bool = False) -> dict[str, Any]:
    """Episodes of 1 to 7 rows, some terminated, some cut, the last open; groups are names."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 8, rows)
    ends = np.cumsum(lengths)
    ends = ends[ends < rows - 1]
    last = np.zeros(rows, bool)
    last[ends] = True
    cut = rng.random(rows) < 0.5
    episode = np.concatenate([[0], np.cumsum(last)[:-1]])
    seen = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    actions = rng.integers(0, 4, rows) if discrete else rng.normal(size=(rows, 2))
    return {
        "observations": seen[:-1],
        "actions": actions if discrete else actions.astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "next_observations": seen[1:],
        "terminations": last & ~cut,
        "truncations": last & cut,
        "groups": np.asarray([f"patient-{n % 5}" for n in range(rows)])[episode],
    }


def assert_equal(packed: TransitionDataset, known: TransitionDataset) -> None:
    """The same rows, and everything that is said of them."""
    for name in ARRAY_NAMES:
        found, expected = np.asarray(getattr(packed, name)), getattr(known, name)
        np.testing.assert_array_equal(found, expected, err_msg=name)
        assert found.dtype == expected.dtype, name
    assert packed.spaces == known.spaces
    assert packed.has_rewards == known.has_rewards
    assert packed.has_whole_episode == known.has_whole_episode
    np.testing.assert_array_equal(packed.episode_ends, known.episode_ends)
    for ours, theirs in zip(
        statistics.observation_statistics(packed),
        statistics.observation_statistics(known),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of few rows, so that episodes are cut by them and carried over."""
    for module in (pieces, dataset_module):
        monkeypatch.setattr(module, "AT_ONCE", 9)


@pytest.mark.usefixtures("small_pieces")
def test_every_source_packs_to_what_it_is_in_memory(tmp_path: Path) -> None:
    for discrete in (False, True):
        arrays = log(discrete=discrete)
        whole = load_transition_dataset(dict(arrays))
        targets: list[Any] = ["log.npz", "log.h5", "log.parquet"]
        for file in targets:
            save_dataset(whole, tmp_path / file, overwrite=True)
        without = {k: v for k, v in arrays.items() if k not in ("next_observations", "groups")}
        np.savez(tmp_path / "short.npz", **without)
        for file in (*targets, "short.npz"):
            source = {"kind": {"h5": "hdf5"}.get(file.split(".")[1], file.split(".")[1])}
            source |= {"path": str(tmp_path / file)}
            if file.endswith("parquet"):
                source["episode"] = "episode"
            packed = pack_source(source, tmp_path / "packed", overwrite=True)
            known = load_transition_dataset(source)
            assert_equal(packed.dataset, known)
            assert packed.dataset.fingerprint() == known.fingerprint(), file
            # groups that are names are numbered, which one more note says
            assert set(known.notes) <= set(packed.dataset.notes), file
            assert packed.manifest.episodes == known.num_episodes


@pytest.mark.usefixtures("small_pieces")
def test_tables_in_pieces_keep_categories_order_and_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["stay,hour,ward,pulse,drug,score"]
    for stay in range(12):
        for hour in rng.permutation(4):  # unsorted within a stay
            ward = ["a", "b", "late"][min(stay // 5, 2)]
            lines.append(f"{stay},{hour},{ward},{hour + 0.5 * stay},{'xyz'[hour % 3]},{hour}")
    first, second = lines[:27], [lines[0], *lines[27:]]  # a stay spans both files
    (tmp_path / "log-0.csv").write_text("\n".join(first))
    (tmp_path / "log-1.csv").write_text("\n".join(second))
    source: dict[str, Any] = {
        "kind": "csv",
        "path": str(tmp_path / "log-*.csv"),
        "episode": "stay",
        "order": "hour",
        "dones": "truncated",
        "columns": {"observations": ["ward", "pulse"], "actions": "drug", "rewards": "score"},
    }
    packed = pack_source(source, tmp_path / "packed")
    known = load_transition_dataset(source)
    assert_equal(packed.dataset, known)
    assert packed.dataset.spaces.action_labels == ("x", "y", "z")
    assert packed.dataset.spaces.layout == known.spaces.layout
    with pytest.raises(DataError, match="spans two files"):
        pack_source({**source, "order": None}, tmp_path / "other")
    scattered = [lines[0], *lines[1:5], *lines[9:17], *lines[5:9], *lines[1:3]]
    (tmp_path / "scattered.csv").write_text("\n".join(scattered))
    bad = {**source, "path": str(tmp_path / "scattered.csv")}
    with pytest.raises(DataError, match="episode 0 are not consecutive"):
        pack_source(bad, tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["packed"]


def test_rows_on_disk_index_as_arrays_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    first, second = (rng.normal(size=(n, 2)).astype(np.float32) for n in (40, 25))
    first.tofile(tmp_path / "a.bin")
    file = mapped(tmp_path / "a.bin", np.dtype(("<f4", (2,))), 40)
    np.testing.assert_array_equal(file, first)
    rows, array = DiskRows.joined([DiskRows.whole(file), second]), np.concatenate([first, second])
    for _ in range(3):  # chosen again and again
        index = rng.integers(-len(array), len(array), 50)
        for key in (index, slice(3, -4), slice(None, None, 3), -1, index[:0]):
            np.testing.assert_array_equal(rows[key], array[key])
        np.testing.assert_array_equal(rows[2:50, -1:], array[2:50, -1:])
        np.testing.assert_array_equal(np.asarray(rows), array)
        mask = rng.random(len(array)) < 0.8
        np.testing.assert_array_equal(rows[mask], array[mask])
        rows, array = rows.chosen(mask), array[mask]
        assert rows.shape == array.shape
    rows.expect_random_access()
    rows.release_pages(from_bytes=1)
    np.testing.assert_array_equal(np.asarray(rows), array)  # read again
    np.testing.assert_array_equal(rows.chosen(slice(2, 9))[:], array[2:9])


def test_chosen_split_mixed_and_processed_data_equal_those_in_memory(tmp_path: Path) -> None:
    for number, seed in enumerate((3, 4)):
        arrays = log(80)
        arrays["rewards"] = arrays["rewards"] + np.float32(seed)
        np.savez(tmp_path / f"{number}.npz", **arrays)
        pack_source(str(tmp_path / f"{number}.npz"), tmp_path / f"packed-{number}")
    bounds = {"actions": {"kind": "box", "low": -5, "high": 5}}
    prepared = {
        "spaces": bounds,
        "keep": {"top": 0.7},
        "split": {"holdout": 0.3},
        "rewards": {"return_range": 10.0, "shift": 1.0},
    }

    def loaded(kind: str, **keys: Any) -> TransitionDataset:
        path = str(tmp_path / ("packed-{}" if kind == "packed" else "{}.npz"))
        parts = [{"kind": kind, "path": path.format(n), "weight": n + 1.0} for n in (0, 1)]
        parts[1]["max_episodes"] = 9
        return load_transition_dataset({"mix": parts, **prepared, **keys})

    on_disk, known = loaded("packed"), loaded("npz")
    assert on_disk.on_disk
    assert on_disk.parts == known.parts
    assert on_disk.held_out is not None
    assert known.held_out is not None
    assert_equal(on_disk, known)
    assert_equal(on_disk.held_out, known.held_out)
    prints = {on_disk.fingerprint(), loaded("packed").fingerprint()}
    assert len(prints) == 1
    for other in ({"split": {"seed": 1}}, {"keep": {"top": 0.5}}, {"rewards": {"scale": 2.0}}):
        prints.add(loaded("packed", **other).fingerprint())
    assert len(prints) == 4
    assert summarize(on_disk).steps == len(known)


def refused(source: Any, message: str, folder: Path) -> None:
    """One sentence, and nothing half-made."""
    before = sorted(folder.iterdir())
    with pytest.raises(DataError, match=message) as error:
        pack_source(source, folder / "packed")
    assert "\n" not in str(error.value)
    assert sorted(folder.iterdir()) == before


@pytest.mark.usefixtures("small_pieces")
def test_bad_sources_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = log()
    arrays.pop("groups")

    def file(**changes: Any) -> str:
        changed = {**arrays, **changes}
        np.savez(tmp_path / "log.npz", **{k: v for k, v in changed.items() if v is not None})
        return str(tmp_path / "log.npz")

    late = arrays["rewards"].copy()
    late[47] = np.nan
    refused(file(rewards=late), "'rewards' holds NaN at row 47", tmp_path)
    refused(file(actions=None), "missing key 'actions'", tmp_path)
    refused(file(actions=arrays["actions"][:-1]), "unequal numbers of rows", tmp_path)
    flags = arrays["terminations"].astype(np.int64)
    flags[55] = 3
    refused(file(terminations=flags), "'terminations' holds 3 at row 55", tmp_path)
    refused(file(observations=np.asfortranarray(arrays["observations"])), "row by row", tmp_path)
    refused(file(rewards=np.asarray([object()] * 60)), "pickled Python objects", tmp_path)
    path = Path(file())
    path.write_bytes(path.read_bytes()[:-200])
    refused(str(path), "not an npz file, or is damaged", tmp_path)
    refused(str(tmp_path / "none.npz"), "does not exist", tmp_path)
    refused("pendulum-mixed", "kind 'scripted' cannot be packed", tmp_path)
    never = {name: np.zeros(60, bool) for name in ("terminations", "truncations")}
    never["truncations"][:3] = True
    monkeypatch.setattr(pieces, "MOST_OPEN_ROWS", 30)
    refused(file(**never), "no episode ends in the .* rows from row 3 on", tmp_path)


@pytest.mark.usefixtures("small_pieces")
def test_bad_tables_leave_nothing_behind(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns: dict[str, Any] = {
        "episode": np.repeat(np.arange(10), 6),
        "observations": np.arange(60.0),
        "actions": np.arange(60) % 2,
        "rewards": np.ones(60),
    }
    keys = {"kind": "parquet", "path": str(tmp_path / "log.parquet"), "episode": "episode"}
    keys["dones"] = "terminated"

    def write(**changes: Any) -> dict[str, Any]:
        changed = {k: v for k, v in {**columns, **changes}.items() if v is not None}
        parquet.write_table(pa.table(changed), tmp_path / "log.parquet", row_group_size=20)
        return dict(keys)

    ragged = [[1.0, 2.0]] * 50 + [[1.0]] * 10
    refused(write(observations=ragged), "holds 1 numbers in row 50", tmp_path)
    refused(write(actions=None), "no column is called actions", tmp_path)
    gap = [None if n == 41 else 1.0 for n in range(60)]
    refused(write(rewards=gap), "column 'rewards' has no value in row 41", tmp_path)
    refused(write(rewards=[b"x"] * 60), "holds binary, expected numbers", tmp_path)
    refused(write(episode=np.arange(60) % 7), "are not consecutive", tmp_path)
    source = write()
    twice = pa.table([columns["actions"]] * 2, names=["actions", "actions"])
    parquet.write_table(twice, tmp_path / "log.parquet")
    refused(source, "there are two columns 'actions'", tmp_path)
    file = tmp_path / "log.parquet"
    write()
    damaged = bytearray(file.read_bytes())
    damaged[40:400] = b"\xff" * 360
    file.write_bytes(damaged)
    refused(source, "is damaged", tmp_path)
    (tmp_path / "mixed.csv").write_text(
        "episode,observations,actions,rewards\n"
        + "".join(f"{n // 6},{n}.5,{n % 2},1\n" for n in range(200_000))
        + "40000,x,1,1\n"
    )
    mixed = {**keys, "kind": "csv", "path": str(tmp_path / "mixed.csv")}
    refused(mixed, "is damaged, or mixes types in a column", tmp_path)


def test_files_that_cannot_grow_leave_nothing_behind(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **log())
    with small_files(500):
        refused(str(tmp_path / "log.npz"), r"cannot be written \(File too large\)", tmp_path)


def test_changed_and_damaged_folders_are_refused(tmp_path: Path) -> None:
    source, folder = tmp_path / "log.npz", tmp_path / "packed"
    np.savez(source, **log())
    pack_source(str(source), folder)
    with pytest.raises(DataError, match="exists already"):
        pack_source(str(source), folder)
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="exists and is not a packed data set"):
        pack_source(str(source), tmp_path / "other", overwrite=True)

    def wrong(message: str) -> None:
        with pytest.raises(DataError, match=message) as error:
            load_transition_dataset(str(folder))
        assert "\n" not in str(error.value)
        pack_source(str(source), folder, overwrite=True)

    np.savez(source, **{**log(), "rewards": np.zeros(60, np.float32)})
    wrong("its source .* has changed since it was packed")
    source.rename(tmp_path / "moved.npz")  # the packed copy is whole without it
    assert len(load_transition_dataset({"kind": "packed", "path": str(folder)})) == 60
    (tmp_path / "moved.npz").rename(source)
    rewards = folder / "rewards.bin"
    rewards.write_bytes(rewards.read_bytes()[:-4])
    wrong("'rewards.bin' has 236 bytes, expected 240")
    rows = bytearray((folder / TRANSITIONS).read_bytes())
    rows[17] ^= 1
    (folder / TRANSITIONS).write_bytes(rows)
    wrong("'transitions.bin' was changed")
    manifest = json.loads((folder / PACKED_MANIFEST).read_text())
    for key, value in {
        "rows": -3,
        "spaces": {"obs_dim": "x"},
        "action_type": "|O",
        "unknown": 1,
        "format": "other",
    }.items():
        (folder / PACKED_MANIFEST).write_text(json.dumps({**manifest, key: value}))
        wrong("'.*manifest.json' is damaged")
    (folder / PACKED_MANIFEST).write_text(json.dumps({**manifest, "version": 3}))
    wrong("written by a newer version")
    (folder / PACKED_MANIFEST).unlink()
    with pytest.raises(DataError, match=r"has no manifest\.json"):
        load_transition_dataset({"kind": "packed", "path": str(folder)})


def test_packed_data_are_checked_against_the_task(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **log())
    packed = pack_source(str(tmp_path / "log.npz"), tmp_path / "packed")
    with pytest.raises(DataError, match="but the task has"):
        load_transition_dataset(str(tmp_path / "packed"), env_id="CartPole-v1")
    for section in ({"kind": "box", "low": -1, "high": 1}, {"kind": "discrete", "n": 4}):
        with pytest.raises(DataError, match="are not those of the task"):
            load_transition_dataset(
                {"kind": "packed", "path": str(packed.folder), "spaces": {"actions": section}}
            )
    bare = {k: v for k, v in log().items() if k != "rewards"}
    np.savez(tmp_path / "bare.npz", **bare)
    pack_source(str(tmp_path / "bare.npz"), tmp_path / "bare")
    with pytest.raises(DataError, match="has no rewards"):
        load_transition_dataset(str(tmp_path / "bare"))


def test_large_files_are_packed_once_and_anew_where_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "log.npz"
    np.savez(source, **log())
    known = load_transition_dataset(str(source))
    assert not known.on_disk
    other = tmp_path / "other.npz"
    np.savez(other, **log(50))
    assert load_transition_dataset({"kind": "npz", "path": str(other), "home": "disk"}).on_disk
    monkeypatch.setattr(homes, "PACK_FROM_BYTES", 100)
    for said in ("was packed into", "is read from its packed copy in"):
        large = load_transition_dataset(str(source))
        assert large.on_disk
        assert said in large.notes[-1]
        assert_equal(large, known)
        assert large.fingerprint() == known.fingerprint()
    np.savez(source, **log(70))
    assert len(load_transition_dataset(str(source))) == 70
    assert len(list((tmp_path / "cache" / "packed").iterdir())) == 3


def test_the_home_is_a_function_of_sizes() -> None:
    host = MemoryHome(24 * GIB, "cpu")
    card = MemoryHome(16 * GIB, "cuda")
    for needed, device, on_disk, expected in (
        (1 * GIB, host, False, "device"),
        (20 * GIB, host, True, "disk"),
        (10 * GIB, card, False, "device"),
        (14 * GIB, card, True, "host"),
        (20 * GIB, card, True, "disk"),
        (20 * GIB, MemoryHome(None, "cpu"), True, "device"),
    ):
        home, reason = chosen_home("auto", "log", needed, device, host, on_disk)
        assert home == expected
        assert f"{needed / 1e9:,.1f} GB" in reason
    assert chosen_home("disk", "log", 1, host, host, True)[0] == "disk"
    for wanted, needed, on_disk in (
        ("auto", 30 * GIB, False),
        ("device", 30 * GIB, True),
        ("host", 30 * GIB, True),
        ("disk", 1, False),
    ):
        with pytest.raises(RLTrainingError, match="rl-training data pack"):
            chosen_home(wanted, "log", needed, host, host, on_disk)  # type: ignore[arg-type]


def test_data_in_memory_have_no_home_on_disk() -> None:
    dataset = load_transition_dataset(log())
    assert dataset.in_memory() is dataset
    with pytest.raises(ConfigError, match="is not packed"):
        chosen_home("disk", dataset.name, 1, MemoryHome(1, "cpu"), MemoryHome(1, "cpu"), False)


def test_large_statistics_are_those_of_small_ones() -> None:
    dataset = load_transition_dataset(log(400))
    whole = statistics.mean_and_std(dataset)
    for ours, theirs in zip(statistics.mean_and_std(dataset, at_once=64), whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert set(WIDE) < set(ARRAY_NAMES)


@pytest.mark.usefixtures("small_pieces")
def test_huge_data_are_summed_up_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their statistics are those of others but for rounding, and their fingerprint their own."""
    np.savez(tmp_path / "log.npz", **log(400))
    whole = pack_source(str(tmp_path / "log.npz"), tmp_path / "whole").dataset
    monkeypatch.setattr(pack_writer, "AS_IN_MEMORY_UP_TO", 100)
    huge = pack_source(str(tmp_path / "log.npz"), tmp_path / "huge").dataset
    assert huge.statistics is not None
    assert whole.statistics is not None
    for ours, theirs in zip(huge.statistics, whole.statistics, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    changed = log(400)
    changed["rewards"][7] += 1.0
    np.savez(tmp_path / "other.npz", **changed)
    other = pack_source(str(tmp_path / "other.npz"), tmp_path / "other").dataset
    assert len({whole.fingerprint(), huge.fingerprint(), other.fingerprint()}) == 3


def test_the_command_packs_inspects_and_trains(tmp_path: Path, cli: Any) -> None:
    np.savez(tmp_path / "log.npz", **log(discrete=True))
    folder = tmp_path / "packed"
    packed = cli("data", "pack", tmp_path / "log.npz", "--out", folder)
    assert packed.code == 0
    assert "packed 60 steps" in packed.out
    again = cli("data", "pack", tmp_path / "log.npz", "--out", folder)
    assert again.code == 2
    assert len(again.error_lines) == 1
    inspected = cli("data", "inspect", folder)
    assert inspected.code == 0
    assert "Discrete(4)" in inspected.out
    keys = ("env_id=null", "total_updates=3", "algo_kwargs.hidden_sizes=[8]", "tensorboard=false")
    trained = cli(
        "train", "bc/default", f"dataset={folder}", "dataset.home=disk",
        f"output_dir={tmp_path / 'runs'}", *keys,
    )  # fmt: skip
    assert trained.code == 0, trained.err
    assert "lives on disk (asked for)" in trained.out + trained.err
