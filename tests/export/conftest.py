"""Exports that several tests look at, made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .exporting import agent_of, export, quick_exporter


@pytest.fixture(scope="session", autouse=True)
def _quick_exports() -> Iterator[None]:
    pytest.importorskip("onnxscript")
    with quick_exporter():
        yield


@pytest.fixture(scope="session")
def _exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    made = {"bc": agent_of("bc", "box"), "dqn": agent_of("dqn"), "dreamer": agent_of("dreamer")}
    return {name: export(agent, folder / name).folder for name, agent in made.items()}


@pytest.fixture
def bc_export(_exports: dict[str, Path], tmp_path: Path) -> Path:
    """Of a BC policy for the pendulum, to be spoilt."""
    return Path(shutil.copytree(_exports["bc"], tmp_path / "bc-export"))


@pytest.fixture
def dqn_export(_exports: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(_exports["dqn"], tmp_path / "dqn-export"))


@pytest.fixture
def dreamer_export(_exports: dict[str, Path], tmp_path: Path) -> Path:
    """Of a recurrent policy."""
    return Path(shutil.copytree(_exports["dreamer"], tmp_path / "dreamer-export"))
