"""Small hand-made transitions, and caches that stay inside the test session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.envs.spaces import Spaces


@pytest.fixture(autouse=True)
def _private_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.fixture
def box_spaces() -> Spaces:
    return Spaces(2, "box", 1, (-2.0,), (2.0,))


@pytest.fixture
def arrays() -> dict[str, Any]:
    """Episodes of 3 (terminated) and 2 (truncated) rows; states are numbered 0, 1, 2, ..."""
    states = np.arange(14, dtype=np.float32).reshape(7, 2)
    return {
        "observations": states[[0, 1, 2, 4, 5]],
        "actions": np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]], np.float32),
        "rewards": np.array([1.0, 2.0, 3.0, 4.0, 5.0], np.float32),
        "next_observations": states[[1, 2, 3, 5, 6]],
        "terminations": np.array([0, 0, 1, 0, 0], bool),
        "truncations": np.array([0, 0, 0, 0, 1], bool),
    }
