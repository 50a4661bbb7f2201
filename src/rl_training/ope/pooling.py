"""Least squares of one linear head per Discrete action, whose rare actions lean on all others.

Where an action was hardly ever taken, its own rows say little, and a fit of them alone is noise.
So heads are partially pooled: each one is drawn to a common head, as if it had some further rows,
spread over the logged states, that agree with it. Rows of its own outweigh them where they exist.

A bootstrap of the logged rows does not see that these further rows are assumed. So a replicate
draws them as well: its heads are drawn to the common one plus noise, as large as the scatter of
logged targets makes it. For fixed targets the draws are those of Bayesian linear regression.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

VISITS = 0.3
"""Further rows of each action for each feature, which agree with the common head."""


class PooledHeads:
    """The (A, F) heads w and the common head c that minimise

    sum_a |y_a - X_a w_a|^2 + sum_a (w_a - c - e_a)' P (w_a - c - e_a) + ridge |c - start|^2

    with P = VISITS F / N sum_a X_a' X_a + ridge. e is 0, or drawn from N(0, P^-1) times the scatter
    of y. A single head has nothing to lean on: its c is `start`, P is the ridge and e is 0.
    """

    def __init__(
        self, grams: Tensor, rows: Tensor, ridge: float, first: Tensor, draw: int | None = None
    ) -> None:
        """`grams` are (A, F, F) X'X, `rows` (A,) how many each is made of, `first` (A, F) the heads
        of the trained network, whose mean over rows is `start`; `draw` is the seed of e."""
        heads, width = first.shape
        self.grams, self.rows = grams, float(rows.sum())
        self.eye = ridge * torch.eye(width, dtype=torch.float64, device=grams.device)
        self.start = self.eye @ (rows.double() @ first.double() / rows.sum())
        self.pull = self.eye
        if heads > 1:
            self.pull = self.eye + (VISITS * width / self.rows) * grams.sum(0)
        self.drawn: Tensor | None = None
        """(A, F) P e for a scatter of 1."""
        self.noise: Tensor | None = None
        """(A, F) what it adds to the heads."""
        if draw is not None and heads > 1:
            noise = torch.randn(heads, width, generator=torch.Generator().manual_seed(draw))
            self.drawn = noise.double().to(grams.device) @ torch.linalg.cholesky(self.pull).T
            self.noise = self._pooled(self.drawn, -self.drawn.sum(0))

    @cached_property
    def _inverses(self) -> list[Tensor]:
        """Of X'X + P: products with them are faster than solves, and steps are many."""
        return [
            torch.cholesky_inverse(torch.linalg.cholesky(gram + self.pull)) for gram in self.grams
        ]

    @cached_property
    def _common(self) -> Tensor:
        """Cholesky factor of the equations of c."""
        common = self.eye.clone()
        for inverse in self._inverses:
            common += self.pull - self.pull @ inverse @ self.pull
        factor: Tensor = torch.linalg.cholesky(0.5 * (common + common.T))
        return factor

    def solve(self, right: Tensor) -> Tensor:
        """Heads for (A, F) sums X'y, without e."""
        if len(right) == 1:
            return self._alone(right + self.start)
        return self._pooled(right, self.start)

    def _alone(self, right: Tensor) -> Tensor:
        pairs = zip(self._inverses, right, strict=True)
        return torch.stack([inverse @ sums for inverse, sums in pairs])

    def _pooled(self, right: Tensor, of_common: Tensor) -> Tensor:
        alone = self._alone(right)
        towards = (of_common + self.pull @ alone.sum(0))[:, None]
        drawn = self.pull @ torch.cholesky_solve(towards, self._common)[:, 0]
        return alone + self._alone(drawn.expand_as(right))

    def solve_at_once(self, right: Tensor, cross: Tensor) -> tuple[Tensor, Tensor | None]:
        """Heads whose sums depend on them, and what noise adds to them: X'y of all heads is
        `right` + `cross` w, with the (A F, A F) matrix `cross` and w one head after the other."""
        heads, width = right.shape
        own = heads * width
        if heads == 1:
            system = self.grams[0] + self.pull - cross
            return torch.linalg.solve(system, right[0] + self.start)[None], None
        whole = right.new_zeros(own + width, own + width)
        whole[:own, :own] = -cross
        for a, gram in enumerate(self.grams):
            place = slice(a * width, (a + 1) * width)
            whole[place, place] += gram + self.pull
        whole[:own, own:] = -self.pull.repeat(heads, 1)
        whole[own:, :own] = -self.pull.repeat(1, heads)
        whole[own:, own:] = self.eye + heads * self.pull
        sides = [torch.cat([right.flatten(), self.start])]
        if self.drawn is not None:
            sides.append(torch.cat([self.drawn.flatten(), -self.drawn.sum(0)]))
        found = torch.linalg.solve(whole, torch.stack(sides, 1))[:own].T.reshape(-1, heads, width)
        return found[0], None if self.drawn is None else found[1]

    def scatter(self, heads: Tensor, right: Tensor, squares: float) -> float:
        """Root mean square error of heads to targets, from their (A, F) sums X'y and y'y."""
        fitted = torch.einsum("af,afg,ag->", heads, self.grams, heads)
        return math.sqrt(
            max(0.0, squares + float(fitted - 2.0 * (heads * right).sum())) / self.rows
        )
