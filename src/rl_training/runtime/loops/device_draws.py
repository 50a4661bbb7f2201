"""Random numbers of runs in worlds on the device, computed from their seeds.

What a run draws depends on its seed, on how far it is and on nothing else: not on torch's
generators, on which runs are trained beside it, on how steps are captured or on where it was
resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rl_training.envs.device.streams import mixed, normals, uniforms
from rl_training.experiment.seeding import derive_seed
from rl_training.models.draws import drawing_from

PLACES = 64
"""Most draws of one step."""


class DeviceDraws:
    """The random numbers of one run or several, one per seed."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        purposes = ("actions", "shuffles", "rows")
        keys = [[derive_seed(seed, name) for seed in seeds] for name in purposes]
        self.actions, self._shuffles, self._rows = torch.tensor(keys, device=device).unbind()

    @contextmanager
    def of_step(self, key: Tensor, step: Tensor) -> Iterator[None]:
        """While active, actions are drawn for step number `step` of the run whose entry of
        `actions` is `key`; both are 0-d."""
        with drawing_from(_StepDraws(key, step)):
            yield

    def orders(self, size: int, count: int) -> Tensor:
        """(runs, size) random orders of as many rows, after `count` updates."""
        return _hashes(self._shuffles, count, size).argsort(1)

    def places(self, size: int, count: Tensor) -> Tensor:
        """(runs, size) float64 numbers in [0, 1), at update number `count`, a 0-d tensor."""
        bits = _hashes(self._rows, count, size) >> 11  # 53 bits, as a double has
        return (bits & (2**53 - 1)).double() * 2.0**-53


def _hashes(keys: Tensor, count: int | Tensor, size: int) -> Tensor:
    """(runs, size) random int64 numbers."""
    place = torch.arange(1, size + 1, device=keys.device)
    return mixed(mixed(keys + mixed(_one(keys) * count)).unsqueeze(1) + mixed(place))


def _one(keys: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.int64, device=keys.device)


class _StepDraws:
    """The numbers of one step of one run."""

    def __init__(self, key: Tensor, step: Tensor) -> None:
        self._key, self._step, self._draws = key, step, 0

    def _seed(self) -> Tensor:
        """(1,), of the next draw."""
        assert self._draws < PLACES
        place = self._step * PLACES + self._draws
        self._draws += 1
        return mixed(self._key + mixed(place + 1)).unsqueeze(0)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        size = torch.Size(shape)
        return uniforms(self._seed(), size.numel()).view(size)

    def normal(self, shape: Sequence[int]) -> Tensor:
        size = torch.Size(shape)
        return normals(self._seed(), size.numel()).view(size)
