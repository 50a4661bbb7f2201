"""Proportional prioritised sampling on a sum tree (Schaul et al. 2016)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.experiment.errors import CheckpointError
from rl_training.experiment.memory import Claim, require_memory
from rl_training.experiment.state import Stored

FAN_OUT = 32
"""Children per node. A node's children are one row of memory, so a level costs a handful of
calls whatever its width: a million leaves are four levels instead of a binary tree's twenty."""

_JUST_BELOW = 1.0 - 2.0**-53  # x * this is the largest double below x


class Priorities:
    """Draws rows in proportion to their priority, and learns new priorities.

    Row i has priority (|TD error| + eps)^alpha, and rows that were just stored the largest
    one seen so far, so that each is drawn soon; rows never stored have 0 and are never
    drawn. All of it is device work of fixed shape without a host sync, from the device's
    generator. Deviates from the paper in one thing: importance weights are scaled by the
    largest of the batch, not of the whole memory, which needs no second tree.
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
        # One flat tensor of doubles, top level first: what is in use is then a prefix, and sums
        # over a million priorities keep every digit that a priority has.
        self.tree = torch.zeros(sum(widths), dtype=torch.float64, device=device)
        self._levels = list(torch.split(self.tree, widths))
        self._families = [level.view(-1, FAN_OUT) for level in self._levels]
        self._first_leaf = sum(widths[:-1])
        self._filled = 0
        self.beta = torch.tensor(beta, dtype=torch.float64, device=device)
        self.max_priority = torch.ones((), dtype=torch.float64, device=device)

    @staticmethod
    def memory_needed(capacity: int) -> int:
        """Bytes that the priorities of `capacity` rows take."""
        return 8 * sum(_level_widths(capacity))

    @property
    def leaves(self) -> Tensor:
        """(capacity,) priorities, a view."""
        return self._levels[-1][: self.capacity]

    def set_beta(self, beta: float) -> None:
        """How much of the sampling bias the weights undo: 0 none, 1 all of it."""
        self.beta.fill_(beta)

    def insert(self, start: int, count: int) -> None:
        """Rows start..start+count-1 hold new transitions: give them the largest priority."""
        stop = start + count
        self._filled = max(self._filled, stop)
        self._levels[-1][start:stop].copy_(self.max_priority)
        self._sum_up(start, stop)

    def remove(self, start: int, count: int) -> None:
        """Rows start..start+count-1 hold nothing any more and are not drawn."""
        self._levels[-1][start : start + count].zero_()
        self._sum_up(start, start + count)

    def _sum_up(self, start: int, stop: int) -> None:
        """Renew the sums above a stretch of leaves."""
        for family, parents in zip(
            reversed(self._families[1:]), reversed(self._levels[:-1]), strict=True
        ):
            start, stop = start // FAN_OUT, (stop - 1) // FAN_OUT + 1
            torch.sum(family[start:stop], 1, out=parents[start:stop])

    def draw(self, size: int) -> tuple[Tensor, Tensor]:
        """(size,) rows and their importance weights; at least one row must have been inserted.

        Stratified: the total is cut into `size` equal stretches with one draw in each. The
        weights are (N * P(row))^-beta over the largest of the batch, which N and the total
        drop out of: (smallest priority / priority)^beta.
        """
        device = self.tree.device
        where = torch.arange(size, device=device) + torch.rand(
            size, dtype=torch.float64, device=device
        )
        where = where * (self._levels[0].sum() / size)
        node = torch.zeros(size, dtype=torch.int64, device=device)
        priority = where
        for family, level in zip(self._families, self._levels, strict=True):
            sums = family.index_select(0, node).cumsum(1)
            # The parent's sum may differ from its children's in the last digit. Strictly below
            # the end and not below zero, the first sum above `where` belongs to a child of
            # positive priority; so no rounding can lead to a row that holds nothing.
            where = torch.minimum(where, sums[:, -1] * _JUST_BELOW).unsqueeze(1)
            child = torch.searchsorted(sums, where, right=True)
            node = node * FAN_OUT + child.squeeze(1)
            priority = level.index_select(0, node)
            before = sums.gather(1, child).squeeze(1) - priority
            where = (where.squeeze(1) - before).clamp_(min=0.0)
        return node, (priority.min() / priority).pow(self.beta).float()

    def update(self, index: Tensor, td_errors: Tensor) -> None:
        """New priorities for (B,) rows; of a row named twice the larger one counts."""
        # A NaN or an infinity here would make every later sum one. The trainer stops the run
        # over the loss it came from; until then draws stay inside the memory.
        error = torch.nan_to_num(td_errors.detach().abs()).double()
        priority = (error + self.eps).pow(self.alpha)
        torch.maximum(self.max_priority, priority.max(), out=self.max_priority)
        # Zero first and then the maximum: the result does not hang on the order of writes,
        # which a GPU does not promise.
        self._levels[-1].index_fill_(0, index, 0.0)
        self._levels[-1].scatter_reduce_(0, index, priority, "amax")
        node = index
        for family, parents in zip(
            reversed(self._families[1:]), reversed(self._levels[:-1]), strict=True
        ):
            node = node // FAN_OUT
            parents.index_copy_(0, node, family.index_select(0, node).sum(1))

    def training_state(self) -> dict[str, Any]:
        """The used part of the tree; shares memory once all of it is used.

        Sums are stored, not recomputed: another order of addition would differ in the last
        digit, and the run would no longer go on exactly.
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
    """Nodes per level, top first, each rounded up to whole families."""
    widths: list[int] = []
    nodes = capacity
    while True:
        families = -(-nodes // FAN_OUT)
        widths.insert(0, families * FAN_OUT)
        if families == 1:
            return widths
        nodes = families


def prefix(tensor: Tensor, length: int) -> Tensor:
    """The first rows for a checkpoint: a copy, since a view would be saved with all that lies
    behind it; the tensor itself where that is all of it."""
    return tensor if length == len(tensor) else tensor[:length].clone()
