"""Runs whose model is worth nothing: what MBPO and Dreamer must not survive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from rl_training.algorithms.fitting import FitReport, Fitting
from rl_training.replay.batch import Batch
from rl_training.replay.model_replay import ModelReplay
from rl_training.replay.sequences import SequenceBatch, SequenceReplay

MEANING = {
    "shuffled": "the next states of every round of rollouts are permuted among its rows",
    "untrained": "the model is never fitted, and no row of a minibatch is real",
    "shuffled_actions": "the actions of every batch of sequences are permuted among its moments",
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
    elif how == "shuffled_actions":
        sample = SequenceReplay.sample

        def mixing(self: SequenceReplay, *arguments: Any, **named: Any) -> SequenceBatch:
            batch = sample(self, *arguments, **named)
            flat = batch.action.flatten(0, 1)
            order = torch.randperm(len(flat), device=flat.device)
            return batch._replace(action=flat[order].view_as(batch.action))

        with patch.object(SequenceReplay, "sample", mixing):
            yield
    else:

        def not_fitting(self: Fitting, data: Batch, *_: Any) -> FitReport:
            return FitReport(0, len(data.reward), {})

        with patch.object(Fitting, "fit", not_fitting):
            yield
