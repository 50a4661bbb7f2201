"""A handful of kills; `python -m tests.reliability.kills` makes hundreds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .kills import Harness, HarnessError, Kill, compare


def test_killed_runs_end_like_undisturbed_ones(tmp_path: Path) -> None:
    harness = Harness(tmp_path, seed=0)
    for case, kills in {
        "bc": [Kill("SIGKILL", operation=20), Kill("SIGTERM", after=0.4)],
        "awr-seeds": [Kill("SIGKILL", operation=60)],
        "sac-async": [Kill("SIGKILL", operation=40), Kill("SIGTERM", after=0.6, group=True)],
        "ppo-box2d-async": [Kill("SIGINT", after=0.8, group=True)],
    }.items():
        trial = harness.trial(case, kills)
        assert trial.outcome == "exact", trial


def test_the_comparison_sees_every_kind_of_difference(tmp_path: Path) -> None:
    harness = Harness(tmp_path, seed=0)
    whole = harness.reference("bc").run_dir
    for name, pattern, change in (
        ("weights", "checkpoints/*/algorithm.pt", None),
        ("metrics", "metrics.jsonl", ('"tick": 7,', '"tick": 8,')),
        ("result", "result.json", ('"updates": 61', '"updates": 60')),
    ):
        other = Path(shutil.copytree(whole, tmp_path / name))
        assert compare(whole, other) == "exact"
        file = max(other.glob(pattern))
        if change is None:  # the weights of the checkpoint before
            shutil.rmtree(file.parent)
        else:
            text = file.read_text()
            assert change[0] in text, text[:300]
            file.write_text(text.replace(*change))
        with pytest.raises(AssertionError):
            compare(whole, other)


def test_a_run_that_fails_undisturbed_is_no_reference(tmp_path: Path) -> None:
    harness = Harness(tmp_path, seed=0)
    harness.configs["bc"]["algo_kwargs"]["batch_size"] = -1
    with pytest.raises(HarnessError, match=r"bc ends with 2 undisturbed:\nerror: algo_kwargs"):
        harness.trial("bc")
