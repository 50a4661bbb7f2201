"""The unit every update consumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """B transitions on the training device.

    `discount` is gamma (gamma^n for n-step rewards), and 0 only where the next state is
    terminal, so every target reads `reward + discount * next_value`; a time limit never
    ends a return. Where an episode was cut by a time limit, its return-to-go continues as
    `returns_to_go + bootstrap_discount * value(final_obs)`.
    """

    # (B, O) as the networks see it, normalised where the run normalises; images (B, ...) uint8
    obs: Tensor
    action: Tensor  # (B, A) in [-1, 1], or (B,) int64 for Discrete
    reward: Tensor  # (B,) processed
    next_obs: Tensor  # as obs
    discount: Tensor  # (B,)
    returns_to_go: Tensor | None = None  # (B,)
    bootstrap_discount: Tensor | None = None  # (B,) gamma^(steps to the cut), 0 where none
    final_obs: Tensor | None = None  # as obs, last observation of the episode
    # (B,) rows of a replay buffer, for priorities fed back; hides tuple.index, which nobody needs
    index: Tensor | None = None  # type: ignore[assignment]
    weight: Tensor | None = None  # (B,) importance weights of prioritised sampling
    next_action: Tensor | None = None  # as action: what the data did next
    has_next_action: Tensor | None = None  # (B,) 1, or 0 where the episode goes on unrecorded


def interleaved(first: Batch, second: Batch, slices: int) -> Batch:
    """Both batches in one, so that each of `slices` equal cuts holds its share of either."""

    def mixed(x: Tensor | None, y: Tensor | None) -> Tensor | None:
        if x is None or y is None:
            return None
        parts = [tensor.reshape(slices, -1, *tensor.shape[1:]) for tensor in (x, y)]
        return torch.cat(parts, 1).flatten(0, 1)

    return Batch(*map(mixed, first, second))  # type: ignore[arg-type]


def normalized(batch: Batch, normalizer: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with all its observations normalised."""
    return batch._replace(
        obs=normalizer(batch.obs),
        next_obs=normalizer(batch.next_obs),
        final_obs=None if batch.final_obs is None else normalizer(batch.final_obs),
    )


def cut(batch: Batch, slices: int) -> Iterator[Batch]:
    """The batch in `slices` equal cuts, as views."""
    size = batch.reward.shape[0] // slices
    for start in range(0, size * slices, size):
        yield Batch(*(None if x is None else x[start : start + size] for x in batch))  # type: ignore[arg-type]
