"""Small runs of every registered algorithm, for contracts that hold over the registry."""

from __future__ import annotations

from typing import Any

from rl_training.data.sources import load_transition_dataset
from rl_training.data.table import TransitionTable
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithm_class
from rl_training.runtime.build import build_algorithm

TASKS = {"box": ("Pendulum-v1", "pendulum-mixed"), "discrete": ("CartPole-v1", "cartpole-mixed")}


def small_config(algo: str, kind: str = "box", **changes: Any) -> TrainConfig:
    """A run of a few quick updates on scripted data."""
    env_id, name = TASKS[kind]
    knobs = {"batch_size": 32, "hidden_sizes": [8, 8], **changes.pop("algo_kwargs", {})}
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": env_id,
        # shifted, so that advantages of both signs occur from the first update on
        "dataset": {
            "kind": "scripted",
            "name": name,
            "max_episodes": 6,
            "rewards": {"scale": 0.1, "shift": 0.3},
        },
        "total_updates": 10,
        "eval_episodes": 1,
        "tensorboard": False,
        "device": "cpu",
    }
    return TrainConfig(**{**values, **changes, "algo_kwargs": knobs})


def small_learner(config: TrainConfig) -> tuple[Any, TransitionTable]:
    """The algorithm of a config and its data, ready for `step(table.sample(...))`."""
    dataset = load_transition_dataset(config.dataset, env_id=config.env_id)
    algorithm = build_algorithm(config, dataset.spaces)
    table = TransitionTable(
        dataset,
        algorithm.update_count.device,
        gamma=algorithm.gamma,
        with_returns=algorithm.needs_returns,
        at_truncation=config.dataset.returns.at_truncation,
        normalize_observations=config.dataset.normalize_observations,
    )
    return algorithm, table


def cases() -> list[tuple[str, str]]:
    """Every (algorithm, action kind) pair that is supported."""
    from rl_training.experiment.registry import algorithm_names

    return [
        (name, kind)
        for name in algorithm_names()
        for kind in sorted(algorithm_class(name).action_kinds)
    ]
