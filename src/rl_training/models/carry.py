"""The recurrent state that a policy carries from step to step."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Carry = Any
"""A tree of tensors with one row per episode in their first axis, all zero at a reset; `()` for
a policy without state."""


def rows_of(carry: Carry, rows: Any) -> Carry:
    """Select rows of the carry by an index or a mask."""
    return tree_map(lambda kept: kept[rows], carry)


def reset_rows(carry: Carry, first: Tensor) -> Carry:
    """Set the rows of the (rows,) mask `first` to the state at a reset."""

    def fresh(kept: Tensor) -> Tensor:
        mask = first.to(kept.device).reshape(-1, *(1,) * (kept.ndim - 1))
        return kept.masked_fill(mask, 0)

    return tree_map(fresh, carry)


def num_rows(carry: Carry) -> int | None:
    """The number of rows of a carry; None for an empty one."""
    leaves: list[Tensor] = tree_leaves(carry)
    return leaves[0].shape[0] if leaves else None
