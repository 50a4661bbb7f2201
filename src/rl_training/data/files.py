"""Optional packages, and what they raise over damaged files."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rl_training.experiment.errors import DataError, MissingExtraError, RLTrainingError


def optional_module(package: str, extra: str, purpose: str) -> Any:
    """The module, or a MissingExtraError that says which extra brings it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingExtraError(package, extra, purpose) from None


@contextmanager
def damage(sentence: str) -> Iterator[None]:
    """Whatever a library raises over a damaged or hostile file becomes `sentence`."""
    try:
        yield
    except RLTrainingError:
        raise
    except Exception:  # noqa: BLE001  (NumPy, zipfile, h5py, Arrow fail in many ways)
        raise DataError(sentence) from None
