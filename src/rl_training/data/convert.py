"""Writing data sets to npz, hdf5 and Minari."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import TransitionDataset, episode_end_flags
from rl_training.data.files import optional_module
from rl_training.data.generation import make_env
from rl_training.data.readers import HDF5_SUFFIXES
from rl_training.data.spaces import Spaces
from rl_training.experiment.errors import DataError, RLTrainingError
from rl_training.experiment.files import draft_of

Format = Literal["npz", "hdf5", "minari"]

D4RL_KEYS = {"terminations": "terminals", "truncations": "timeouts"}


def save_dataset(
    dataset: TransitionDataset,
    target: str | Path,
    format: Format | None = None,
    *,
    overwrite: bool = False,
) -> str:
    """Write `dataset` and return what `load_transition_dataset` reads it back from.

    The format follows from `target` unless given: .npz, .h5 or .hdf5, or "minari:ID".
    Every array comes back exactly; mixing weights and notes are not stored. A target
    appears whole or not at all, and an existing one is refused unless `overwrite`.
    """
    chosen = format or target_format(target)
    text = str(target)
    try:
        if chosen == "minari":
            dataset_id = text.removeprefix("minari:")
            _save_minari(dataset, dataset_id, overwrite)
            return f"minari:{dataset_id}"
        _save_file(dataset, Path(target), _write_npz if chosen == "npz" else _write_hdf5, overwrite)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            f"'{text}' cannot be written ({reason}); make room or choose another target"
        ) from None
    return text


def check_target(target: str | Path, overwrite: bool) -> None:
    """Refuse a target that could not be written, before anything is made for it."""
    if target_format(target) == "minari":
        _check_minari(str(target).removeprefix("minari:"), overwrite)
    else:
        _check_file(Path(target), overwrite)


def target_format(target: str | Path) -> Format:
    """The format that a target's name asks for."""
    text = str(target)
    suffix = Path(text).suffix.lower()
    if text.startswith("minari:"):
        return "minari"
    if suffix == ".npz":
        return "npz"
    if suffix in HDF5_SUFFIXES:
        return "hdf5"
    raise DataError(
        f"target '{text}' does not say its format; end it in .npz, .h5 or .hdf5, or write minari:ID"
    )


def _check_file(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise DataError(f"'{path}' is a folder; give the name of a file in it")
    if path.exists() and not overwrite:
        raise DataError(
            f"'{path}' exists already; choose another name or overwrite it (--overwrite, or "
            "overwrite=True)"
        )


def _save_file(
    dataset: TransitionDataset,
    path: Path,
    write: Callable[[TransitionDataset, Path], None],
    overwrite: bool,
) -> None:
    _check_file(path, overwrite)
    with draft_of(path) as draft:
        write(dataset, draft)


def _stored_arrays(dataset: TransitionDataset) -> dict[str, NDArray[Any]]:
    arrays = dataset.known_arrays()
    if not dataset.has_whole_episode and dataset.num_episodes == 1:
        # The only flag was set by the loader; without it a reader learns the truth again.
        arrays["truncations"] = np.zeros_like(dataset.truncations)
    return arrays


def _write_npz(dataset: TransitionDataset, draft: Path) -> None:
    with draft.open("wb") as file:  # a name would get .npz appended
        np.savez_compressed(file, **_stored_arrays(dataset))  # type: ignore[arg-type]


def _write_hdf5(dataset: TransitionDataset, draft: Path) -> None:
    h5py = optional_module("h5py", "hdf5", "writing an hdf5 file")
    with h5py.File(draft, "w") as file:
        for name, array in _stored_arrays(dataset).items():
            file.create_dataset(D4RL_KEYS.get(name, name), data=array, compression="gzip")


def _check_minari(dataset_id: str, overwrite: bool) -> Path:
    """Where Minari would keep the data set, checked to be free."""
    for module in ("minari", "h5py"):
        optional_module(module, "minari", "writing a Minari data set")
    # Minari's own rule, with the version demanded: a namespace has two letters or more.
    if not re.fullmatch(r"([\w-][\w/-]*[\w-]/)?[\w-]+-v\d+", dataset_id):
        raise DataError(
            f"minari id '{dataset_id}' is malformed; write it like 'pendulum/mixed-v0', "
            "with a version at its end"
        )
    folder = _minari_folder(dataset_id)
    if folder.exists() and not overwrite:
        raise DataError(
            f"minari data set '{dataset_id}' exists already; choose another id "
            "or ask to overwrite it"
        )
    return folder


def _save_minari(dataset: TransitionDataset, dataset_id: str, overwrite: bool) -> None:
    dataset.require_rewards()  # which Minari stores with every step
    folder = _check_minari(dataset_id, overwrite)
    minari = optional_module("minari", "minari", "writing a Minari data set")
    _check_chain(dataset, dataset_id)
    aside = folder.with_name(f".{folder.name}.replaced")
    env = _recorded_env(dataset)
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    try:
        with warnings.catch_warnings():
            # Minari asks for an author and a permalink, which a conversion does not know.
            warnings.simplefilter("ignore", UserWarning)
            observation_space, action_space = _gymnasium_spaces(dataset.spaces)
            minari.create_dataset_from_buffers(
                dataset_id,
                _episode_buffers(dataset),
                env=env,
                observation_space=observation_space,
                action_space=action_space,
                description=f"Converted by rl-training from {dataset.name}.",
                data_format="hdf5",
            )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if aside.exists():
            aside.rename(folder)
        raise
    finally:
        if env is not None:
            env.close()
    shutil.rmtree(aside, ignore_errors=True)


def _check_chain(dataset: TransitionDataset, dataset_id: str) -> None:
    """Minari stores one observation per state, so each must succeed the one before."""
    inside = ~episode_end_flags(dataset.terminations, dataset.truncations)[:-1]
    broken = (dataset.next_observations[:-1] != dataset.observations[1:]).any(axis=1) & inside
    if broken.any():
        raise DataError(
            f"{dataset.name}: cannot be stored as minari data set '{dataset_id}' without loss, "
            f"because row {int(np.flatnonzero(broken)[0])} is not followed by its next "
            "observation; mark the missing episode ends, or convert to npz or hdf5"
        )


def _episode_buffers(dataset: TransitionDataset) -> list[Any]:
    module = optional_module("minari.data_collector", "minari", "writing a Minari data set")
    buffers = []
    for start, end in zip(dataset.episode_starts, dataset.episode_ends, strict=True):
        rows = slice(start, end + 1)
        buffers.append(
            module.EpisodeBuffer(
                observations=np.concatenate(
                    [dataset.observations[rows], dataset.next_observations[end : end + 1]]
                ),
                actions=dataset.actions[rows],
                rewards=dataset.rewards[rows],
                terminations=dataset.terminations[rows],
                truncations=dataset.truncations[rows],
            )
        )
    return buffers


def _gymnasium_spaces(spaces: Spaces) -> tuple[gym.Space[Any], gym.Space[Any]]:
    observation_space = gym.spaces.Box(-np.inf, np.inf, (spaces.obs_dim,), np.float32)
    if spaces.is_discrete:
        return observation_space, gym.spaces.Discrete(spaces.action_dim, start=spaces.action_start)
    low = np.asarray(spaces.action_low, np.float32)
    high = np.asarray(spaces.action_high, np.float32)
    return observation_space, gym.spaces.Box(low, high, dtype=np.float32)


def _recorded_env(dataset: TransitionDataset) -> gym.Env[Any, Any] | None:
    """The environment for Minari's metadata; data whose environment is not installed here
    are still worth converting."""
    try:
        return None if dataset.env_id is None else make_env(dataset.env_id)
    except RLTrainingError:
        return None


def _minari_folder(dataset_id: str) -> Path:
    module = optional_module(
        "minari.storage.datasets_root_dir", "minari", "writing a Minari data set"
    )
    return Path(module.get_dataset_path(dataset_id))
