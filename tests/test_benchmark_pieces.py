"""Long runs of the benchmarks: cut into pieces they give what a run in one piece gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.areas import AREAS
from benchmarks.jobs import Job, Records, ResultStore
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


def test_quick_long_runs_are_short_enough_and_draw_a_curve(tmp_path: Path) -> None:
    options = Options((0,), True, tmp_path)
    suites = [load_suite(name) for name in SUITES if name.startswith("field_")]
    jobs = [job for suite in suites for job in suite.jobs(options) if job.peer is None]
    assert {job.gpu for job in jobs} == {True, False}
    for job in jobs:
        config = job.spec["config"]
        assert job.gpu == (config["device"] == "cuda")
        assert 0 < config["eval_interval"] <= config["total_timesteps"]
        steps = config["algo_kwargs"].get("rollout_length", 1) * config.get("num_envs", 1)
        assert steps <= config["total_timesteps"]


def test_results_of_another_folder_are_taken_over_where_they_are_newer(tmp_path: Path) -> None:
    here, there = (ResultStore(tmp_path / name) for name in ("here", "there"))
    jobs = [Job("suite", name, 0, "module", {}) for name in ("both", "older", "new")]
    modules = ["rl_training.execution"]

    def write(store: ResultStore, job: Job, value: int, finished: str) -> None:
        store.write(job, {"result": {"x": value}, "versions": {}, "modules": modules}, 1.0)
        path = store.folder("suite") / f"{job.key}.json"
        lines = path.read_text().splitlines()
        lines[-2] = f' "finished": "{finished}"'
        path.write_text("\n".join(lines))

    write(here, jobs[0], 1, "2026-01-01T00:00:00+00:00")
    write(here, jobs[1], 1, "2026-01-03T00:00:00+00:00")
    for job in jobs:
        write(there, job, 2, "2026-01-02T00:00:00+00:00")
    (tmp_path / "here" / "sources.json").unlink()
    assert here.merge(there) == 2
    records = here.load("suite")
    assert [records.values(job.name, "x") for job in jobs] == [[2.0], [1.0], [2.0]]
    assert all(record.code in here.sources.read() for record in records.all)
    assert here.merge(there) == 0
