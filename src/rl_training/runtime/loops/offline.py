"""Learning from a fixed data set: draw, update, count."""

from __future__ import annotations

import math
from typing import Any

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.data.dataset import TransitionDataset
from rl_training.data.table import TransitionTable
from rl_training.experiment.config import DatasetConfig, TrainConfig
from rl_training.experiment.errors import CheckpointError
from rl_training.runtime.agents import OneAgent
from rl_training.runtime.controls import Progress
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component
from rl_training.runtime.profile import Part


class OfflineLoop:
    """The clock counts updates; an epoch is as many of them as read the data set once."""

    unit = "updates"

    def __init__(
        self, config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset
    ) -> None:
        options = config.dataset or DatasetConfig(kind="random")
        device = algorithm.update_count.device
        self.table = TransitionTable(
            dataset,
            device,
            gamma=algorithm.gamma,
            with_returns=algorithm.needs_returns,
            at_truncation=options.returns.at_truncation,
            normalize_observations=options.normalize_observations,
        )
        if options.normalize_observations:
            mean, std = self.table.obs_mean, self.table.obs_std
            algorithm.normalizer.set_statistics(torch.from_numpy(mean), torch.from_numpy(std))
        batch_size = int(algorithm.params.batch_size)
        self.progress = Progress()
        self.fingerprint = DataFingerprint(dataset)
        epoch = math.ceil(len(self.table) / batch_size)
        self.total = config.total_updates or (config.total_epochs or 0) * epoch
        learner = OneAgent(
            algorithm,
            lambda learner: self.table.sample(batch_size, learner.random),
            seed=config.seed,
        )
        self.engine = Engine(learner, config.engine, self.total)

    @property
    def tick(self) -> int:
        return self.progress.updates

    def advance(self, ticks: int) -> Metrics:
        metrics = self.engine.run(ticks)
        self.progress.updates += ticks
        return metrics

    def report(self) -> dict[str, float]:
        return {}

    def parts(self) -> list[Part]:
        return [Part(self.engine, "run", "update")]

    def close(self) -> None:
        pass

    def components(self) -> dict[str, Component]:
        return {"data": self.fingerprint}


class DataFingerprint:
    """Remembers which data a run learned from, and refuses to go on with other data."""

    def __init__(self, dataset: TransitionDataset) -> None:
        self.name = dataset.name
        self.value = dataset.fingerprint()

    def training_state(self) -> dict[str, Any]:
        return {"fingerprint": self.value}

    def load_training_state(self, state: dict[str, Any]) -> None:
        if state["fingerprint"] != self.value:
            raise CheckpointError(
                f"data set '{self.name}' is not the one this run was trained on (its contents "
                "differ); restore the original data or start a new run"
            )
