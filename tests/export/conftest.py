"""Exports that several tests look at, made once."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .exporting import PARTS, agent_of, export, quick_exporter


@pytest.fixture(scope="session", autouse=True)
def _quick_exports() -> Iterator[None]:
    pytest.importorskip("onnxscript")
    with quick_exporter():
        yield


Exports = Callable[[str, str | None, str | None], Path]


@pytest.fixture(scope="session")
def _exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """The export of a small agent: algorithm, kind of actions and task; made at the first call."""
    folder = tmp_path_factory.mktemp("exports")

    @functools.cache
    def made(algo: str, kind: str | None, env_id: str | None) -> Path:
        name = f"{algo}-{kind}-{(env_id or 'own').replace('/', '-')}"
        return export(agent_of(algo, kind, env_id), folder / name).folder

    return made


@pytest.fixture
def bc_export(_exports: Exports, tmp_path: Path) -> Path:
    """Of a BC policy for the pendulum, to be spoilt."""
    return Path(shutil.copytree(_exports("bc", "box", None), tmp_path / "bc-export"))


@pytest.fixture
def dreamer_export(_exports: Exports, tmp_path: Path) -> Path:
    """Of a recurrent policy."""
    return Path(shutil.copytree(_exports("dreamer", None, None), tmp_path / "dreamer-export"))


@pytest.fixture
def parts_export(_exports: Exports) -> Path:
    """Of a BC policy for observations of many parts; to be read."""
    return _exports("bc", "discrete", PARTS["discrete"])
