"""The generators that a process has but one of: Python's, NumPy's and torch's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_global_generators(seed: int) -> None:
    """For environments that draw from them against the rules."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Leave the global generators as they were, whatever happens inside."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    kept = _state_of_python_and_numpy()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        _restore_python_and_numpy(kept)


def fingerprint() -> tuple[Any, ...]:
    """Equal to an earlier one unless a number was drawn from a global generator on the host."""
    of_python, (name, keys, *rest) = _state_of_python_and_numpy()
    return of_python, name, keys.tobytes(), *rest, torch.get_rng_state().numpy().tobytes()


class OwnGenerators:
    """Global generators that one environment has to itself.

    They begin like the process's, and `begin_episode` seeds them.
    """

    def __init__(self) -> None:
        self._kept = _state()

    def begin_episode(self, seed: int) -> None:
        with untouched_randomness():
            seed_global_generators(seed)
            self._kept = _state()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, these are the global ones."""
        others = _state()
        _restore(self._kept)
        try:
            yield
        finally:
            self._kept = _state()
            _restore(others)

    def around(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function, which finds these in place of the global ones."""

        def call(argument: Any) -> Any:
            with self.in_place():
                return function(argument)

        return call


def _state_of_python_and_numpy() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=True)


def _restore_python_and_numpy(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


def _state() -> tuple[tuple[Any, Any], torch.Tensor]:
    return _state_of_python_and_numpy(), torch.get_rng_state()


def _restore(state: tuple[tuple[Any, Any], torch.Tensor]) -> None:
    _restore_python_and_numpy(state[0])
    torch.set_rng_state(state[1])
