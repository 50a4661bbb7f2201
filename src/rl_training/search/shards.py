"""Collects a data set in shards, which do not depend on who writes them or in which order.

As a module it is the job that writes some of them: python -m rl_training.search.shards FOLDER A B
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from rl_training.data.files import optional_module
from rl_training.experiment.checkpoint import MANIFEST
from rl_training.experiment.errors import DataError
from rl_training.experiment.files import replace_text
from rl_training.experiment.tracking import reraise_os_error, versions
from rl_training.search.batch import FilesJob, files_jobs, run_as_job

PLAN_FILE, LOG_FOLDER = "collection.json", "logs"
MODULE = "rl_training.search.shards"
FOOTER = b"rl_training"
"""Key of a shard's counts in the metadata of its file."""


@dataclass(frozen=True)
class CollectionPlan:
    """What decides the bytes of all shards."""

    checkpoint: str
    fingerprint: str
    """Of the checkpoint's manifest, which has the checksums of its files."""
    unit: str
    """steps or episodes."""
    amount: int
    shard: int
    """So many of them in each shard; the last may have fewer."""
    noise: float
    epsilon: float
    deterministic: bool
    seed: int
    trust: bool

    @property
    def shards(self) -> int:
        return math.ceil(self.amount / self.shard)

    def size(self, index: int) -> int:
        """Steps or episodes of a shard."""
        return min(self.shard, self.amount - index * self.shard)

    def first_episode(self, index: int) -> int:
        """No two shards have an episode in common, since each has at least one step."""
        return index * self.shard


def fingerprint(checkpoint: Path) -> str:
    return hashlib.sha256((checkpoint / MANIFEST).read_bytes()).hexdigest()


class ShardFolder:
    """The folder of a data set that is collected in shards."""

    def __init__(self, folder: Path, plan: CollectionPlan) -> None:
        optional_module("pyarrow.parquet", "tables", "writing a table")
        self.folder, self.plan = folder, plan
        self._refuse_other_contents()
        with reraise_os_error(folder, "the same command"):
            (folder / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
            if not (folder / PLAN_FILE).exists():
                whole = {"format": 1, "version": versions()["rl-training"], **asdict(plan)}
                replace_text(folder / PLAN_FILE, json.dumps(whole, indent=1) + "\n")

    def missing(self) -> list[int]:
        """Shards that are not written yet."""
        there = {path.name for path in self.folder.iterdir()}
        every = range(self.plan.shards)
        return [index for index in every if shard_file(self.folder, index).name not in there]

    def jobs(self, workers: int) -> list[FilesJob]:
        """The missing shards, in groups."""
        files = [shard_file(self.folder, index) for index in range(self.plan.shards)]
        logs = self.folder / LOG_FOLDER
        return files_jobs(MODULE, self.folder, files, logs, "shards", workers)

    def _refuse_other_contents(self) -> None:
        if self.folder.is_file() or (self.folder.is_dir() and not _is_unbegun(self.folder)):
            stored = read_plan(self.folder)
            for key, value in asdict(self.plan).items():
                if getattr(stored, key) != value:
                    raise DataError(
                        f"'{self.folder}' was begun with another {key}, {getattr(stored, key)!r} "
                        f"instead of {value!r}; repeat the command that began it, or choose "
                        "another target with --out"
                    )


def _is_unbegun(folder: Path) -> bool:
    """Whether a folder is empty, or was cut off before its plan was written."""
    names = (path.name for path in folder.iterdir())
    return all(name == LOG_FOLDER or name.startswith(".") for name in names)


def read_plan(folder: Path) -> CollectionPlan:
    path = folder / PLAN_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        values = {key: stored[key] for key in CollectionPlan.__dataclass_fields__}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataError(
            f"'{folder}' exists, and its {PLAN_FILE} cannot be read; choose another target with "
            "--out, or remove it"
        ) from None
    if stored.get("version") != versions()["rl-training"]:
        raise DataError(
            f"'{folder}' was begun with rl-training {stored.get('version')}, whose shards may "
            "differ; install that version, or choose another target with --out"
        )
    return CollectionPlan(**values)


def shard_file(folder: Path, index: int) -> Path:
    return folder / f"part-{index:05d}.parquet"


def counts(path: Path) -> dict[str, float]:
    """Steps and episodes of a shard, and the sums of the returns and of their squares."""
    parquet = optional_module("pyarrow.parquet", "tables", "reading a table")
    return cast(dict[str, float], json.loads(parquet.read_schema(path).metadata[FOOTER]))


# --- the job --------------------------------------------------------------------------------------


def write_shards(folder: Path, first: int, last: int) -> None:
    """Write the shards from `first` to before `last` that are not there yet."""
    import torch

    from rl_training.api.managed import load

    torch.set_num_threads(1)  # the number of threads may change the last bit of an action
    plan = read_plan(folder)
    checkpoint = Path(plan.checkpoint)
    if fingerprint(checkpoint) != plan.fingerprint:
        raise DataError(
            f"checkpoint '{checkpoint}' has changed since the collection began; choose another "
            "target with --out"
        )
    agent: Any = None
    for index in range(first, last):
        if shard_file(folder, index).exists():
            continue
        # one kind of device for all shards, wherever they are collected
        agent = agent or load(checkpoint, device="cpu", trust=plan.trust)
        write_shard(agent, plan, folder, index)
        print(f"shard {index}", flush=True)


def write_shard(agent: Any, plan: CollectionPlan, folder: Path, index: int) -> None:
    from rl_training.data.convert import save_shard

    dataset = agent.collect(
        **{plan.unit: plan.size(index)},
        noise=plan.noise,
        epsilon=plan.epsilon,
        deterministic=plan.deterministic,
        seed=plan.seed,
        first_episode=plan.first_episode(index),
    )
    returns = dataset.episode_returns()
    if plan.unit == "steps":
        returns = returns[:-1]  # the last episode is cut where the shard is full
    found = {
        "steps": len(dataset),
        "episodes": len(returns),
        "returns": float(returns.sum()),
        "squares": float((returns**2).sum()),
    }
    metadata = {FOOTER: json.dumps(found).encode()}
    save_shard(dataset, shard_file(folder, index), plan.first_episode(index), metadata)


if __name__ == "__main__":
    run_as_job(write_shards)
