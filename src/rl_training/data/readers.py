"""Reading npz, hdf5 and Minari into unchecked arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.data.files import damage, optional_module
from rl_training.data.keys import named_apart, select_keys, with_both_flags
from rl_training.data.table_files import file_columns
from rl_training.data.validation import RawTransitions
from rl_training.envs.spaces import Spaces
from rl_training.experiment.data_config import FILE_KINDS, TABLE_KINDS
from rl_training.experiment.errors import (
    DataError,
    EnvironmentSetupError,
    RLTrainingError,
    did_you_mean,
)
from rl_training.experiment.files import bring_back
from rl_training.experiment.memory import require_data_memory

SPARSE_FROM_BYTES = 1 << 26
MOST_COMPRESSED = 1100
"""Times that gzip makes an array smaller at most; what is smaller was never written."""


def read_arrays(
    arrays: Mapping[str, Any],
    name: str = "arrays",
    *,
    needs_rewards: bool = True,
    group: str | None = None,
    dones: str | None = None,
) -> RawTransitions:
    """Arrays in memory, copied, so that later changes by the caller do not reach the data."""
    arrays = named_apart(arrays)
    keys = select_keys(list(arrays), name, needs_rewards, group, dones)
    copies: dict[str, NDArray[Any]] = {}
    for ours, theirs in keys.items():
        if _has_masked_values(arrays[theirs]):
            raise DataError(
                f"{name}: array '{theirs}' has masked values, which hold no number; fill them, "
                "or leave out their rows"
            )
        with damage(
            f"{name}: array '{theirs}' cannot be read as an array of numbers; give rows of "
            "equal length, of a type that NumPy has"
        ):
            copies[ours] = np.array(_on_host(arrays[theirs]))
    if dones is not None:
        with_both_flags(copies, keys, dones)
    return RawTransitions(label=name, name=name, arrays=copies, keys=keys)


def read_file_arrays(path: str | Path, option: str | None = None) -> dict[str, NDArray[Any]]:
    """All top-level arrays of an npz or hdf5 file, or columns of a table, under the names they
    have there. A missing file is answered with the `option` that names it, or else with the keys
    of a config."""
    path = Path(path)
    kind = FILE_KINDS.get(path.suffix.lower(), "npz")
    if option is not None:
        require_file(path, kind, option)
    if kind in TABLE_KINDS:
        return file_columns(path)
    return (_hdf5_arrays if kind == "hdf5" else _npz_arrays)(path, None)


def read_file_array(path: str, kind: str, name: str) -> NDArray[Any]:
    """One array of an npz or hdf5 file, whatever it is."""

    def only(present: list[str]) -> list[str]:
        if name not in present:
            raise DataError(
                f"'{path}' has no array '{name}'{did_you_mean(name, present)}; it has "
                f"{', '.join(present)}"
            )
        return [name]

    return (_hdf5_arrays if kind == "hdf5" else _npz_arrays)(Path(path), only)[name]


def read_npz(
    path: str | Path,
    *,
    needs_rewards: bool = True,
    group: str | None = None,
    dones: str | None = None,
) -> RawTransitions:
    """A NumPy archive with the keys observations, actions, rewards, terminations,
    truncations and optionally next_observations, or their `ALIASES`, which include
    D4RL's terminals and timeouts. Pickled objects are never loaded."""
    return _raw_file(Path(path), "npz", needs_rewards, group, dones)


def read_hdf5(
    path: str | Path,
    *,
    needs_rewards: bool = True,
    group: str | None = None,
    dones: str | None = None,
) -> RawTransitions:
    """An HDF5 file with the D4RL keys at top level, or the names that npz files use."""
    return _raw_file(Path(path), "hdf5", needs_rewards, group, dones)


def _raw_file(
    path: Path, kind: str, needs_rewards: bool, group: str | None, dones: str | None
) -> RawTransitions:
    label = f"{kind} file '{path}'"
    keys: dict[str, str] = {}

    def choose(present: list[str]) -> list[str]:
        keys.update(select_keys(present, label, needs_rewards, group, dones))
        return list(keys.values())

    reader = _npz_arrays if kind == "npz" else _hdf5_arrays
    stored = reader(path, choose)
    arrays = {ours: stored[theirs] for ours, theirs in keys.items()}
    if dones is not None:
        with_both_flags(arrays, keys, dones)
    return RawTransitions(label=label, name=str(path), arrays=arrays, keys=keys)


def require_file(path: Path, kind: str, option: str | None = None) -> None:
    """Refuse a path that is no file which may be read; `option` named it, or else a config."""
    asked = "" if option is None else f"{option}: "
    if not path.exists():
        folder = path.parent
        beside = [p.name for p in folder.iterdir() if p.is_file()] if folder.is_dir() else []
        keys = " (dataset.path in a config; after 'resume RUN', dataset.path=FILE)"
        raise DataError(
            f"{asked}{kind} file '{path}' does not exist{did_you_mean(path.name, beside)}; "
            f"correct the path{keys if option is None else ''}"
        )
    if not path.is_file():
        what = "folder" if path.is_dir() else "device or pipe"
        raise DataError(f"{asked}'{path}' is a {what}, expected a {kind} file; correct the path")
    if not os.access(path, os.R_OK):
        raise DataError(f"{asked}{kind} file '{path}' may not be read; change its permissions")


Chooser = Callable[[list[str]], list[str]]
"""Maps the arrays of a file to those that are needed."""


def _npz_arrays(path: Path, choose: Chooser | None) -> dict[str, NDArray[Any]]:
    require_file(path, "npz")
    label = f"npz file '{path}'"
    unknown = (
        f"'{path}' is not an npz file, or is damaged; write it with numpy.savez, "
        "or set dataset.kind to what it is"
    )
    with damage(unknown):
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(unknown)
        stored = list(archive.files)
    with archive:
        chosen = choose(stored) if choose else stored
        with damage(unknown):
            members = [] if archive.zip is None else archive.zip.infolist()
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in members}
        require_data_memory(label, sum(sizes.get(key, 0) for key in chosen))
        return {key: _npz_array(archive, key, label) for key in chosen}


def _npz_array(archive: Any, key: str, label: str) -> NDArray[Any]:
    with damage(f"{label}: array '{key}' is damaged; write the file again"):
        try:
            stored = archive[key]
        except ValueError as error:
            if "pickle" in str(error):
                raise DataError(
                    f"{label}: array '{key}' holds pickled Python objects, which "
                    "are not loaded because that could run code; store plain numbers"
                ) from None
            raise
        if not isinstance(stored, np.ndarray) or any(type(n) is not int for n in stored.shape):
            raise ValueError("not an array")
        return stored


def _hdf5_arrays(path: Path, choose: Chooser | None) -> dict[str, NDArray[Any]]:
    require_file(path, "hdf5")
    label = f"hdf5 file '{path}'"
    h5py = optional_module("h5py", "hdf5", "reading an hdf5 file")
    unknown = (
        f"'{path}' is not an hdf5 file, or is damaged; write it again, "
        "or set dataset.kind to what it is"
    )
    with damage(unknown), h5py.File(path, "r") as file:
        # Of all keys: an array that is a dead link or a group is not one that is missing.
        chosen = choose(list(file)) if choose else [k for k in file if is_array(file, k, h5py)]
        for key in chosen:
            if not is_array(file, key, h5py):
                raise DataError(
                    f"{label}: '{key}' is not an array of this file, but a group or a link; store "
                    "the numbers under this key"
                )
            with damage(f"{label}: array '{key}' cannot be read; write the file again"):
                check_stored_here(file, key, label)
        require_data_memory(label, sum(file[key].nbytes for key in chosen))
        arrays = {}
        for key in chosen:
            with damage(f"{label}: array '{key}' cannot be read; write the file again"):
                arrays[key] = np.asarray(file[key][()])
        return arrays


def check_stored_here(file: Any, key: str, label: str) -> None:
    """Refuse an array whose numbers lie in another file, or were never written."""
    stored = file[key]
    if stored.external or stored.is_virtual:
        raise DataError(
            f"{label}: array '{key}' is stored in another file, which is not opened; "
            "store the numbers in this one"
        )
    declared, held = int(stored.nbytes), int(stored.id.get_storage_size())
    if declared >= SPARSE_FROM_BYTES and held * MOST_COMPRESSED < declared:
        raise DataError(
            f"{label}: array '{key}' declares {declared / 1e9:,.1f} GB, of which the file holds "
            f"{held:,} bytes; write the file again"
        )


def is_array(file: Any, key: str, h5py: Any) -> bool:
    """Whether a key holds an array; other files are not opened to find out."""
    try:
        if isinstance(file.get(key, getlink=True), h5py.ExternalLink):
            return False
        found = file.get(key)
        return isinstance(found, h5py.Dataset) and bool(found.file.filename == file.filename)
    except Exception:  # noqa: BLE001
        return False  # a link that leads nowhere, or to itself


def read_minari(dataset_id: str) -> RawTransitions:
    """A Minari data set that is on this machine; nothing is downloaded.

    Minari keeps T + 1 observations for the T steps of an episode: row t goes from
    observation t to observation t + 1, and the last one is only ever a successor.
    """
    with opened_minari(dataset_id) as dataset:
        label = minari_label(dataset_id)
        require_data_memory(label, minari_bytes(dataset, label))
        episodes = [minari_episode(episode, label) for episode in dataset.iterate_episodes()]
        if not episodes:
            raise DataError(f"{label}: the data set is empty; give at least one episode")
        return minari_raw(dataset, dataset_id, episodes)


def minari_label(dataset_id: str) -> str:
    """How messages name a Minari data set."""
    return f"minari data set '{dataset_id}'"


@contextmanager
def opened_minari(dataset_id: str) -> Iterator[Any]:
    """Minari's data set; what it raises becomes one sentence."""
    label = minari_label(dataset_id)
    minari = optional_module("minari", "minari", "reading a Minari data set")
    optional_module("h5py", "minari", "reading a Minari data set")
    try:
        bring_back(minari_folder(dataset_id))  # after a replacement that was killed
        dataset = minari.load_dataset(dataset_id, download=False)
        _check_minari_spaces(dataset, label)
        yield dataset
    except RLTrainingError:
        raise
    except FileNotFoundError:
        local = _local_minari_ids(minari)
        raise DataError(
            f"{label} is not on this machine{did_you_mean(dataset_id, local)}; present are "
            f"{', '.join(local) or 'none'}; run: minari download {dataset_id}"
        ) from None
    except Exception as error:  # noqa: BLE001  (damage makes Minari fail in many ways)
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"{label} cannot be read ({reason}); run: minari download --force {dataset_id}"
        ) from None


def minari_raw(
    dataset: Any, dataset_id: str, episodes: list[dict[str, NDArray[Any]]], first_row: int = 0
) -> RawTransitions:
    """Some episodes of a Minari data set, one after the other."""
    label, env_spec = minari_label(dataset_id), dataset.env_spec
    return RawTransitions(
        label=label,
        name=f"minari:{dataset_id}",
        arrays={name: _joined(name, episodes, label) for name in episodes[0]},
        spaces=_known_spaces(dataset.observation_space, dataset.action_space),
        env_id=env_spec.id if env_spec is not None else None,
        episode_ends=np.cumsum([len(part["rewards"]) for part in episodes]) - 1,
        first_row=first_row,
    )


def _joined(name: str, episodes: list[dict[str, NDArray[Any]]], label: str) -> NDArray[Any]:
    """One array of all episodes, which have to agree in it."""
    first = episodes[0][name]
    for number, episode in enumerate(episodes):
        part = episode[name]
        if part.ndim == 0 or part.shape[1:] != first.shape[1:]:
            raise DataError(
                f"{label}: {name} of episode {number} have the shape {part.shape}, those of the "
                f"first {first.shape}; record them again with minari.DataCollector"
            )
        if len(part) != len(episode["rewards"]):
            raise DataError(
                f"{label}: episode {number} has {len(part)} {name} for "
                f"{len(episode['rewards'])} rewards; record it again with minari.DataCollector"
            )
        if part.dtype.kind != first.dtype.kind:  # joined, numbers and texts would all be texts
            raise DataError(
                f"{label}: {name} of episode {number} are {part.dtype}, those of the first "
                f"{first.dtype}; record them again with minari.DataCollector"
            )
    return np.concatenate([part[name] for part in episodes])


def minari_bytes(dataset: Any, label: str) -> int:
    """What the arrays take in memory; those that were never written, or lie elsewhere, are
    refused."""
    h5py = optional_module("h5py", "minari", "reading a Minari data set")
    total = 0
    for path in sorted(Path(dataset.storage.data_path).glob("*.hdf5")):
        with h5py.File(path, "r") as file:
            names: list[str] = []
            file.visit(names.append)  # which follows no link into other files
            for name in names:
                if isinstance(file[name], h5py.Dataset):
                    check_stored_here(file, name, label)
                    total += int(file[name].nbytes)
    return total


def minari_folder(dataset_id: str) -> Path:
    """Where Minari keeps a data set; "": where it keeps all of them."""
    module = optional_module("minari.storage.datasets_root_dir", "minari", "a Minari data set")
    return Path(module.get_dataset_path(dataset_id))


def _local_minari_ids(minari: Any) -> list[str]:
    try:
        return sorted(minari.list_local_datasets())
    except Exception:  # noqa: BLE001  (a damaged neighbour must not hide the message)
        return []


def _check_minari_spaces(dataset: Any, label: str) -> None:
    for what, space in (
        ("observation", dataset.observation_space),
        ("action", dataset.action_space),
    ):
        if not isinstance(space, (gym.spaces.Box, gym.spaces.Discrete)):
            raise DataError(
                f"{label}: {what} space {type(space).__name__} is not supported; record it "
                "again from an environment wrapped to flat Box or Discrete spaces"
            )


def minari_episode(episode: Any, label: str) -> dict[str, NDArray[Any]]:
    """The arrays of an episode by the package's names."""
    observations, steps = np.asarray(episode.observations), len(episode.rewards)
    if observations.shape[0] != steps + 1:
        raise DataError(
            f"{label}: episode {episode.id} has {observations.shape[0]} observations for {steps} "
            f"steps, expected {steps + 1}; record it again with minari.DataCollector"
        )
    return {
        "observations": observations[:-1],
        "actions": np.asarray(episode.actions),
        "rewards": np.asarray(episode.rewards),
        "next_observations": observations[1:],
        "terminations": np.asarray(episode.terminations),
        "truncations": np.asarray(episode.truncations),
    }


def _known_spaces(observation_space: Any, action_space: Any) -> Spaces | None:
    try:
        return Spaces.from_gymnasium(observation_space, action_space)
    except EnvironmentSetupError:
        return None  # unbounded actions, say: the data's own range serves instead


def _has_masked_values(value: Any) -> bool:
    rows = value if isinstance(value, (list, tuple)) else [value]
    return any(
        type(row) is not np.ndarray and isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row)
        for row in rows
    )


def _on_host(value: Any) -> Any:
    # Tensors from a device or with gradients refuse NumPy's conversion.
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
