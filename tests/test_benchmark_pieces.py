"""Long runs of the benchmarks: cut into pieces they give what a run in one piece gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.areas import AREAS
from benchmarks.jobs import Records
from benchmarks.learning import train_job
from benchmarks.process import PausedError, Request
from benchmarks.suites import SUITES, Options, load_suite

CONFIG: dict[str, Any] = {
    "algo": "dqn",
    "env_id": "CartPole-v1",
    "device": "cpu",
    "threads": 1,
    "total_timesteps": 60,
    "eval_interval": 20,
    "eval_episodes": 1,
    "log_interval": 20,
    "tensorboard": False,
    "algo_kwargs": {"hidden_sizes": [4], "learning_starts": 10, "batch_size": 4},
}


def result(scratch: Path, **inputs: Any) -> dict[str, Any]:
    spec = {"config": dict(CONFIG), "final_episodes": 2, "eval_seed": 5}
    found = train_job.work(Request(spec, 3, inputs, scratch))
    del found["train_seconds"]
    return found


def test_pieces_of_a_run_come_to_what_the_whole_does(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with pytest.raises(PausedError, match="of 60 steps"):
        result(tmp_path / "scratch", folder=str(kept), minutes=0.0)
    found = result(tmp_path / "scratch", folder=str(kept), minutes=None)
    assert not kept.exists()
    assert found == result(tmp_path / "whole")


def test_every_area_names_suites_and_long_runs_say_what_is_asked(tmp_path: Path) -> None:
    assert {name for area in AREAS for name in area.suites} <= set(SUITES)
    options = Options((0,), False, tmp_path, minutes=9.0)
    for name in (name for name in SUITES if name.startswith("field_")):
        suite = load_suite(name)
        assert suite.long
        jobs = suite.jobs(options)
        assert len({job.key for job in jobs}) == len(jobs)
        for job in jobs:
            assert job.peer is not None or job.inputs["minutes"] == 9.0
            assert "minutes" not in job.spec  # which decides what a result is
        report = suite.report(Records([]), tmp_path)
        assert report.markdown.count("not run") >= len(report.verdicts) > 0
        assert all(verdict.passed is None for verdict in report.verdicts)
