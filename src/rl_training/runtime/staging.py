"""Rows of a table that does not live on the device, brought there some updates at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from rl_training.replay.table import FetchedRows

SPANS = (200, 100, 50, 40, 20, 10)
"""Updates whose rows may be staged at once: divisors of a block, multiples of a long graph."""
MOST_BYTES = 64 << 20
"""Size of what is staged, unless ten updates need more."""
SPARE = 8
"""Rows after the last: a graph's warm-up may run past it before it is undone."""


class StagedRows:
    """The rows that the next updates of each agent learn from.

    A thread gathers those of the next span into a second buffer on the host while the updates of
    this one run. It calls nothing of the device, since a graph may be captured meanwhile.
    `numbers` gives the (agents, block size, batch size) row numbers of a block.
    """

    def __init__(
        self, kind: FetchedRows, agents: int, numbers: Callable[[int], Tensor], block_size: int
    ) -> None:
        self._table, self._numbers, self._block_size = kind.table, numbers, block_size
        device, one = kind.table.device, 4 * agents * kind.size * kind.width
        self.span = next((n for n in SPANS if n * one <= MOST_BYTES), SPANS[-1])
        shape = (agents, self.span, kind.size, kind.width)
        self.rows = torch.zeros(agents, self.span + SPARE, *shape[2:], device=device)
        """(agents, span, batch size, width) on the device, and some spare rows."""
        self.row = torch.zeros(1, dtype=torch.int64, device=device)
        """Which row of the span the next update takes."""
        on_cuda = device.type == "cuda"
        self._buffers = [torch.empty(shape, pin_memory=on_cuda) for _ in range(2)]
        self._copied: list[Any] = []  # an event per buffer
        if on_cuda:
            self._copied = [torch.cuda.Event() for _ in self._buffers]  # type: ignore[no-untyped-call]
        self._staged = -1
        self._block: tuple[int, Tensor] | None = None
        self._ahead: tuple[int, Future[Tensor]] | None = None
        self._worker = ThreadPoolExecutor(1, "rows")

    def prepare(self, update: int) -> int:
        """Stage the rows of update number `update`; for how many updates they suffice."""
        span, row = divmod(update, self.span)
        if span != self._staged:
            self._stage(span)
        self.row.fill_(row)
        return self.span - row

    def _stage(self, span: int) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            gathered = ahead[1].result()
        if ahead is None or ahead[0] != span:  # the first, or after a checkpoint was loaded
            gathered = self._gathered(self._indices(span), self._free_buffer(span))
        self.rows[:, : self.span].copy_(gathered, non_blocking=True)
        if self._copied:
            self._copied[span % 2].record()
        self._staged = span
        indices, buffer = self._indices(span + 1), self._free_buffer(span + 1)
        self._ahead = (span + 1, self._worker.submit(self._gathered, indices, buffer))

    def _free_buffer(self, span: int) -> Tensor:
        """The host's buffer of a span, once the device has taken what was in it."""
        if self._copied:
            self._copied[span % 2].synchronize()
        return self._buffers[span % 2]

    def _indices(self, span: int) -> Tensor:
        """(agents, span, batch size) row numbers, on the host."""
        block, first = divmod(span * self.span, self._block_size)
        if self._block is None or self._block[0] != block:
            self._block = (block, self._numbers(block))
        return self._block[1][:, first : first + self.span]

    def _gathered(self, indices: Tensor, buffer: Tensor) -> Tensor:
        for own, rows in zip(indices, buffer, strict=True):
            rows.view(-1, rows.shape[-1]).copy_(self._table.fetch(own.flatten()))
        return buffer
