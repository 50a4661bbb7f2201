"""Prior data for learning from offline to online: episodes of a half-trained policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.jobs import digest
from rl_training import ManagedAlgorithm, TrainConfig, TransitionDataset, load_transition_dataset
from rl_training.data.convert import save_dataset
from rl_training.experiment.storage import cache_folder
from rl_training.runtime.collection import Behaviour, collect


def prior_data(spec: Mapping[str, Any]) -> TransitionDataset:
    """Train the policy of `spec["config"]`, let it act in `spec["env_id"]`, keep what happened.

    The policy samples its actions. Made once and kept in the package's cache: seeds and
    variants of a run learn from the same data.
    """
    return load_transition_dataset(prior_file(spec), env_id=spec["env_id"])


def prior_file(spec: Mapping[str, Any]) -> Path:
    """Where those data are; made if they are not."""
    path = (cache_folder() or Path.cwd()) / f"prior-{digest(dict(spec))}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_dataset(_made(spec), path, overwrite=True)
    return path


def _made(spec: Mapping[str, Any]) -> TransitionDataset:
    with TemporaryDirectory() as folder:
        config = TrainConfig(**spec["config"], output_dir=str(Path(folder)))
        agent = ManagedAlgorithm(config)
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
