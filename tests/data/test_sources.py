"""Files, Minari, mixes and what is wrong with them."""

from __future__ import annotations

import dataclasses
import pickle
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from rl_training.data.convert import save_dataset
from rl_training.data.sources import load_transition_dataset
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import DatasetConfig
from rl_training.experiment.errors import ConfigError, DataError, MissingExtraError

from ..each import each


def _npz(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def _hdf5(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array
    return path


def _d4rl(arrays: dict[str, Any]) -> dict[str, Any]:
    names = {"terminations": "terminals", "truncations": "timeouts"}
    return {names.get(key, key): array for key, array in arrays.items()}


@each("rename", [dict, _d4rl], ids=["own names", "D4RL names"])
@each("write", [_npz, _hdf5])
def test_files(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces, write: Any, rename: Any
) -> None:
    suffix = ".npz" if write is _npz else ".hdf5"
    path = write(tmp_path / f"data{suffix}", {**rename(arrays), "extra": np.zeros(3)})
    for source in (path, str(path), {"kind": suffix[1:], "path": str(path)}):
        dataset = load_transition_dataset(source, spaces=box_spaces)
        assert dataset.name == str(path)
        assert dataset.notes == ()
        for name, array in dataset.to_arrays().items():
            np.testing.assert_array_equal(array, arrays[name])


def test_aliases(tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces) -> None:
    names = ("obs", "acts", "reward", "next_obs", "terminated", "truncated")
    renamed = dict(zip(names, arrays.values(), strict=True))
    dataset = load_transition_dataset(_npz(tmp_path / "a.npz", renamed), spaces=box_spaces)
    assert dataset.episode_returns().tolist() == [6.0, 9.0]
    assert load_transition_dataset(renamed, spaces=box_spaces).episode_returns().sum() == 15.0
    renamed["reward"] = np.full(5, np.nan)
    with pytest.raises(DataError, match="array 'reward' holds NaN at row 0"):
        load_transition_dataset(renamed, spaces=box_spaces)
    both = {**arrays, "terminals": arrays["terminations"]}
    with pytest.raises(DataError, match="'terminations' and 'terminals' mean the same"):
        load_transition_dataset(both, spaces=box_spaces)


@pytest.mark.parametrize("write", [_npz, _hdf5])
def test_successors_from_the_next_row(tmp_path: Path, write: Any) -> None:
    suffix = ".npz" if write is _npz else ".h5"
    # terminated 0 1 2 | truncated 3 4 5 | truncated 6 | terminated 7 | truncated 8 | open 9 10
    count = 11
    stored = {
        "observations": np.arange(count, dtype=np.float32)[:, None],
        "actions": np.arange(count, dtype=np.float32)[:, None],
        "rewards": np.arange(count, dtype=np.float32),
        "terminals": np.isin(np.arange(count), [2, 7]),
        "timeouts": np.isin(np.arange(count), [5, 6, 8]),
    }
    dataset = load_transition_dataset(write(tmp_path / f"x{suffix}", stored))
    assert dataset.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 7, 9]
    assert dataset.next_observations[:, 0].tolist() == [1, 2, 2, 4, 5, 7, 10]
    assert dataset.rewards.tolist() == [0, 1, 2, 3, 4, 7, 9]
    assert np.flatnonzero(dataset.terminations).tolist() == [2, 5]
    assert np.flatnonzero(dataset.truncations).tolist() == [4, 6]
    assert dataset.episode_lengths().tolist() == [3, 2, 1, 1]
    assert any("4 rows dropped" in note for note in dataset.notes)
    stored["terminals"][:] = False
    stored["timeouts"][:] = True
    with pytest.raises(DataError, match="no row has a successor"):
        load_transition_dataset(stored)


class _Planted:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_a_pickle_does_not_run(tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces) -> None:
    ran = tmp_path / "ran"
    planted = np.array([_Planted(ran)] * 5, dtype=object)
    path = _npz(tmp_path / "planted.npz", {**arrays, "rewards": planted})
    with pytest.raises(DataError, match="'rewards' holds pickled Python objects, which are not"):
        load_transition_dataset(path, spaces=box_spaces)
    bare = tmp_path / "bare.npz"
    bare.write_bytes(pickle.dumps(_Planted(ran)))
    with pytest.raises(DataError, match="is not an npz file"):
        load_transition_dataset(bare)
    assert not ran.exists()
    np.load(path, allow_pickle=True)["rewards"]  # the trap itself works
    assert ran.exists()


def test_files_that_are_not_what_they_should_be(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    _npz(tmp_path / "data.npz", arrays)
    with pytest.raises(DataError, match=r"dat.npz' does not exist \(did you mean 'data.npz'\?\)"):
        load_transition_dataset(tmp_path / "dat.npz")
    with pytest.raises(DataError, match=r"hdf5 file '.*' does not exist"):
        load_transition_dataset("/no/such/folder/data.h5")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(DataError, match="is a folder, expected a npz file"):
        load_transition_dataset(tmp_path / "folder.npz")
    np.save(tmp_path / "single.npy", arrays["rewards"])
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    (tmp_path / "text.npz").write_text("observations,actions")
    (tmp_path / "text.h5").write_text("observations,actions")
    (tmp_path / "empty.npz").touch()
    whole = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("single.npz", "text.npz", "empty.npz", "torn.npz"):
        with pytest.raises(DataError, match=rf"{name}' is not an npz file, or is damaged"):
            load_transition_dataset(tmp_path / name)
    with pytest.raises(DataError, match="is not an hdf5 file, or is damaged"):
        load_transition_dataset(tmp_path / "text.h5")
    flipped = bytearray(whole)
    position = whole.index(arrays["observations"].tobytes())
    flipped[position] ^= 255
    (tmp_path / "flipped.npz").write_bytes(flipped)
    with pytest.raises(DataError, match="array 'observations' is damaged"):
        load_transition_dataset(tmp_path / "flipped.npz", spaces=box_spaces)


@pytest.mark.parametrize("write", [_npz, _hdf5])
def test_missing_keys(tmp_path: Path, arrays: dict[str, Any], write: Any) -> None:
    arrays["observation"] = arrays.pop("observations")
    del arrays["truncations"]
    path = write(tmp_path / ("x.npz" if write is _npz else "x.h5"), arrays)
    expected = r"missing keys 'observations' \(did you mean 'observation'\?\), 'truncations'"
    with pytest.raises(DataError, match=expected):
        load_transition_dataset(path)


@pytest.mark.parametrize("write", [_npz, _hdf5])
def test_without_rewards(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces, write: Any
) -> None:
    whole = load_transition_dataset(arrays, spaces=box_spaces)
    del arrays["rewards"]
    path = write(tmp_path / ("x.npz" if write is _npz else "x.h5"), arrays)
    for source in (path, arrays):
        with pytest.raises(DataError, match=r"missing key 'rewards'; .* needed are .*rewards"):
            load_transition_dataset(source, spaces=box_spaces)
        dataset = load_transition_dataset(source, spaces=box_spaces, needs_rewards=False)
        assert not dataset.has_rewards
        assert np.isnan(dataset.rewards).all()
        assert dataset.notes == ("there are no rewards",)
        for name, array in dataset.known_arrays().items():
            np.testing.assert_array_equal(array, getattr(whole, name))
        assert sorted({*whole.to_arrays()} - {*dataset.known_arrays()}) == ["rewards"]
        again = load_transition_dataset(dataset, spaces=box_spaces, needs_rewards=False)
        assert again is dataset
        with pytest.raises(DataError, match=r"has no rewards, .* add the array 'rewards'"):
            load_transition_dataset(dataset, spaces=box_spaces)
    assert whole.has_rewards
    assert load_transition_dataset(whole, spaces=box_spaces, needs_rewards=False).has_rewards
    del arrays["truncations"]
    with pytest.raises(DataError, match=r"missing key 'truncations'; .* actions, terminations"):
        load_transition_dataset(arrays, needs_rewards=False)


def test_rewards_that_are_there_are_checked_all_the_same(
    arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    arrays["rewards"][3] = np.nan
    with pytest.raises(DataError, match="'rewards' holds NaN at row 3"):
        load_transition_dataset(arrays, spaces=box_spaces, needs_rewards=False)


def test_an_hdf5_link_that_leads_nowhere(tmp_path: Path, arrays: dict[str, Any]) -> None:
    for name, link in {
        "itself": h5py.SoftLink("/observations"),
        "nothing": h5py.SoftLink("/nothing"),
        "elsewhere": h5py.ExternalLink(str(tmp_path / "none.h5"), "/observations"),
    }.items():
        path = _hdf5(tmp_path / f"{name}.h5", arrays)
        with h5py.File(path, "a") as file:
            del file["observations"]
            file["observations"] = link
        with pytest.raises(DataError, match="'observations' is not an array of this file, but a"):
            load_transition_dataset(path)


def test_an_hdf5_file_does_not_read_others(tmp_path: Path, arrays: dict[str, Any]) -> None:
    """Whoever made it could otherwise show the numbers of any file as data."""
    rewards = np.asarray(arrays["rewards"], np.float32)
    secret = tmp_path / "secret"
    secret.write_bytes(rewards.tobytes())
    other = _hdf5(tmp_path / "other.h5", arrays)

    def raw(file: h5py.File) -> None:
        storage = [(str(secret), 0, rewards.nbytes)]
        file.create_dataset("rewards", rewards.shape, rewards.dtype, external=storage)

    def virtual(file: h5py.File) -> None:
        layout = h5py.VirtualLayout(rewards.shape, rewards.dtype)
        layout[:] = h5py.VirtualSource(str(other), "rewards", rewards.shape)
        file.create_virtual_dataset("rewards", layout)

    def linked(file: h5py.File) -> None:
        file["rewards"] = h5py.ExternalLink(str(other), "/rewards")

    for number, elsewhere in enumerate((raw, virtual, linked)):
        path = _hdf5(tmp_path / f"{number}.h5", arrays)
        with h5py.File(path, "a") as file:
            del file["rewards"]
            elsewhere(file)
        words = (
            "'rewards' is not an array of this file" if elsewhere is linked else "in another file"
        )
        with pytest.raises(DataError, match=words):
            load_transition_dataset(path)


def test_unknown_sources() -> None:
    with pytest.raises(ConfigError, match=r"'pendulum-mixe' is unknown \(did you mean 'pend"):
        load_transition_dataset("pendulum-mixe")
    with pytest.raises(ConfigError, match="a path ending in"):
        load_transition_dataset("data.txt")
    with pytest.raises(DataError, match="cannot be made from int"):
        load_transition_dataset(3)  # type: ignore[arg-type]


@each("source", ["arrays", "npz", "hdf5", "minari"])
def test_both_flags_on_one_row_are_a_termination(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces, source: str
) -> None:
    whole = load_transition_dataset(arrays, spaces=box_spaces)
    arrays["truncations"] = np.array([0, 0, 1, 0, 1], bool)
    given: Any = arrays
    if source in ("npz", "hdf5"):
        given = (_npz if source == "npz" else _hdf5)(tmp_path / f"x.{source}", arrays)
    elif source == "minari":
        both = dataclasses.replace(whole, truncations=arrays["truncations"])
        given = save_dataset(both, "minari:toy/both-v0")
    dataset = load_transition_dataset(given, spaces=box_spaces)
    assert dataset.fingerprint() == whole.fingerprint()
    note = "1 rows are marked as both terminated and truncated; the termination counts"
    assert dataset.notes == (note,)


def test_what_flags_alone_lack(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    truncations, terminations = arrays.pop("truncations"), arrays["terminations"]
    with pytest.raises(DataError, match=r"add zeros as truncations if no episode was cut$"):
        load_transition_dataset(arrays, spaces=box_spaces)
    arrays["dones"] = arrays.pop("terminations") | truncations
    with pytest.raises(DataError, match=r"'dones' does not say .* terminations = dones & ~trunc"):
        load_transition_dataset(arrays, spaces=box_spaces)
    arrays["truncations"] = truncations
    del arrays["dones"]
    with pytest.raises(DataError, match="add zeros as terminations if the task never ends by"):
        load_transition_dataset(arrays, spaces=box_spaces)
    load_transition_dataset({**arrays, "terminations": terminations}, spaces=box_spaces)


def test_a_key_that_is_nearly_right_is_not_left_unread(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    arrays["next_observation"] = arrays.pop("next_observations")
    path = _npz(tmp_path / "x.npz", arrays)
    for source in (arrays, path):
        with pytest.raises(DataError, match="'next_observation' is not known; rename it to 'next_"):
            load_transition_dataset(source, spaces=box_spaces)


def test_a_key_that_leads_to_no_array_is_not_one_that_is_missing(
    tmp_path: Path, arrays: dict[str, Any]
) -> None:
    del arrays["rewards"]  # which are optional here
    for index, link in enumerate(
        (h5py.SoftLink("/no"), h5py.ExternalLink("/etc/hosts", "x"), None)
    ):
        path = _hdf5(tmp_path / f"{index}.h5", arrays)
        with h5py.File(path, "a") as file:
            if link is None:
                file.create_group("rewards")
            else:
                file["rewards"] = link
        with pytest.raises(
            DataError, match="'rewards' is not an array of this file, but a group or a"
        ):
            load_transition_dataset(path, needs_rewards=False)


def test_arrays_with_misspelt_observations(arrays: dict[str, Any]) -> None:
    arrays["observtions"] = arrays.pop("observations")
    with pytest.raises(DataError, match=r"missing key 'observations' \(did you mean 'observtions'"):
        load_transition_dataset(arrays)


def test_an_index_of_states_is_no_magnitude(arrays: dict[str, Any]) -> None:
    arrays["observations"] = arrays["next_observations"] = np.arange(5)
    with pytest.raises(DataError, match=r"choices: \[16\]") as caught:
        load_transition_dataset(arrays)
    assert "reshape" not in str(caught.value)
    arrays["observations"] = np.arange(5.0)
    with pytest.raises(DataError, match=r"reshape it, e\.g\. with \.reshape\(5, -1\)"):
        load_transition_dataset(arrays)


def test_values_that_would_be_changed_in_silence(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    mask = np.arange(5) == 2
    rows = [np.ma.array(row, mask=[False, i == 2]) for i, row in enumerate(arrays["observations"])]
    for name, value, words in (
        ("rewards", np.ma.array(arrays["rewards"], mask=mask), "'rewards' has masked values"),
        ("observations", rows, "'observations' has masked values"),
        ("observations", arrays["observations"] + 1j, "'observations' has dtype complex"),
        ("terminations", 0.5 * mask, "'terminations' holds 0.5 at row 2"),
        ("terminations", np.where(mask, "True", "False"), "'terminations' has dtype <U5"),
    ):
        with pytest.raises(DataError, match=words):
            load_transition_dataset({**arrays, name: value}, spaces=box_spaces)
    unmasked = np.ma.array(arrays["rewards"], mask=False)
    load_transition_dataset({**arrays, "rewards": unmasked}, spaces=box_spaces)
    path = _npz(tmp_path / "x.npz", {**arrays, "observations": arrays["observations"] + 1j})
    with pytest.raises(DataError, match="'observations' has dtype complex"):
        load_transition_dataset(path, spaces=box_spaces)


def test_hostile_headers(tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces) -> None:
    """A shape that is none, and more than there can be."""
    for shape, words in (
        ("(True,)", "array 'rewards' is damaged"),
        ("(1000000000000000,)", "array 'rewards' is damaged"),
        ("(-5,)", "array 'rewards' is damaged"),
    ):
        path = _npz(tmp_path / "x.npz", arrays)
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117)
        member = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.encode() + b"\n"
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as file:
                    if name == "rewards":
                        file.write(member + array.tobytes())
                    else:
                        np.lib.format.write_array(file, array)
        with pytest.raises(DataError, match=words):
            load_transition_dataset(path, spaces=box_spaces)


def test_declared_sizes_are_checked_before_reading(
    tmp_path: Path, arrays: dict[str, Any], free_memory: Callable[[int | None], None]
) -> None:
    free_memory(10**6)
    many = {name: np.repeat(array, 50_000, axis=0) for name, array in arrays.items()}
    for path in (_npz(tmp_path / "x.npz", many), _hdf5(tmp_path / "x.h5", many)):
        with pytest.raises(DataError, match=r"the arrays would take 0\.0 GB, but 0\.0 GB are free"):
            load_transition_dataset(path)


def test_an_hdf5_array_that_was_never_written(tmp_path: Path, arrays: dict[str, Any]) -> None:
    for chunks in (None, (1 << 20,)):
        path = _hdf5(tmp_path / "sparse.h5", arrays)
        with h5py.File(path, "a") as file:
            del file["rewards"]
            file.create_dataset("rewards", (1 << 28,), "f4", chunks=chunks)
        start = time.process_time()
        with pytest.raises(DataError, match=r"'rewards' declares 1\.1 GB, of which .* 0 bytes"):
            load_transition_dataset(path)
        assert time.process_time() - start < 5.0


def test_damaged_hdf5_files_are_refused_in_a_sentence(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    """Inserted bytes make h5py raise many things, also while keys are listed."""
    whole = _hdf5(tmp_path / "whole.h5", arrays).read_bytes()
    path, refusals = tmp_path / "damaged.h5", []
    for place in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:place] + b"\x00\x07\xff" + whole[place:])
        try:
            load_transition_dataset(path, spaces=box_spaces)
        except DataError as error:
            refusals.append(str(error))
    assert len(refusals) > 20
    assert not [text for text in refusals if "\n" in text]


# --- Minari ----------------------------------------------------------------------------------


def _record(
    lengths: list[int], dataset_id: str = "toy/steps-v0", **changes: Any
) -> list[EpisodeBuffer]:
    """Episodes whose observation t is 100 * episode + t, action t half of it, reward t."""
    buffers = []
    for index, length in enumerate(lengths):
        ends = np.arange(length) == length - 1
        values: dict[str, Any] = {
            "observations": (100.0 * index + np.arange(length + 1, dtype=np.float32))[:, None],
            "actions": 0.5 * (100.0 * index + np.arange(length, dtype=np.float32))[:, None],
            "rewards": np.arange(length, dtype=np.float32),
            "terminations": ends & (index % 2 == 0),
            "truncations": ends & (index % 2 == 1),
        }
        buffers.append(EpisodeBuffer(**{**values, **changes}))
    minari.create_dataset_from_buffers(
        dataset_id,
        buffers,
        observation_space=gym.spaces.Box(-1e4, 1e4, (1,), np.float32),
        action_space=gym.spaces.Box(-200.0, 200.0, (1,), np.float32),
    )
    return buffers


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_rows_join_each_state_with_its_successor() -> None:
    _record([3, 1, 4])
    dataset = load_transition_dataset("minari:toy/steps-v0")
    assert dataset.observations[:, 0].tolist() == [0, 1, 2, 100, 200, 201, 202, 203]
    assert dataset.next_observations[:, 0].tolist() == [1, 2, 3, 101, 201, 202, 203, 204]
    assert (dataset.actions[:, 0] * 2).tolist() == dataset.observations[:, 0].tolist()
    assert dataset.rewards.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert np.flatnonzero(dataset.terminations).tolist() == [2, 7]
    assert np.flatnonzero(dataset.truncations).tolist() == [3]
    assert dataset.episode_lengths().tolist() == [3, 1, 4]
    assert dataset.spaces == Spaces(1, "box", 1, (-200.0,), (200.0,))
    assert dataset.notes == ()
    shorter = load_transition_dataset({"kind": "minari", "id": "toy/steps-v0", "max_episodes": 2})
    assert shorter.episode_lengths().tolist() == [3, 1]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_flags() -> None:
    both = np.array([False, False, True])
    _record([3], "toy/both-v0", terminations=both, truncations=both)
    dataset = load_transition_dataset("minari:toy/both-v0")
    assert dataset.terminations.tolist() == both.tolist()
    assert not dataset.truncations.any()
    none = np.zeros(3, bool)
    _record([3, 3], "toy/open-v0", terminations=none, truncations=none)
    dataset = load_transition_dataset("minari:toy/open-v0")
    assert np.flatnonzero(dataset.truncations).tolist() == [2, 5]
    assert "2 episodes have no end flag" in dataset.notes[0]
    _record([3], "toy/half-v0", terminations=np.array([0.0, 0.5, 1.0]))
    with pytest.raises(DataError, match=r"'terminations' holds 0\.5 at row 1"):
        load_transition_dataset("minari:toy/half-v0")
    short = np.zeros((3, 1), np.float32)
    _record([3], "toy/short-v0", observations=short)
    with pytest.raises(DataError, match="episode 0 has 3 observations for 3 steps, expected 4"):
        load_transition_dataset("minari:toy/short-v0")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_episodes_that_do_not_fit_together(tmp_path: Path) -> None:
    """Written into the file, since Minari itself would refuse to."""
    changes: tuple[tuple[str, Any, str], ...] = (
        ("observations", np.zeros((4, 2), np.float32), r"observations of episode 1 have the shape"),
        ("truncations", np.array([b"False"] * 3), r"truncations of episode 1 are \|S5, those of"),
        ("actions", np.zeros((2, 1), np.float32), r"episode 1 has 2 actions for 3 rewards"),
    )
    for index, (name, value, words) in enumerate(changes):
        _record([3, 3], f"toy/odd-v{index}")
        (stored,) = (tmp_path / "minari" / f"toy/odd-v{index}").rglob("*.hdf5")
        with h5py.File(stored, "a") as file:
            del file[f"episode_1/{name}"]
            file[f"episode_1/{name}"] = value
        with pytest.raises(DataError, match=words):
            load_transition_dataset(f"minari:toy/odd-v{index}")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_sizes_are_checked_before_reading(
    tmp_path: Path, free_memory: Callable[[int | None], None]
) -> None:
    _record([3, 3])
    (stored,) = (tmp_path / "minari").rglob("*.hdf5")
    free_memory(10)
    with pytest.raises(DataError, match="the arrays would take"):
        load_transition_dataset("minari:toy/steps-v0")
    free_memory(None)
    with h5py.File(stored, "a") as file:
        del file["episode_0/rewards"]
        file.create_dataset("episode_0/rewards", (1 << 28,), "f4", chunks=(1 << 20,))
    with pytest.raises(DataError, match=r"declares 1\.1 GB, of which the file holds 0 bytes"):
        load_transition_dataset("minari:toy/steps-v0")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_recorded_by_its_own_collector() -> None:
    env = minari.DataCollector(gym.make("CartPole-v1"))
    seen: list[tuple[Any, Any]] = []
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        done = False
        while not done:
            successor, _, terminated, truncated, _ = env.step(int(observation[2] > 0))
            seen.append((observation, successor))
            observation, done = successor, terminated or truncated
    env.create_dataset("cart/pole-v0")
    env.close()
    dataset = load_transition_dataset("minari:cart/pole-v0", env_id="CartPole-v1")
    np.testing.assert_array_equal(dataset.observations, np.stack([one for one, _ in seen]))
    np.testing.assert_array_equal(dataset.next_observations, np.stack([two for _, two in seen]))
    assert dataset.num_episodes == 3
    assert dataset.spaces.is_discrete
    assert dataset.env_id == "CartPole-v1"
    assert dataset.notes == ()
    with pytest.raises(DataError, match="4 wide but the environment's observations are 3 wide"):
        load_transition_dataset("minari:cart/pole-v0", env_id="Pendulum-v1")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari_refusals() -> None:
    with pytest.raises(DataError, match=r"present are none; run: minari download toy/steps-v0"):
        load_transition_dataset("minari:toy/steps-v0")
    _record([2], "toy/steps-v1")
    assert load_transition_dataset("minari:toy/steps-v1").num_episodes == 1
    with pytest.raises(DataError, match=r"not on this machine.*present are toy/steps-v1; run"):
        load_transition_dataset("minari:toy/steps-v0")
    space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    observations = np.zeros((3, 1), np.float32)
    minari.create_dataset_from_buffers(
        "toy/dict-v0",
        [
            EpisodeBuffer(
                observations={"a": observations, "b": observations},
                actions=np.zeros((2, 1), np.float32),
                rewards=[0.0, 0.0],
                terminations=[False, True],
                truncations=[False, False],
            )
        ],
        observation_space=gym.spaces.Dict(a=space, b=space),
        action_space=space,
    )
    with pytest.raises(DataError, match="observation space Dict is not supported; record"):
        load_transition_dataset("minari:toy/dict-v0")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_minari_data(tmp_path: Path) -> None:
    _record([2])
    (stored,) = (tmp_path / "minari").rglob("*.hdf5")
    stored.write_bytes(stored.read_bytes()[:500])
    with pytest.raises(DataError, match=r"cannot be read .*; run: minari download --force toy"):
        load_transition_dataset("minari:toy/steps-v0")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_data_of_a_sister_environment_get_a_note() -> None:
    env = minari.DataCollector(gym.make("CartPole-v1"))
    env.reset(seed=0)
    while not env.step(0)[2]:
        pass
    env.create_dataset("cart/pole-v0")
    env.close()
    gym.register("SisterCart-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
    try:
        dataset = load_transition_dataset("minari:cart/pole-v0", env_id="SisterCart-v0")
    finally:
        del gym.registry["SisterCart-v0"]
    assert dataset.notes == ("made in CartPole-v1, used for SisterCart-v0",)
    assert dataset.env_id == "SisterCart-v0"


def test_optional_packages_name_their_extra(
    tmp_path: Path, arrays: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _hdf5(tmp_path / "x.h5", arrays)

    for name in ("h5py", "minari"):
        monkeypatch.setitem(sys.modules, name, None)  # its import fails
    with pytest.raises(MissingExtraError, match=r"hdf5 file needs .*pip install .*h5py"):
        load_transition_dataset(path)
    with pytest.raises(MissingExtraError, match=r"Minari data set .*pip install .*minari"):
        load_transition_dataset("minari:toy/steps-v0")


# --- mixing and processing -------------------------------------------------------------------


def test_mix_with_weights(tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces) -> None:
    one = _npz(tmp_path / "one.npz", arrays)
    open_end = {name: array[:4] for name, array in arrays.items()}  # its last row is open
    open_end["actions"] = open_end["actions"] * np.float32(0.5)
    two = _hdf5(tmp_path / "two.h5", _d4rl(open_end))
    mix = [
        {"kind": "hdf5", "path": str(two), "weight": 3.0},
        {"kind": "npz", "path": str(one), "max_episodes": 1},
    ]
    config = DatasetConfig.parse({"mix": mix, "rewards": {"return_range": 1.0}})
    dataset = load_transition_dataset(config)
    assert dataset.parts == ((4, 3.0), (3, 1.0))
    assert dataset.episode_lengths().tolist() == [3, 1, 3]
    # Returns 6, 4, 6 over the whole mix: the range is 2.
    np.testing.assert_allclose(dataset.episode_returns(), [3.0, 2.0, 3.0])
    # Without an environment one action space must hold all parts.
    assert dataset.spaces == box_spaces
    assert dataset.notes[0].startswith(f"{two}: the last episode has no end")
    assert "inferred" in dataset.notes[-1]
    discrete = _npz(tmp_path / "three.npz", {**arrays, "actions": np.zeros(5, np.int64)})
    mix[1] = {"kind": "npz", "path": str(discrete)}
    with pytest.raises(DataError, match=r"three.npz': array 'actions' is discrete, unlike"):
        load_transition_dataset({"mix": mix})


def test_mix_takes_the_spaces_of_the_part_that_knows_them(tmp_path: Path) -> None:
    stored = {
        "observations": np.zeros((4, 3), np.float32),
        "actions": np.zeros((4, 1), np.float32),
        "rewards": np.zeros(4, np.float32),
        "terminations": np.zeros(4, bool),
        "truncations": np.array([0, 0, 0, 1], bool),
    }
    path = _npz(tmp_path / "zeros.npz", stored)
    mix = [
        {"kind": "npz", "path": str(path)},
        {"kind": "scripted", "name": "pendulum-expert", "max_episodes": 2},
    ]
    dataset = load_transition_dataset({"mix": mix})
    assert dataset.spaces == Spaces(3, "box", 1, (-2.0,), (2.0,))
    assert dataset.parts == ((3, 1.0), (400, 1.0))


def test_config_processing(tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces) -> None:
    path = _npz(tmp_path / "x.npz", arrays)
    dataset = load_transition_dataset(
        {"kind": "npz", "path": str(path), "max_episodes": 1, "rewards": {"scale": 2.0}},
        spaces=box_spaces,
    )
    assert dataset.rewards.tolist() == [2.0, 4.0, 6.0]
