"""What commit f9df17d wrote is still loaded, evaluated and resumed as it was then."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from rl_training.experiment.tracking import versions

from .fixtures.make_f9df17d import (
    FINAL,
    HALFWAY,
    RUNS,
    SAVED,
    actions,
    agents_in,
    episode_return,
    resume,
    weights,
)

FOLDER = Path(__file__).parent / "fixtures" / "f9df17d"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}
"""Other processors and versions of PyTorch round otherwise."""


def assert_as_then(run: str, stage: str, path: Path) -> None:
    with np.load(FOLDER / "expected.npz") as arrays:
        found = agents_in(path)
        names = {key.split("/")[2] for key in EXPECTED if key.startswith(f"{run}/{stage}/")}
        assert found.keys() == names
        for name, agent in found.items():
            key = f"{run}/{stage}/{name}"
            np.testing.assert_allclose(
                actions(agent), arrays[f"{key}/actions"], err_msg=f"actions of {key}", **ROUNDING
            )
            now = weights(agent)
            np.testing.assert_allclose(
                np.concatenate([now[weight].ravel() for weight in EXPECTED[key]["weights"]]),
                arrays[f"{key}/weights"],
                err_msg=f"weights of {key}",
                **ROUNDING,
            )
            assert episode_return(agent) == pytest.approx(EXPECTED[key]["return"], rel=1e-3), key
            assert math.isfinite(agent.evaluate(1).return_mean)


def versions_of(run: str) -> dict[str, str]:
    """Of what decides random numbers and scripted data, when the run was made."""
    manifest = next((FOLDER / run).rglob("manifest.json"))
    return {name: json.loads(manifest.read_text())["versions"][name] for name in ("torch", "numpy")}


@pytest.mark.parametrize("run", [*RUNS, SAVED])
def test_loads_predicts_and_resumes_as_it_did(run: str, tmp_path: Path) -> None:
    path = Path(shutil.copytree(FOLDER / run, tmp_path / run))
    assert_as_then(run, HALFWAY, path)
    then, now = versions_of(run), versions()
    # other versions draw other numbers, and make scripted data that differ in their last bits
    comparable = all(now[name].split("+")[0] == then[name].split("+")[0] for name in then)
    if run != SAVED and (comparable or "dataset" not in RUNS[run]):
        resume(path)
        if comparable:
            assert_as_then(run, FINAL, path)
        results = [json.loads(file.read_text()) for file in path.rglob("result.json")]
        assert results
        assert all(result["status"] == "finished" for result in results)
