"""Writing data sets to npz, hdf5 and Minari."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import TransitionDataset, episode_end_flags
from rl_training.data.files import optional_module
from rl_training.data.masks import split_masks
from rl_training.data.observed import split_observations
from rl_training.data.readers import minari_folder
from rl_training.data.table_files import write_table
from rl_training.envs.make import make_env
from rl_training.envs.spaces import Spaces
from rl_training.experiment.data_config import FILE_KINDS
from rl_training.experiment.errors import DataError, RLTrainingError
from rl_training.experiment.files import bring_back, draft_of, put_in_place, remove_stale_drafts
from rl_training.experiment.trust import may_be_imported, modules_named

Format = Literal["npz", "hdf5", "minari", "parquet", "csv"]

MINARI_ROOT, MINARI_DRAFT = "MINARI_DATASETS_PATH", ".draft_"
D4RL_KEYS = {"terminations": "terminals", "truncations": "timeouts"}


def save_dataset(
    dataset: TransitionDataset,
    target: str | Path,
    format: Format | None = None,
    *,
    overwrite: bool = False,
) -> str:
    """Write `dataset` and return what `load_transition_dataset` reads it back from.

    The format follows from `target` unless given: .npz, .h5 or .hdf5, .parquet, .csv, or
    "minari:ID". In a table, Parquet has a column of lists for each array and CSV a column for each
    number, `observations_0` and so on; both have a column `episode`.
    Every array comes back exactly; mixing weights and notes are not stored. A target
    appears whole or not at all, and an existing one is refused unless `overwrite`.
    """
    chosen = format or target_format(target)
    text = str(target)
    dataset = dataset.in_memory()
    try:
        if chosen == "minari":
            dataset_id = text.removeprefix("minari:")
            _save_minari(dataset, dataset_id, overwrite)
            return f"minari:{dataset_id}"
        _save_file(dataset, Path(target), WRITERS[chosen], overwrite)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            f"'{text}' cannot be written ({reason}); make room or choose another target"
        ) from None
    return text


def save_shard(
    dataset: TransitionDataset, path: Path, first_episode: int, metadata: dict[bytes, bytes]
) -> None:
    """Write a part of a data set as Parquet, with its number of the first episode."""
    try:
        _save_file(
            dataset,
            path,
            lambda data, draft: _write_table(data, draft, "parquet", first_episode, metadata),
            overwrite=False,
        )
    except OSError as error:
        raise DataError(
            f"'{path}' cannot be written ({error.strerror or error}); make room, and the same "
            "command goes on"
        ) from None


def check_target(target: str | Path, overwrite: bool) -> None:
    """Refuse a target that could not be written, before anything is made for it."""
    if target_format(target) == "minari":
        _check_minari(str(target).removeprefix("minari:"), overwrite)
    else:
        _check_file(Path(target), overwrite)


def target_format(target: str | Path) -> Format:
    """The format that a target's name asks for."""
    text = str(target)
    if text.startswith("minari:"):
        return "minari"
    suffix = Path(text).suffix.lower()
    if suffix in FILE_KINDS:
        return FILE_KINDS[suffix]
    raise DataError(
        f"target '{text}' does not say its format; end it in .npz, .h5, .hdf5, .parquet or .csv, "
        "or write minari:ID"
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


def _stored_arrays(dataset: TransitionDataset, whole: bool = True) -> dict[str, NDArray[Any]]:
    arrays = split_observations(dataset.spaces, split_masks(dataset.spaces, dataset.known_arrays()))
    if whole and not dataset.has_whole_episode and dataset.num_episodes == 1:
        # The only flag was set by the loader; without it a reader learns the truth again.
        arrays["truncations"] = np.zeros_like(dataset.truncations)
    return arrays


def _write_npz(dataset: TransitionDataset, draft: Path) -> None:
    with draft.open("wb") as file:  # a name would get .npz appended
        np.savez_compressed(file, **_stored_arrays(dataset))  # type: ignore[arg-type]


def _write_hdf5(dataset: TransitionDataset, draft: Path) -> None:
    h5py = optional_module("h5py", "hdf5", "writing an hdf5 file")
    # made in memory, because HDF5 crashes where a disk is full
    with h5py.File(draft.name, "w", driver="core", backing_store=False) as file:
        for name, array in _stored_arrays(dataset).items():
            if array.dtype.kind == "U":  # groups; HDF5 has text of bytes only
                array = np.char.encode(array, "utf-8")
            file.create_dataset(D4RL_KEYS.get(name, name), data=array, compression="gzip")
        file.flush()
        image = file.id.get_file_image()
    draft.write_bytes(image)


def _write_table(
    dataset: TransitionDataset,
    draft: Path,
    kind: str,
    first_episode: int | None = None,
    metadata: dict[bytes, bytes] | None = None,
) -> None:
    """With `first_episode` as a part of a data set, in which every episode has its end."""
    if dataset.spaces.is_image:
        raise DataError(
            f"data set '{dataset.name}' has {dataset.spaces.named_observations()}, which tables do "
            "not hold; end the target in .npz, .h5 or .hdf5"
        )
    numbers = np.arange(dataset.num_episodes) + (first_episode or 0)
    arrays = {"episode": np.repeat(numbers, dataset.episode_lengths())}
    arrays |= _stored_arrays(dataset, whole=first_episode is None)
    write_table(arrays, draft, kind, metadata)


WRITERS: dict[Format, Callable[[TransitionDataset, Path], None]] = {
    "npz": _write_npz,
    "hdf5": _write_hdf5,
    "parquet": lambda dataset, draft: _write_table(dataset, draft, "parquet"),
    "csv": lambda dataset, draft: _write_table(dataset, draft, "csv"),
}


def _check_minari(dataset_id: str, overwrite: bool) -> Path:
    """The folder in which Minari would store the data set; refused if it exists."""
    for module in ("minari", "h5py"):
        optional_module(module, "minari", "writing a Minari data set")
    # Minari's own rule, with the version demanded: a namespace has two letters or more.
    if not re.fullmatch(r"([\w-][\w/-]*[\w-]/)?[\w-]+-v\d+", dataset_id):
        raise DataError(
            f"minari id '{dataset_id}' is malformed; write it like 'pendulum/mixed-v0', "
            "with a version at its end"
        )
    folder = minari_folder(dataset_id)
    bring_back(folder)
    if folder.exists() and not overwrite:
        raise DataError(
            f"minari data set '{dataset_id}' exists already; choose another id "
            "or ask to overwrite it"
        )
    return folder


def _save_minari(dataset: TransitionDataset, dataset_id: str, overwrite: bool) -> None:
    dataset.require_rewards()  # which Minari stores with every step
    if dataset.spaces.packing is not None:
        raise DataError(
            f"data set '{dataset.name}' has {dataset.spaces.named_observations()}, of which a "
            "Minari data set would lose the parts; end the target in .npz, .h5 or .hdf5"
        )
    folder = _check_minari(dataset_id, overwrite)
    minari = optional_module("minari", "minari", "writing a Minari data set")
    _check_chain(dataset, dataset_id)
    root = minari_folder("")
    remove_stale_drafts(root, MINARI_DRAFT)
    if shutil.disk_usage(root).free < sum(x.nbytes for x in dataset.known_arrays().values()):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # HDF5 would crash
    env = _recorded_env(dataset)
    draft = Path(tempfile.mkdtemp(prefix=MINARI_DRAFT, dir=root))
    try:
        with _minari_root(draft), warnings.catch_warnings():
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
        namespace = dataset_id.rpartition("/")[0]
        namespaces = optional_module("minari.namespace", "minari", "writing a Minari data set")
        if namespace and namespace not in namespaces.list_local_namespaces():
            namespaces.create_namespace(namespace)
        whole = draft / dataset_id
        if folder.exists():
            put_in_place(whole, folder)
        else:
            whole.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if env is not None:
            env.close()


@contextmanager
def _minari_root(folder: Path) -> Iterator[None]:
    """While active, Minari stores its data sets in `folder`, which it accepts only globally."""
    before = os.environ.get(MINARI_ROOT)
    os.environ[MINARI_ROOT] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[MINARI_ROOT]
        else:
            os.environ[MINARI_ROOT] = before


def _check_chain(dataset: TransitionDataset, dataset_id: str) -> None:
    """Minari stores one observation per state, so each must succeed the one before."""
    inside = ~episode_end_flags(dataset.terminations, dataset.truncations)[:-1]
    differs = dataset.next_observations[:-1] != dataset.observations[1:]
    broken = differs.reshape(len(differs), -1).any(axis=1) & inside
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
    low, high = (0, 255) if spaces.is_image else (-np.inf, np.inf)
    observation_space = gym.spaces.Box(low, high, spaces.obs_shape, spaces.obs_dtype)
    if spaces.is_discrete:
        return observation_space, gym.spaces.Discrete(spaces.action_dim, start=spaces.action_start)
    if not spaces.is_box:
        parts = gym.spaces.MultiDiscrete(
            list(spaces.action_choices), start=list(spaces.action_starts)
        )
        return observation_space, parts
    least = np.asarray(spaces.action_low, np.float32)
    most = np.asarray(spaces.action_high, np.float32)
    return observation_space, gym.spaces.Box(least, most, dtype=np.float32)


def _recorded_env(dataset: TransitionDataset) -> gym.Env[Any, Any] | None:
    """The environment for Minari's metadata; data whose environment is not installed here, or
    only named by a file, are still worth converting."""
    named = modules_named({"env_id": dataset.env_id})
    if dataset.env_id is None or not all(may_be_imported(module) for _, module in named):
        return None
    try:
        return make_env(dataset.env_id)
    except RLTrainingError:
        return None
