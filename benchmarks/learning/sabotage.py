"""Runs whose model is worth nothing: what MBPO must not survive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from rl_training.algorithms.dynamics import FitReport, Fitting
from rl_training.data.batch import Batch
from rl_training.data.model_replay import ModelReplay

MEANING = {
    "shuffled": "the next states of every round of rollouts are permuted among its rows",
    "untrained": "the model is never fitted, and no row of a minibatch is real",
}


@contextmanager
def sabotaged(how: str | None) -> Iterator[None]:
    """Inside, models are spoilt in one of the ways above; None spoils nothing."""
    if how is None:
        yield
    elif how == "shuffled":
        extend = ModelReplay.extend

        def shuffling(self: ModelReplay, batch: Batch) -> None:
            order = torch.randperm(len(batch.reward), device=batch.reward.device)
            extend(self, batch._replace(next_obs=batch.next_obs[order]))

        with patch.object(ModelReplay, "extend", shuffling):
            yield
    else:

        def not_fitting(self: Fitting, data: Batch, *_: Any) -> FitReport:
            return FitReport(0, len(data.reward), {})

        with patch.object(Fitting, "fit", not_fitting):
            yield
