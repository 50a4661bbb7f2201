"""Least squares of one linear head per Discrete action, whose rare actions lean on all others.

Where an action was hardly ever taken, its own rows say little, and a fit of them alone is noise.
So heads are partially pooled: each one is drawn to a common head, as if it had some further rows,
spread over the logged states, that agree with it. Rows of its own outweigh them where they exist.
"""

from __future__ import annotations

import torch
from torch import Tensor

VISITS = 0.3
"""Further rows of each action for each feature, which agree with the common head."""


class PooledHeads:
    """The (A, F) heads w and the common head c that minimise

    sum_a |y_a - X_a w_a|^2 + sum_a (w_a - c)' P (w_a - c) + ridge |c - start|^2

    with P = VISITS F / N sum_a X_a' X_a + ridge. A single head has nothing to lean on: its c is
    `start` and P is the ridge.
    """

    def __init__(self, grams: Tensor, rows: Tensor, ridge: float, first: Tensor) -> None:
        """`grams` are (A, F, F) X'X, `rows` (A,) how many each is made of, `first` (A, F) the heads
        of the trained network, whose mean over rows is `start`."""
        heads, width = first.shape
        self.eye = ridge * torch.eye(width, dtype=torch.float64, device=grams.device)
        self.start = self.eye @ (rows.double() @ first.double() / rows.sum())
        self.pull = self.eye
        if heads > 1:
            self.pull = self.eye + (VISITS * width / float(rows.sum())) * grams.sum(0)
        self.blocks = grams + self.pull
        self.factors = torch.linalg.cholesky(self.blocks)
        common = self.eye.clone()
        for factor in self.factors:
            common += self.pull - self.pull @ torch.cholesky_solve(self.pull, factor)
        self.common = torch.linalg.cholesky(0.5 * (common + common.T))

    def solve(self, right: Tensor) -> Tensor:
        """Heads for (A, F) sums X'y."""
        if len(right) == 1:
            return torch.cholesky_solve((right + self.start)[..., None], self.factors)[..., 0]
        alone = torch.cholesky_solve(right[..., None], self.factors)[..., 0]
        towards = (self.start + self.pull @ alone.sum(0))[:, None]
        drawn = self.pull @ torch.cholesky_solve(towards, self.common)
        return alone + torch.cholesky_solve(drawn[None].expand(len(right), -1, -1), self.factors)[
            ..., 0
        ]

    def solve_at_once(self, right: Tensor, cross: Tensor) -> Tensor:
        """Heads whose sums depend on them: X'y of all heads is `right` + `cross` w, with the
        (A F, A F) matrix `cross` and w one head after the other."""
        heads, width = right.shape
        own = heads * width
        if heads == 1:
            found = torch.linalg.solve(self.blocks[0] - cross, right[0] + self.start)
            return found[None]
        system = right.new_zeros(own + width, own + width)
        system[:own, :own] = torch.block_diag(*self.blocks) - cross
        system[:own, own:] = -self.pull.repeat(heads, 1)
        system[own:, :own] = -self.pull.repeat(1, heads)
        system[own:, own:] = self.eye + heads * self.pull
        found = torch.linalg.solve(system, torch.cat([right.flatten(), self.start]))
        return found[:own].reshape(heads, width)
