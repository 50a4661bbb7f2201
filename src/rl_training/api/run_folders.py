"""The run folder of an agent: its data, the paths in its config, what is said when it begins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rl_training.data.convert import save_dataset
from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.config import (
    DatasetConfig,
    DataSource,
    TrainConfig,
)
from rl_training.experiment.console import Console
from rl_training.experiment.errors import (
    ConfigError,
)
from rl_training.experiment.storage import url_of
from rl_training.experiment.tracking import (
    DATASET_FILE,
)
from rl_training.runtime.loops import Loop

Source = TypeVar("Source", bound=DataSource)


PREPARATION = ("keep", "split", "rewards", "returns", "normalize_observations", "home")
"""Keys of a data section that say what is done to the data."""


def preparation(dataset: DatasetConfig | None, same_data: bool = False) -> dict[str, Any]:
    """The keys of a data section that say what is done to the data, wherever they come from;
    with `same_data`, also what is known of these data."""
    keys = (*PREPARATION, "spaces", "read_as") if same_data else PREPARATION
    return {} if dataset is None else {key: getattr(dataset, key) for key in keys}


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """Replace relative paths by absolute ones, so that the run can be resumed from any folder."""
    if config.init_from is not None:
        config = config.settled(init_from=_absolute(config.init_from))
    return _with_data_at(config, _absolute)


def _absolute(path: str) -> str:
    return path if url_of(path) else os.path.abspath(path)


def with_paths_found(config: TrainConfig, run_dir: Path) -> TrainConfig:
    """Of a stored run: files that are not where its config says, but where it began or in its
    folder, which may have been moved. That data are the same is checked by their fingerprint."""
    output, parents = Path(config.output_dir), run_dir.absolute().parents
    began = None  # the working folder of the run, where output_dir was relative to it
    if not output.is_absolute() and len(output.parts) < len(parents):
        began = parents[len(output.parts)]

    def found(path: str) -> str:
        if url_of(path):
            return path
        name = Path(path).name
        places = [Path(path), run_dir / name, run_dir.parent / name]
        if began is not None:
            places.insert(1, began / path)
        return next((str(place) for place in places if place.exists()), path)

    return _with_data_at(config, found)


def _with_data_at(config: TrainConfig, place: Callable[[str], str]) -> TrainConfig:
    """A copy with new paths of all data files."""
    if config.dataset is None:
        return config
    dataset = _at(config.dataset, place)
    if dataset.mix is not None:
        parts = tuple(_at(part, place) for part in dataset.mix)
        dataset = dataset.model_copy(update={"mix": parts})
    return config.settled(dataset=dataset)


def _at(source: Source, place: Callable[[str], str]) -> Source:
    return source if source.path is None else source.model_copy(update={"path": place(source.path)})


def with_data_kept(
    config: TrainConfig, run_dir: Path, dataset: TransitionDataset | None
) -> TrainConfig:
    """Write data that were in memory into the run folder; the config that finds them there."""
    if dataset is None or config.dataset is None:
        return config
    section = preparation(config.dataset, same_data=True) | _stored(run_dir, dataset)
    return config.settled(dataset=DatasetConfig.parse(section, "dataset."))


def _stored(run_dir: Path, dataset: TransitionDataset) -> dict[str, Any]:
    """Keys of the data that are written here, one file per part of a mix."""
    stored, start = [], 0
    for i, (rows, weight) in enumerate(dataset.parts):
        name = DATASET_FILE if len(dataset.parts) == 1 else f"{i}-{DATASET_FILE}"
        part = dataset.rows(start, start + rows)
        path = Path(save_dataset(part, run_dir / name)).resolve()
        stored.append({"kind": "npz", "path": str(path), "weight": weight})
        start += rows
    if len(stored) == 1:
        return {"kind": "npz", "path": stored[0]["path"]}
    return {"mix": stored}


def announce(console: Console, run_dir: Path, loop: Loop) -> None:
    """Print the run folder, the engine and notes on the data."""
    console.say(f"run folder: {run_dir}")
    console.say(f"engine: {loop.engine.mode} ({loop.engine.reason})")
    for note in loop.data_notes:
        console.say(f"note on the data: {note}")


@contextmanager
def removed_on_failure(run_dir: Path) -> Iterator[None]:
    """Remove the run folder if it cannot be filled."""
    try:
        yield
    except OSError as error:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise ConfigError(
            f"output_dir: the run folder '{run_dir}' cannot be filled: "
            f"{error.strerror or error}; make room or choose another folder with --output-dir"
        ) from None
    except BaseException:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise
