"""Random numbers of updates, sampled ahead in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.learner import RandomRows
from rl_training.experiment.errors import UnfitStateError
from rl_training.experiment.seeding import derive_seed
from rl_training.experiment.state import Stored
from rl_training.replay.table import FetchedRows
from rl_training.runtime.staging import StagedRows

BLOCK = 200
"""Updates whose random numbers are drawn at once."""


class RandomBlocks:
    """The random numbers of every update, for each of several agents.

    What update u of an agent draws depends on the agent's seed, on u and on the kind of
    device, and on nothing else: not on how updates are executed or grouped, on what other
    agents run beside it, or on where the run was resumed. `kinds` are what one update
    draws, in its order (see `kinds_of`).
    """

    def __init__(
        self, kinds: Sequence[RandomRows], seeds: Sequence[int], device: torch.device
    ) -> None:
        self.kinds, self.seeds = kinds, seeds
        self._generator = torch.Generator(device)
        self._block = -1
        self.staged = {
            i: StagedRows(kind, len(seeds), partial(self._row_numbers, i), BLOCK)
            for i, kind in enumerate(kinds)
            if isinstance(kind, FetchedRows)
        }
        """Kinds that are rows of a table which does not live on the device."""
        self.numbers = [
            self.staged[i].rows if i in self.staged else self._drawn(i, 0)
            for i in range(len(kinds))
        ]
        """One tensor (agents, BLOCK, ...) per kind; of those that are staged, fewer rows."""
        self.row = torch.zeros(1, dtype=torch.int64, device=device)
        """Which row of the block the next update takes."""
        self._rows: list[Tensor] = []

    @property
    def counters(self) -> list[Tensor]:
        """The tensors that count updates."""
        return [self.row, *(staged.row for staged in self.staged.values())]

    def _drawn(self, kind: int, block: int) -> Tensor:
        return torch.stack([self._draw(self.kinds[kind], kind, seed, block) for seed in self.seeds])

    def _row_numbers(self, kind: int, block: int) -> Tensor:
        rows = self.kinds[kind]
        assert isinstance(rows, FetchedRows)
        draws = [self._draw(rows.numbers, kind, seed, block) for seed in self.seeds]
        return torch.stack(draws).cpu()

    def _draw(self, rows: RandomRows, kind: int, seed: int, block: int) -> Tensor:
        self._generator.manual_seed(derive_seed(seed, "draws", kind, block))
        return rows(self._generator, BLOCK)

    def prepare(self, update: int) -> int:
        """Prepare updates from number `update` on; returns for how many that suffices."""
        block, row = divmod(update, BLOCK)
        if block != self._block:
            self._block = block
            for kind, numbers in enumerate(self.numbers):
                if kind not in self.staged:
                    for own, seed in zip(numbers, self.seeds, strict=True):
                        own.copy_(self._draw(self.kinds[kind], kind, seed, block))
        self.row.fill_(row)
        return min([BLOCK - row, *(staged.prepare(update) for staged in self.staged.values())])

    @contextmanager
    def row_of(self, numbers: Sequence[Tensor]) -> Iterator[None]:
        """While active, one update takes the current row of (BLOCK, ...) `numbers`."""
        rows = [self.row if i not in self.staged else self.staged[i].row for i in self._all]
        taken = [x.index_select(0, row).squeeze(0) for x, row in zip(numbers, rows, strict=True)]
        self._rows = taken[::-1]
        yield
        for counter in self.counters:
            counter.add_(1)

    @property
    def _all(self) -> range:
        return range(len(self.kinds))

    def take(self, rows: RandomRows) -> Tensor:
        return self._rows.pop()


def kinds_of(algorithm: Any, work: Callable[[], Any]) -> list[RandomRows]:
    """The random numbers that `work` samples through `algorithm`, found by running it once."""
    recorder = _Recorder()
    algorithm.drawn_ahead = recorder
    work()
    return recorder.kinds


class _Recorder:
    def __init__(self) -> None:
        self.kinds: list[RandomRows] = []

    def take(self, rows: RandomRows) -> Tensor:
        self.kinds.append(rows)
        return rows(None, 1)[0]


class TorchRandom:
    """Torch's random streams as a part of the checkpoint."""

    def training_state(self) -> dict[str, Any]:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {"cpu": torch.get_rng_state(), "cuda": cuda}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "random")
        cpu = stored.tensor_like("cpu", torch.get_rng_state())
        try:
            if stored.entries("cuda") and torch.cuda.is_available():
                own = torch.cuda.get_rng_state_all()
                torch.cuda.set_rng_state_all(stored.tensors_like("cuda", own))
            torch.set_rng_state(cpu)
        except RuntimeError:  # bytes that are no state of a generator
            raise UnfitStateError("'random' should hold states of random generators") from None
