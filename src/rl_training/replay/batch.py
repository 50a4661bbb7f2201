"""The batch of transitions that an update learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """B transitions on the training device.

    `discount` is gamma (gamma^n for n-step rewards), and 0 only where the next state is
    terminal, so every target is `reward + discount * next_value`; a time limit never ends a
    return. The return-to-go of a truncated episode is completed by bootstrapping:
    `returns_to_go + bootstrap_discount * value(final_obs)`.
    """

    # (B, O) as given to the networks, normalised if the run normalises; images (B, ...) uint8
    obs: Tensor
    action: Tensor  # (B, A) in [-1, 1]; int64 (B,) for Discrete, (B, A) for MultiDiscrete
    reward: Tensor  # (B,) processed
    next_obs: Tensor  # as obs
    discount: Tensor  # (B,)
    returns_to_go: Tensor | None = None  # (B,)
    bootstrap_discount: Tensor | None = None  # (B,) gamma^(steps to the truncation), 0 without one
    final_obs: Tensor | None = None  # as obs, last observation of the episode
    # (B,) rows of a replay buffer, for updating priorities; hides tuple.index, which is not used
    index: Tensor | None = None  # type: ignore[assignment]
    weight: Tensor | None = None  # (B,) importance weights of prioritised sampling
    next_action: Tensor | None = None  # as action: the next action in the data
    has_next_action: Tensor | None = None  # (B,) 1, or 0 if the data do not hold the next step
    past: Any = None  # `models.Past` that the rows come from, for networks with memory


def interleaved(first: Batch, second: Batch, slices: int) -> Batch:
    """Merge two batches so that each of `slices` equal slices holds its share of both."""

    def mixed(x: Tensor | None, y: Tensor | None) -> Tensor | None:
        if x is None or y is None:
            return None
        parts = [tensor.reshape(slices, -1, *tensor.shape[1:]) for tensor in (x, y)]
        return torch.cat(parts, 1).flatten(0, 1)

    return Batch(*map(mixed, first, second))  # type: ignore[arg-type]


def normalized(batch: Batch, normalizer: Callable[[Tensor], Tensor]) -> Batch:
    """Normalise all observations of the batch."""
    return batch._replace(
        obs=normalizer(batch.obs),
        next_obs=normalizer(batch.next_obs),
        final_obs=None if batch.final_obs is None else normalizer(batch.final_obs),
    )


def cut(batch: Batch, slices: int) -> Iterator[Batch]:
    """Split the batch into `slices` equal slices, as views."""
    size = batch.reward.shape[0] // slices
    for start in range(0, size * slices, size):
        yield Batch(*(None if x is None else x[start : start + size] for x in batch))  # type: ignore[arg-type]
