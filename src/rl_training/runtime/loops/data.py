"""Reads, checks and processes the data set of a run."""

from __future__ import annotations

from rl_training.algorithms.base import Algorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.data.episodes import chosen_episodes
from rl_training.data.rewards import apply_reward_processing
from rl_training.data.sources import load_transition_dataset
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import DatasetConfig, RewardProcessing, TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import algorithm_class


def training_data(
    config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset | None
) -> TransitionDataset:
    """The processed data of an offline run."""
    if config.total_updates is None and config.total_epochs is None:
        online = "" if algorithm.online_loop is None else ", or total_timesteps to go on online"
        raise ConfigError(f"total_updates: give a budget, total_updates or total_epochs{online}")
    processing = require_dataset(config, "data").rewards
    return apply_reward_processing(raw_data(config, algorithm, dataset), processing)


def require_dataset(config: TrainConfig, what: str) -> DatasetConfig:
    """The data section of a run that learns from `what`; an error if there is none."""
    if config.dataset is None:
        raise ConfigError(
            f"dataset: {config.algo} learns from {what}; add for example "
            "'dataset: {kind: npz, path: data.npz}'"
        )
    return config.dataset


def raw_data(
    config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset | None
) -> TransitionDataset:
    """The run's data with unprocessed rewards."""
    if dataset is None:
        dataset = read_data(config, algorithm.spaces)
    return chosen_episodes(dataset, require_dataset(config, "data"))


def read_data(config: TrainConfig, spaces: Spaces | None) -> TransitionDataset:
    """All data that a config names, with unprocessed rewards; without `spaces`, the spaces come
    from its environment or the data."""
    as_they_are = {"rewards": RewardProcessing(), "keep": None, "split": None}
    return load_transition_dataset(
        require_dataset(config, "data").model_copy(update=as_they_are),
        env_id=config.env_id,
        env_kwargs=config.task_kwargs,
        spaces=spaces,
        needs_rewards=algorithm_class(config.algo).needs_rewards,
        widen_constants=False,
    )
