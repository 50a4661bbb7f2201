"""Starts a run from the policy of another run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.fqe import EvaluatedPolicy, fingerprint_of
from rl_training.algorithms.warm_start import start_from
from rl_training.data.dataset import TransitionDataset
from rl_training.data.statistics import observation_statistics
from rl_training.experiment.config import RewardProcessing, TrainConfig
from rl_training.experiment.errors import CheckpointError, ConfigError
from rl_training.runtime.loops.data import raw_data

if TYPE_CHECKING:
    from rl_training.api.managed import ManagedAlgorithm


def start_policy(
    config: TrainConfig,
    agents: Sequence[Algorithm],
    source_config: TrainConfig,
    source: Algorithm,
    dataset: TransitionDataset | None,
) -> str:
    """Let untrained `agents` of a run start from `source`, which its `init_from` names.

    `dataset` is the run's data where they are in memory. What was taken over is said in a
    sentence.
    """
    described = getattr(config.params, "policy", None)
    if isinstance(described, EvaluatedPolicy) and described.fingerprint not in (
        None,
        fingerprint_of(source),
    ):
        raise ConfigError(
            f"init_from: '{config.init_from}' holds another policy than the one that this run "
            "evaluates (algo_kwargs.policy.fingerprint); start a new run for it"
        )
    statistics = None
    by_data = config.dataset is not None and config.dataset.normalize_observations
    if by_data and not source.normalizer.active:
        data = raw_data(config, agents[0], dataset)
        mean, std = observation_statistics(data)
        statistics = torch.from_numpy(mean), torch.from_numpy(std)
    sections = (config.dataset, source_config.dataset)
    rewards, theirs = (section.rewards if section else RewardProcessing() for section in sections)
    for agent in agents:
        said = start_from(
            agent,
            source,
            str(config.init_from),
            same_rewards=rewards == theirs,
            statistics=statistics,
        )
    return said


def begin(
    config: TrainConfig, agents: Sequence[Algorithm], dataset: TransitionDataset | None
) -> str | None:
    """Let untrained agents start from the policy in `init_from`; returns what they took over.

    `dataset` is the run's data if they are in memory.
    """
    if config.init_from is None:
        return None
    source = initial_agent(config.init_from, str(agents[0].update_count.device))
    return start_policy(config, agents, source.config, source.algorithm, dataset)


def initial_agent(path: str, device: str) -> ManagedAlgorithm:
    """The agent in `init_from`."""
    from rl_training.api.managed import load

    try:
        return load(path, device=device)
    except CheckpointError as error:
        raise ConfigError(f"init_from: {error}") from None
