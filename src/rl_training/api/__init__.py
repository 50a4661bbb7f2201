"""The managed API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.algorithms import BUILT_IN
from rl_training.api import algorithms
from rl_training.api.managed import ManagedAlgorithm, load
from rl_training.api.seeds import learn_seeds, resume_seeds

if TYPE_CHECKING:
    from rl_training.api.algorithms import *  # noqa: F403

__all__ = [
    *BUILT_IN.values(),
    "ManagedAlgorithm",
    "learn_seeds",
    "load",
    "resume_seeds",
]


def __getattr__(name: str) -> Any:
    if name in BUILT_IN.values():
        return getattr(algorithms, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
