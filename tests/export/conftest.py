"""Exports that several tests look at, made once."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .exporting import agent_of, export, quick_exporter


@pytest.fixture(scope="session", autouse=True)
def _quick_exports() -> Iterator[None]:
    pytest.importorskip("onnxscript")
    with quick_exporter():
        yield


Exports = Callable[[str], Path]


@pytest.fixture(scope="session")
def _exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """The export of a small agent by the name of its algorithm, made at the first call."""
    folder = tmp_path_factory.mktemp("exports")
    kinds = {"bc": "box"}

    @functools.cache
    def made(algo: str) -> Path:
        return export(agent_of(algo, kinds.get(algo)), folder / algo).folder

    return made


@pytest.fixture
def bc_export(_exports: Exports, tmp_path: Path) -> Path:
    """Of a BC policy for the pendulum, to be spoilt."""
    return Path(shutil.copytree(_exports("bc"), tmp_path / "bc-export"))


@pytest.fixture
def dreamer_export(_exports: Exports, tmp_path: Path) -> Path:
    """Of a recurrent policy."""
    return Path(shutil.copytree(_exports("dreamer"), tmp_path / "dreamer-export"))
