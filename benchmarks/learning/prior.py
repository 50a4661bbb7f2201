"""Prior data of long runs: episodes of a half-trained policy, or of one whose data are at hand."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import digest
from benchmarks.learning.zoo import FOLDER
from benchmarks.process import ROOT
from rl_training import ManagedAlgorithm, TrainConfig, TransitionDataset, load_transition_dataset
from rl_training.data.convert import save_dataset
from rl_training.experiment.storage import cache_folder
from rl_training.runtime.collection import Behaviour, collect

STORED = ROOT / "benchmarks" / "data"
"""Demonstrations whose expert takes a GPU to train."""
CHECKPOINT_MINUTES = 2.0
"""Of the training of a policy whose data are wanted."""


def prior_data(spec: Mapping[str, Any]) -> TransitionDataset:
    """The data that `spec` describes, made once and kept in the package's cache.

    With `config`: train its policy, let it act in `spec["env_id"]`, sampling its actions, and keep
    what happened. With `zoo`: the first `episodes` of `source` in that file of the folder that
    `RL_TRAINING_BENCHMARK_DATA` names. Seeds and variants of a run, and other libraries beside it,
    learn from the same data.
    """
    return load_transition_dataset(prior_file(spec), env_id=spec["env_id"])


def prior_file(spec: Mapping[str, Any]) -> Path:
    """Where those data are; made if they are not, by one process while others wait for it."""
    path = kept_at(spec)
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not path.is_file():
            draft, runs = path.with_name(f"draft-{path.name}"), path.with_suffix(".runs")
            made = _shown(spec) if "zoo" in spec else _made(spec, runs)
            save_dataset(made, draft, overwrite=True)
            draft.replace(path)
            shutil.rmtree(runs, ignore_errors=True)
    return path


def kept_at(spec: Mapping[str, Any]) -> Path:
    """Where those data are once they have been made; small ones come with the project."""
    name = f"prior-{digest(dict(spec))}.npz"
    stored = STORED / name
    return stored if stored.is_file() else (cache_folder() or Path.cwd()) / name


def _shown(spec: Mapping[str, Any]) -> TransitionDataset:
    """Episodes of one of several behaviour policies, whose number `source_id` names."""
    path = Path(os.environ.get(FOLDER, ".")) / spec["zoo"]
    if not path.is_file():
        raise FileNotFoundError(f"no file '{path}'; {FOLDER} names the folder that holds it")
    with np.load(path) as found:
        rows = found["source_id"] == spec["source"]
        arrays = {name: found[name][rows] for name in found.files if name != "source_id"}
    whole = load_transition_dataset(arrays, env_id=spec["env_id"])
    return whole.take_episodes(spec["episodes"])


def _made(spec: Mapping[str, Any], runs: Path) -> TransitionDataset:
    """Train and collect; a training that was broken off goes on from its last checkpoint."""
    config = TrainConfig(**spec["config"], output_dir=str(runs))
    begun = sorted(runs.glob("*/checkpoints/[0-9]*"))
    if begun:
        agent = ManagedAlgorithm.resume(begun[-1].parents[1], progress=False, trust=True)
    else:
        agent = ManagedAlgorithm(config.replace(checkpoint_minutes=CHECKPOINT_MINUTES))
        agent.learn(progress=False)
    return collect(
        lambda obs, mode, state: agent.predict(obs, state, deterministic=mode),
        Behaviour(deterministic=False),
        agent.algorithm,
        spec["env_id"],
        {},
        name=config.algo,
        episodes=spec.get("episodes"),
        steps=spec.get("steps"),
        max_steps=config.eval_max_steps,
        seed=config.seed,
    )
