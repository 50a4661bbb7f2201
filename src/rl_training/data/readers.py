"""Reading npz, hdf5 and Minari into unchecked arrays."""

from __future__ import annotations

import pickle
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.data.files import optional_module
from rl_training.data.spaces import Spaces
from rl_training.data.validation import RawTransitions, select_keys
from rl_training.experiment.errors import DataError, EnvironmentSetupError, did_you_mean

HDF5_SUFFIXES = (".h5", ".hdf5")

_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    SyntaxError,
    MemoryError,  # a header that promises more than the file can hold
    NotImplementedError,  # a way of compressing that zipfile does not know
    RuntimeError,  # an encrypted member
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_arrays(
    arrays: Mapping[str, Any], name: str = "arrays", *, needs_rewards: bool = True
) -> RawTransitions:
    """Arrays in memory, copied, so that later changes by the caller do not reach the data."""
    keys = select_keys(list(arrays), name, needs_rewards)
    copies: dict[str, NDArray[Any]] = {}
    for ours, theirs in keys.items():
        try:
            copies[ours] = np.array(_on_host(arrays[theirs]))
        except (ValueError, TypeError):  # rows of unequal length; a type that NumPy lacks
            raise DataError(
                f"{name}: array '{theirs}' cannot be read as an array of numbers; give rows of "
                "equal length, of a type that NumPy has"
            ) from None
    return RawTransitions(label=name, name=name, arrays=copies, keys=keys)


def read_file_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """All top-level arrays of an npz or hdf5 file under the names they have there."""
    path = Path(path)
    if path.suffix.lower() in HDF5_SUFFIXES:
        return _hdf5_arrays(path, None)
    return _npz_arrays(path, None)


def read_npz(path: str | Path, *, needs_rewards: bool = True) -> RawTransitions:
    """A NumPy archive with the keys observations, actions, rewards, terminations,
    truncations and optionally next_observations, or their `ALIASES`, which include
    D4RL's terminals and timeouts. Pickled objects are never loaded."""
    return _raw_file(Path(path), "npz", needs_rewards)


def read_hdf5(path: str | Path, *, needs_rewards: bool = True) -> RawTransitions:
    """An HDF5 file with the D4RL keys at top level, or the names that npz files use."""
    return _raw_file(Path(path), "hdf5", needs_rewards)


def _raw_file(path: Path, kind: str, needs_rewards: bool) -> RawTransitions:
    label = f"{kind} file '{path}'"
    keys: dict[str, str] = {}

    def choose(present: list[str]) -> list[str]:
        keys.update(select_keys(present, label, needs_rewards))
        return list(keys.values())

    reader = _npz_arrays if kind == "npz" else _hdf5_arrays
    stored = reader(path, choose)
    arrays = {ours: stored[theirs] for ours, theirs in keys.items()}
    return RawTransitions(label=label, name=str(path), arrays=arrays, keys=keys)


def _require_file(path: Path, kind: str) -> None:
    if not path.exists():
        folder = path.parent
        beside = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        raise DataError(
            f"{kind} file '{path}' does not exist{did_you_mean(path.name, beside)}; "
            "correct the path (dataset.path in a config)"
        )
    if not path.is_file():
        raise DataError(f"'{path}' is a folder, expected a {kind} file; correct the path")


def _npz_arrays(path: Path, choose: Any) -> dict[str, NDArray[Any]]:
    _require_file(path, "npz")
    try:
        archive = np.load(path, allow_pickle=False)
    except (*_DAMAGE, pickle.UnpicklingError):
        archive = None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise DataError(
            f"'{path}' is not an npz file, or is damaged; write it with numpy.savez, "
            "or set dataset.kind to what it is"
        )
    with archive:
        arrays = {}
        for key in choose(archive.files) if choose else archive.files:
            try:
                stored: Any = archive[key]
                if not isinstance(stored, np.ndarray):
                    raise ValueError("not an array")
                arrays[key] = stored
            except _DAMAGE as error:
                if "pickle" in str(error):
                    raise DataError(
                        f"npz file '{path}': array '{key}' holds pickled Python objects, which "
                        "are not loaded because that could run code; store plain numbers"
                    ) from None
                raise DataError(
                    f"npz file '{path}': array '{key}' is damaged; write the file again"
                ) from None
    return arrays


def _hdf5_arrays(path: Path, choose: Any) -> dict[str, NDArray[Any]]:
    _require_file(path, "hdf5")
    h5py = optional_module("h5py", "hdf5", "reading an hdf5 file")
    try:
        file = h5py.File(path, "r")
    except OSError:
        raise DataError(
            f"'{path}' is not an hdf5 file, or is damaged; write it again, "
            "or set dataset.kind to what it is"
        ) from None
    with file:
        present = [key for key in file if _is_array(file, key, h5py)]
        arrays = {}
        for key in choose(present) if choose else present:
            stored = file[key]
            if stored.external or stored.is_virtual or stored.file.filename != file.filename:
                raise DataError(
                    f"hdf5 file '{path}': array '{key}' lies in another file, which is not opened; "
                    "store the numbers in this one"
                )
            try:
                arrays[key] = np.asarray(stored[()])
            except _DAMAGE:
                raise DataError(
                    f"hdf5 file '{path}': array '{key}' cannot be read; write the file again"
                ) from None
    return arrays


def _is_array(file: Any, key: str, h5py: Any) -> bool:
    try:
        return isinstance(file.get(key), h5py.Dataset)
    except _DAMAGE:
        return False  # a link that leads nowhere, or to itself


def read_minari(dataset_id: str) -> RawTransitions:
    """A Minari data set that is on this machine; nothing is downloaded.

    Minari keeps T + 1 observations for the T steps of an episode: row t goes from
    observation t to observation t + 1, and the last one is only ever a successor.
    """
    label = f"minari data set '{dataset_id}'"
    minari = optional_module("minari", "minari", "reading a Minari data set")
    optional_module("h5py", "minari", "reading a Minari data set")
    try:
        dataset = minari.load_dataset(dataset_id, download=False)
        _check_minari_spaces(dataset, label)
        episodes = [_minari_episode(episode, label) for episode in dataset.iterate_episodes()]
    except DataError:
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
    if not episodes:
        raise DataError(f"{label}: the data set is empty; give at least one episode")
    arrays = {name: np.concatenate([part[name] for part in episodes]) for name in episodes[0]}
    ends = np.cumsum([len(part["rewards"]) for part in episodes]) - 1
    open_ends = ends[~(arrays["terminations"] | arrays["truncations"])[ends]]
    arrays["truncations"][open_ends] = True
    env_spec = dataset.env_spec
    return RawTransitions(
        label=label,
        name=f"minari:{dataset_id}",
        arrays=arrays,
        notes=(f"{len(open_ends)} episodes have no end flag; marked as truncated",)
        if len(open_ends)
        else (),
        spaces=_known_spaces(dataset.observation_space, dataset.action_space),
        env_id=env_spec.id if env_spec is not None else None,
        termination_wins=True,
        has_whole_episode=True,
    )


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


def _minari_episode(episode: Any, label: str) -> dict[str, NDArray[Any]]:
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
        "terminations": np.asarray(episode.terminations).astype(np.bool_),
        "truncations": np.asarray(episode.truncations).astype(np.bool_),
    }


def _known_spaces(observation_space: Any, action_space: Any) -> Spaces | None:
    try:
        return Spaces.from_gymnasium(observation_space, action_space)
    except EnvironmentSetupError:
        return None  # unbounded actions, say: the data's own range serves instead


def _on_host(value: Any) -> Any:
    # Tensors from a device or with gradients refuse NumPy's conversion.
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
