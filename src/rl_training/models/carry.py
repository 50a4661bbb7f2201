"""What a recurrent policy keeps from one step of an episode to the next."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Carry = Any
"""A tree of tensors whose first axis counts rows, one per episode; all zero where an episode
begins. `()` for a policy that keeps nothing."""


def rows_of(carry: Carry, rows: Any) -> Carry:
    """The carry of some rows, by an index or a mask."""
    return tree_map(lambda kept: kept[rows], carry)


def begun(carry: Carry, first: Tensor) -> Carry:
    """The carry with the rows of the (rows,) mask `first` at the beginning of an episode."""

    def fresh(kept: Tensor) -> Tensor:
        mask = first.to(kept.device).reshape(-1, *(1,) * (kept.ndim - 1))
        return kept.masked_fill(mask, 0)

    return tree_map(fresh, carry)


def num_rows(carry: Carry) -> int | None:
    """How many rows a carry is for; None for an empty one."""
    leaves: list[Tensor] = tree_leaves(carry)
    return leaves[0].shape[0] if leaves else None
