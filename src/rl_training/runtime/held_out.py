"""What a policy is worth by the data alone: measures on episodes that no update learns from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.base import Algorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.config import OFFLINE_METRICS, TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.replay.batch import Batch
from rl_training.replay.table import TransitionTable

MOST_ROWS = 20_000
"""Rows that are measured, evenly spaced, so that an evaluation takes as long as some updates."""
ROWS_AT_ONCE = 4_096
MOST_IMAGES, IMAGES_AT_ONCE = 2_000, 256
"""Likewise for images, whose networks take longer and more memory."""
QUERIES, REFERENCES = 1_024, 4_096
"""Rows whose nearest neighbour is looked for, and rows of the training data to look among."""
AGREES_WITHIN = 0.1
"""In inner units, where Box actions range over [-1, 1]."""


class HeldOutData:
    """Episodes that were set aside, on the training device.

    Everything is measured without drawing a random number, but for what `further` may draw.
    """

    def __init__(
        self,
        training: TransitionTable,
        dataset: TransitionDataset,
        gamma: float,
        further: Mapping[str, Callable[[Algorithm], float]] | None = None,
    ) -> None:
        """`further` are slow measures, by name."""
        device = training.device
        self.table = TransitionTable(
            dataset, device, gamma=gamma, with_returns=False, home=training.home
        )
        most = MOST_IMAGES if dataset.spaces.is_image else MOST_ROWS
        self.rows = _spread(len(self.table), most).to(device)
        starts = torch.from_numpy(dataset.episode_starts)
        self.starts = starts[_spread(len(starts), most)].to(device)
        self.queries = _spread(len(self.table), QUERIES).to(device)
        self.training, self.further = training, further or {}
        self.references = _spread(len(training), REFERENCES).to(device)

    @torch.no_grad()
    def measure(self, algorithm: Algorithm) -> dict[str, float]:
        """Every measure that the algorithm supports, by name."""
        found = self._measure(algorithm, self.rows, self.starts, self.queries)
        return found | {name: measure(algorithm) for name, measure in self.further.items()}

    @torch.no_grad()
    def refuse_unmeasured(self, config: TrainConfig, algorithm: Algorithm) -> None:
        """Refuse a metric that the algorithm cannot measure."""
        few = self.rows[:2]
        known = {*self._measure(algorithm, few, self.starts[:2], few), *self.further}
        for key, metric in config.named_metrics.items():
            if metric in OFFLINE_METRICS and metric not in known:
                raise ConfigError(
                    f"{key}: {algorithm.name()} has nothing to measure {metric} with; it has "
                    f"{', '.join(sorted(known))}"
                )

    def _measure(
        self, algorithm: Algorithm, rows: Tensor, starts: Tensor, queries: Tensor
    ) -> dict[str, float]:
        sums: dict[str, float] = {}
        at_once = IMAGES_AT_ONCE if algorithm.spaces.is_image else ROWS_AT_ONCE
        for index in torch.split(rows, at_once):
            for name, values in measures_by_row(algorithm, self._seen(algorithm, index)).items():
                sums[name] = sums.get(name, 0.0) + float(values.double().sum())
        found = {name: total / len(rows) for name, total in sums.items()}
        first = algorithm.state_values(self._seen(algorithm, starts).obs)
        if first is not None:
            found["value_start"] = float(first.double().mean())
        if not algorithm.spaces.is_image:  # of which a distance says nothing
            found["data_distance"] = self.data_distance(algorithm, self._seen(algorithm, queries))
        return {f"offline/{name}": value for name, value in found.items()}

    def _seen(self, algorithm: Algorithm, index: Tensor) -> Batch:
        batch = self.table.gather(index)
        return batch._replace(
            obs=algorithm.network_input(batch.obs), next_obs=algorithm.network_input(batch.next_obs)
        )

    def data_distance(self, algorithm: Algorithm, batch: Batch) -> float:
        """How much further from the training data the policy's pairs of state and action are than
        the logged ones, on the mean; in standard deviations of an observation's component and
        halves of an action's range."""
        known = self.training.gather(self.references)
        seen = known.obs
        mean, std = seen.mean(0), seen.std(0, correction=0) + 1e-3
        choices = algorithm.spaces.choices
        components = len(choices) or algorithm.spaces.action_dim

        def points(obs: Tensor, action: Tensor) -> Tensor:
            if choices:
                parts = zip(action.reshape(len(obs), -1).unbind(1), choices, strict=True)
                action = torch.cat([F.one_hot(part, n) for part, n in parts], 1).to(obs.dtype)
            scaled = (obs - mean) / (std * math.sqrt(obs.shape[1]))
            return torch.cat([scaled, action / math.sqrt(components)], 1)

        data = points(seen, known.action)
        own = points(batch.obs, algorithm.acting_policy.mode(batch.obs))
        logged = points(batch.obs, batch.action)
        distances = [torch.cdist(pairs, data).amin(1).mean() for pairs in (own, logged)]
        return float(distances[0] - distances[1])


def measures_by_row(algorithm: Algorithm, batch: Batch) -> Mapping[str, Tensor]:
    """(B,) of each measure that is a mean over rows."""
    mode = algorithm.acting_policy.mode(batch.obs)
    if not algorithm.spaces.is_box:
        agrees = (mode == batch.action).reshape(len(mode), -1).all(-1)
    else:
        agrees = ((mode - batch.action).abs() <= AGREES_WITHIN).all(-1)
    found = {"action_agreement": agrees}
    td_errors = algorithm.td_errors(batch)
    if td_errors is not None:
        found["td_error"] = td_errors.abs()
    log_probs = algorithm.log_probs(batch.obs, batch.action)
    if log_probs is not None:
        found["log_likelihood"] = log_probs
    logged = algorithm.action_values(batch.obs, batch.action)
    own = None if logged is None else algorithm.action_values(batch.obs, mode)
    if logged is not None and own is not None:
        found["action_gap"] = own - logged
    return found


def _spread(count: int, most: int) -> Tensor:
    """At most `most` of the numbers 0..count-1, evenly spaced."""
    if count <= most:
        return torch.arange(count)
    return torch.from_numpy(np.linspace(0, count - 1, most).round().astype(np.int64))
