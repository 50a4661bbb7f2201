"""The process-wide random generators of Python, NumPy and torch.

All threads share them, so a run is reproducible only if no other thread uses them meanwhile.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rl_training.experiment.errors import RLTrainingError


def seed_global_generators(seed: int) -> None:
    """Seed the process-wide generators, for environments that sample from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class _Use:
    """Which thread uses the generators, and whether it trains."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.learning = 0

    def __enter__(self) -> None:
        while not self.lock.acquire(timeout=0.02):  # other threads hold the lock only briefly
            self.refuse_beside_learning()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def refuse_beside_learning(self) -> None:
        if not self.learning:
            return
        if self.lock.acquire(blocking=False):  # this thread is the one that trains
            self.lock.release()
            return
        raise RLTrainingError(
            "another thread of this process is training, and all threads share the generators of "
            "random numbers: training, making agents, evaluating and drawing actions would change "
            "what it learns; wait for its end, or use a process for each (learn_seeds trains "
            "several seeds at once)"
        )


_use = _Use()


def refuse_beside_learning() -> None:
    """Raise an error if another thread of this process is training."""
    _use.refuse_beside_learning()


def _forget_other_threads() -> None:
    """Release the lock in a forked child process, in which the other threads do not exist."""
    global _use
    if _use.lock.acquire(blocking=False):
        _use.lock.release()
    else:
        _use = _Use()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


@contextmanager
def sole_learner() -> Iterator[None]:
    """While active, this thread trains, and other threads may not use the generators."""
    with _use:
        _use.learning += 1
        try:
            yield
        finally:
            _use.learning -= 1


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Restore the state of the global generators on exit."""
    with _use:
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
        kept = _state_of_python_and_numpy()
        try:
            with torch.random.fork_rng(devices=devices):
                yield
        finally:
            _restore_python_and_numpy(kept)


def fingerprint() -> tuple[Any, ...]:
    """Return a value that changes when a host generator was sampled from."""
    of_python, (name, keys, *rest) = _state_of_python_and_numpy()
    return of_python, name, keys.tobytes(), *rest, torch.get_rng_state().numpy().tobytes()


class OwnGenerators:
    """Private copies of the global generators for one environment.

    They start in the state of the process's generators, and `begin_episode` seeds them.
    """

    def __init__(self) -> None:
        self._kept = _state()

    def begin_episode(self, seed: int) -> None:
        with untouched_randomness():
            seed_global_generators(seed)
            self._kept = _state()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While active, these are the global generators."""
        others = _state()
        _restore(self._kept)
        try:
            yield
        finally:
            self._kept = _state()
            _restore(others)

    def around(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap a function so that it samples from these generators."""

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
