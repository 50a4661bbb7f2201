"""Random numbers of updates, drawn ahead in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import RandomRows
from rl_training.experiment.errors import UnfitStateError
from rl_training.experiment.seeding import derive_seed
from rl_training.experiment.state import Stored

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
        self.numbers = [torch.stack([self._draw(i, seed, 0) for seed in seeds]) for i in self._all]
        """One tensor (agents, BLOCK, ...) per kind."""
        self.row = torch.zeros(1, dtype=torch.int64, device=device)
        """Which row of the block the next update takes."""
        self._rows: list[Tensor] = []

    @property
    def _all(self) -> range:
        return range(len(self.kinds))

    def _draw(self, kind: int, seed: int, block: int) -> Tensor:
        self._generator.manual_seed(derive_seed(seed, "draws", kind, block))
        return self.kinds[kind](self._generator, BLOCK)

    def prepare(self, update: int) -> int:
        """Make ready for updates from number `update` on; for how many the block lasts."""
        block, row = divmod(update, BLOCK)
        if block != self._block:
            self._block = block
            for kind in self._all:
                for numbers, seed in zip(self.numbers[kind], self.seeds, strict=True):
                    numbers.copy_(self._draw(kind, seed, block))
        self.row.fill_(row)
        return BLOCK - row

    @contextmanager
    def row_of(self, numbers: Sequence[Tensor]) -> Iterator[None]:
        """Inside, one update takes the current row of (BLOCK, ...) `numbers`."""
        self._rows = [x.index_select(0, self.row).squeeze(0) for x in reversed(numbers)]
        yield
        self.row.add_(1)

    def take(self, rows: RandomRows) -> Tensor:
        return self._rows.pop()


def kinds_of(algorithm: Any, work: Callable[[], Any]) -> list[RandomRows]:
    """What `work` draws through `algorithm`, found out by doing it."""
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
