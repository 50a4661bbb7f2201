"""Optional packages."""

from __future__ import annotations

import importlib
from typing import Any

from rl_training.experiment.errors import MissingExtraError


def optional_module(package: str, extra: str, purpose: str) -> Any:
    """The module, or a MissingExtraError that says which extra brings it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingExtraError(package, extra, purpose) from None
