"""The run folder: its files, and the versions and hardware stored in them."""

from __future__ import annotations

import errno
import functools
import json
import os
import platform
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import read_yaml_file
from rl_training.experiment.errors import ConfigError, RLTrainingError
from rl_training.experiment.files import NOT_ALLOWED, replace_text
from rl_training.experiment.storage import begin_remote, remote_of, run_parent
from rl_training.experiment.task_names import task_name
from rl_training.experiment.trust import needs_trust

CONFIG_FILE, METRICS_FILE, RESULT_FILE = "config.yaml", "metrics.jsonl", "result.json"
CHECKPOINT_FOLDER, DATASET_FILE, OPE_FILE = "checkpoints", "dataset.npz", "ope.json"


def create_run_folder(config: TrainConfig) -> Path:
    """Make a folder `<algo>-<task>-s<seed>-<time>` under the output folder; with several seeds the
    seed is replaced by `<number>seeds`. The task is the environment, or the data without one.

    With a `run_name` it has that name, and must not hold a run already.
    """
    if config.run_name is not None:
        folder = _named_folder(run_parent(config.output_dir) / config.run_name, config.output_dir)
        begin_remote(config.output_dir, folder)
        return folder
    env_id = config.env_id
    task = _data_name(config) if env_id is None else task_name(env_id, config.env_kwargs)
    task = re.sub(r"[^A-Za-z0-9.]+", "_", task)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    seed = f"s{config.seed}" if config.seeds is None else f"{len(config.seeds)}seeds"
    base = run_parent(config.output_dir) / f"{config.algo}-{task}-{seed}-{stamp}"
    for attempt in range(1000):
        folder = base if attempt == 0 else base.with_name(f"{base.name}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
            begin_remote(config.output_dir, folder)
            return folder
        except FileExistsError:
            if not base.parent.is_dir():
                break
        except (OSError, ValueError) as error:  # ValueError: a name with a null character
            reason = getattr(error, "strerror", None) or str(error)
            raise _unwritable(config.output_dir, reason) from None
    raise _unwritable(config.output_dir, "a file is in the way")


def _named_folder(folder: Path, output_dir: str) -> Path:
    if (folder / CONFIG_FILE).exists():
        raise ConfigError(
            f"run_name: '{folder}' holds a run already; go on with it by --resume or "
            f"'{resume_command(folder)}', or choose another name"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _unwritable(output_dir, getattr(error, "strerror", None) or str(error)) from None
    return folder


def _data_name(config: TrainConfig) -> str:
    """The name of the data, for a run without an environment."""
    data = config.dataset
    if data is None or data.mix is not None:
        return "data"
    if data.path is not None and Path(data.path).name != DATASET_FILE:
        return Path(data.path).stem
    return data.name or data.id or "data"


def _unwritable(output_dir: str, reason: str) -> ConfigError:
    return ConfigError(
        f"output_dir: cannot make a run folder under '{output_dir}': {reason}; "
        "choose another folder with --output-dir"
    )


def read_run_config(run_dir: Path) -> dict[str, Any]:
    """The resolved config of a run."""
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(
            f"'{run_dir}' is not a run folder: it has no {CONFIG_FILE}; "
            "'rl-training list' shows the runs under ./runs"
        )
    return read_yaml_file(path)


def versions() -> dict[str, str]:
    """Versions of the packages that a result depends on."""
    installed = {name: _version(name) for name in ("rl-training", "torch", "numpy", "gymnasium")}
    return {"python": platform.python_version(), **installed}


@functools.cache  # every checkpoint asks
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def hardware() -> dict[str, Any]:
    """Description of the machine."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
    }


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write JSON atomically."""
    with reraise_os_error(path):
        replace_text(path, json.dumps(values, indent=1) + "\n")


def write_run_config(run_dir: Path, config: TrainConfig) -> None:
    """Write the resolved config atomically: without it a run could not be resumed."""
    replace_text(run_dir / CONFIG_FILE, config.to_yaml())


def resume_command(run_dir: Path) -> str:
    """The command that resumes a run."""
    try:
        flag = " --trust" if needs_trust(read_run_config(run_dir)) else ""
    except RLTrainingError:
        flag = ""
    return f"rl-training resume {shlex.quote(remote_of(run_dir) or str(run_dir))}{flag}"


@contextmanager
def reraise_os_error(path: Path, go_on: str | None = None) -> Iterator[None]:
    """Turn an OSError while writing a file of a run into an error of one sentence.

    `go_on` is the command that continues; by default that of the run.
    """
    try:
        yield
    except OSError as error:
        remedy = "make room"
        if error.errno in NOT_ALLOWED:
            remedy = "make the run folder writable for you"
        elif error.errno == errno.ELOOP:
            remedy = "a link is in its place, remove it"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            remedy = "a file is in the place of a folder, remove it or choose another folder"
        raise RLTrainingError(
            f"'{path}' cannot be written: {error.strerror or error}; {remedy}, then go on with: "
            f"{go_on or resume_command(path.parent)}"
        ) from None
