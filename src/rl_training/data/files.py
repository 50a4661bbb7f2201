"""Optional packages, and files that are either whole or absent."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.experiment.errors import MissingExtraError


def optional_module(package: str, extra: str, purpose: str) -> Any:
    """The module, or a MissingExtraError that says which extra brings it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingExtraError(package, extra, purpose) from None


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place when the block ends well, and is
    removed when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        prefix=f".{path.stem}.", suffix=f".draft{path.suffix}", dir=path.parent
    )
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        # mkstemp makes private files; a saved data set is as readable as any other file.
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o666 & ~umask)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
