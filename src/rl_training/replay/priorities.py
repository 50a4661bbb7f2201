"""Proportional prioritised sampling on a sum tree (Schaul et al. 2016)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.experiment.errors import CheckpointError
from rl_training.experiment.memory import Claim, require_memory
from rl_training.experiment.state import Stored

FAN_OUT = 32
"""Children per node. The children of a node are one row of memory, so a level costs a few calls
at any width: a million leaves take four levels instead of the twenty of a binary tree."""

_JUST_BELOW = 1.0 - 2.0**-53  # x times this is the largest double below x


class Priorities:
    """Samples rows in proportion to their priority and updates priorities.

    Row i has priority (|TD error| + eps)^alpha. New rows get the largest priority so far, so
    that each is sampled soon; empty rows have priority 0 and are never sampled. All operations
    have fixed shapes, need no host sync and use the device's generator. One difference from
    the paper: importance weights are divided by the largest weight of the batch instead of the
    whole memory, which avoids a second tree.
    """

    def __init__(
        self,
        capacity: int,
        device: torch.device,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
    ) -> None:
        require_memory(device, Claim("the priorities", capacity, self.memory_needed(capacity)))
        self.capacity, self.alpha, self.eps = capacity, alpha, eps
        widths = _level_widths(capacity)
        # One flat tensor, top level first, so that the part in use is a prefix. Doubles, so that
        # sums over a million priorities lose no digit of a float32 priority.
        self.tree = torch.zeros(sum(widths), dtype=torch.float64, device=device)
        self.levels = list(torch.split(self.tree, widths))
        self._families = [level.view(-1, FAN_OUT) for level in self.levels]
        self._first_leaf = sum(widths[:-1])
        self._filled = 0
        self.beta = torch.tensor(beta, dtype=torch.float64, device=device)
        self.max_priority = torch.ones((), dtype=torch.float64, device=device)

    @staticmethod
    def memory_needed(capacity: int) -> int:
        """Bytes of the priorities of `capacity` rows."""
        return 8 * sum(_level_widths(capacity))

    @property
    def leaves(self) -> Tensor:
        """The (capacity,) priorities, as a view."""
        return self.levels[-1][: self.capacity]

    def set_beta(self, beta: float) -> None:
        """Set how much of the sampling bias the weights correct: 0 for none, 1 for all."""
        self.beta.fill_(beta)

    def insert(self, start: int, count: int) -> None:
        """Give the largest priority to rows start..start+count-1, which hold new transitions."""
        stop = start + count
        self._filled = max(self._filled, stop)
        self.levels[-1][start:stop].copy_(self.max_priority)
        self._sum_up(start, stop)

    def remove(self, start: int, count: int) -> None:
        """Set the priority of rows start..start+count-1, which are now empty, to 0."""
        self.levels[-1][start : start + count].zero_()
        self._sum_up(start, start + count)

    def _sum_up(self, start: int, stop: int) -> None:
        """Recompute the sums above a range of leaves."""
        for family, parents in zip(
            reversed(self._families[1:]), reversed(self.levels[:-1]), strict=True
        ):
            start, stop = start // FAN_OUT, (stop - 1) // FAN_OUT + 1
            torch.sum(family[start:stop], 1, out=parents[start:stop])

    def draw(self, size: int) -> tuple[Tensor, Tensor]:
        """Sample (size,) rows and their importance weights; at least one row must be stored.

        Sampling is stratified: the total is split into `size` equal segments with one sample
        in each. The weights are (N * P(row))^-beta divided by the largest one of the batch, in
        which N and the total cancel: (smallest priority / priority)^beta.
        """
        return self.draw_at(torch.rand(size, dtype=torch.float64, device=self.tree.device))

    def draw_at(self, within: Tensor) -> tuple[Tensor, Tensor]:
        """What `draw` samples for (size,) places in [0, 1), each within its segment."""
        size, device = len(within), within.device
        where = torch.arange(size, device=device) + within
        where = where * (self.levels[0].sum() / size)
        node = torch.zeros(size, dtype=torch.int64, device=device)
        priority = where
        for family, level in zip(self._families, self.levels, strict=True):
            sums = family.index_select(0, node).cumsum(1)
            # The parent's value may differ from the sum of its children in the last digit. With
            # `where` clamped to [0, sum), the first cumulative sum above it belongs to a child of
            # positive priority, so rounding can never select an empty row.
            where = torch.minimum(where, sums[:, -1] * _JUST_BELOW).unsqueeze(1)
            child = torch.searchsorted(sums, where, right=True)
            node = node * FAN_OUT + child.squeeze(1)
            priority = level.index_select(0, node)
            before = sums.gather(1, child).squeeze(1) - priority
            where = (where.squeeze(1) - before).clamp_(min=0.0)
        return node, (priority.min() / priority).pow(self.beta).float()

    def update(self, index: Tensor, td_errors: Tensor) -> None:
        """Set new priorities for (B,) rows; of duplicates the largest priority counts."""
        # A NaN or an infinity would spread to every later sum. The trainer stops the run because
        # of the loss; until then sampling must stay inside the memory.
        error = torch.nan_to_num(td_errors.detach().abs()).double()
        priority = (error + self.eps).pow(self.alpha)
        torch.maximum(self.max_priority, priority.max(), out=self.max_priority)
        # Zero first, then the maximum: the result does not depend on the order of writes, which
        # a GPU does not guarantee.
        self.levels[-1].index_fill_(0, index, 0.0)
        self.levels[-1].scatter_reduce_(0, index, priority, "amax")
        node = index
        for family, parents in zip(
            reversed(self._families[1:]), reversed(self.levels[:-1]), strict=True
        ):
            node = node // FAN_OUT
            parents.index_copy_(0, node, family.index_select(0, node).sum(1))

    def training_state(self) -> dict[str, Any]:
        """Return the used part of the tree, which shares memory once all of it is used.

        Sums are stored, not recomputed: another order of addition could change the last digit,
        and the resumed run would not be exact.
        """
        return {
            "capacity": self.capacity,
            "tree": prefix(self.tree, self._first_leaf + self._filled),
            "max_priority": self.max_priority.clone(),
            "beta": self.beta.clone(),
        }

    def load_training_state(self, state: dict[str, Any] | Stored) -> None:
        stored = Stored(state, "priorities")
        capacity = stored.whole("capacity")
        if capacity != self.capacity:
            raise CheckpointError(
                f"the checkpoint holds priorities for {capacity:,} transitions, but the "
                f"run has {self.capacity:,}; resume with the buffer_capacity it was saved with"
            )
        tree = stored.tensor("tree", torch.float64, None)
        used = len(tree)
        sound = torch.isfinite(tree).all() and (tree >= 0.0).all()
        if not (self._first_leaf <= used <= len(self.tree) and bool(sound)):
            raise stored.wrong("tree", f"finite priorities, at most {len(self.tree):,}")
        self.tree[:used].copy_(tree)
        self.tree[used:].zero_()
        self._filled = used - self._first_leaf
        self.max_priority.copy_(stored.tensor_like("max_priority", self.max_priority))
        self.beta.copy_(stored.tensor_like("beta", self.beta))


def _level_widths(capacity: int) -> list[int]:
    """Nodes per level, top first, each rounded up to whole groups of siblings."""
    widths: list[int] = []
    nodes = capacity
    while True:
        families = -(-nodes // FAN_OUT)
        widths.insert(0, families * FAN_OUT)
        if families == 1:
            return widths
        nodes = families


def prefix(tensor: Tensor, length: int) -> Tensor:
    """Return the first rows for a checkpoint: a copy, because torch.save would write the whole
    storage of a view, or the tensor itself if these are all rows."""
    return tensor if length == len(tensor) else tensor[:length].clone()
