"""Evaluating many checkpoints: the same results for any number of workers, and none made twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import rl_training
from rl_training.experiment.config import load_config
from rl_training.experiment.errors import CheckpointError, ConfigError
from rl_training.search.evaluations import (
    EvaluationPlan,
    Evaluations,
    candidates_of,
    evaluate_some,
    read_result,
)
from tests.conftest import Command
from tests.search.test_sweep import KNOBS


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, and one of two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    keys = [*KNOBS, "total_updates=4", "checkpoint_interval=2", "final_eval=false", "keep_last=3"]
    config = load_config("bc/pendulum", [*keys, "tensorboard=false", f"output_dir={folder}"])
    rl_training.ManagedAlgorithm(config.replace(run_name="one")).learn(progress=False)
    rl_training.learn_seeds(config.replace(run_name="two"), seeds=[3, 4], progress=False)
    return folder


def results_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("[!p]*.json")}


def test_results_are_the_same_whoever_makes_them_and_what_is_there_is_kept(
    runs: Path, cli: Command, tmp_path: Path
) -> None:
    two, here = tmp_path / "two", tmp_path / "here"
    command = ["eval", runs, "--checkpoint", "all", "-n", 2, "--workers", 2, "--out", two]
    shown = cli(*command)
    assert shown.code == 0, shown.err
    assert "6 policies, 2 episodes each, 2 at a time" in shown.out
    assert len(results_of(two)) == 6

    # one after the other in this process, with a stop in between
    here.mkdir()
    (plan,) = two.glob("plan-*.json")
    shutil.copy(plan, here)
    for index in (5, 0, 4, 1):
        evaluate_some(here / plan.name, index, index + 1)
    kept = {path: path.stat().st_mtime_ns for path in here.glob("[!p]*.json")}
    evaluate_some(here / plan.name, 0, 6)
    assert results_of(here) == results_of(two)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    # nothing is left to do, so that no process is started
    printed = cli(*command, "--json")
    rows = json.loads(printed.out)["evaluations"]
    assert [(Path(row["run"]).name, row["tick"]) for row in rows] == [
        (name, tick) for name in ("one", "seed-3", "seed-4") for tick in (2, 4)
    ]
    python = rl_training.evaluate_runs(
        [runs / "two", runs / "one"], 2, checkpoint="4", folder=two, progress=False
    )
    assert [one.to_dict() for one in python] == [rows[3], rows[5], rows[1]]
    alone = rl_training.load(rows[1]["checkpoint"]).evaluate(2)
    assert list(alone.returns) == rows[1]["eval/returns"]


def test_only_what_is_missing_is_a_job_and_other_settings_have_other_results(
    runs: Path, tmp_path: Path
) -> None:
    candidates = candidates_of([runs], "all")
    assert candidates_of([runs, runs / "one", Path(candidates[0].path)], "latest") == (
        *candidates[1::2],
        candidates_of([Path(candidates[0].path)])[0],
    )
    plan = EvaluationPlan(candidates, 1, None, True, None, None, (), False)
    target = Evaluations(tmp_path, plan)
    assert [job.name for job in target.jobs(1)] == [
        "evaluations-00000-00003",
        "evaluations-00004-00005",
    ]
    for index in (0, 3):
        target.files[index].write_text(
            '{"returns": [1.5], "lengths": [2], "cut": [], "successes": []}'
        )
    for workers, groups in ((1, [(1, 3), (4, 6)]), (2, [(1, 3), (4, 6)]), (4, [(1, 2), (2, 3)])):
        jobs = target.jobs(workers)
        assert [(job.first, job.last) for job in jobs][:2] == groups
        assert [job.progress for job in jobs] == ["0"] * len(jobs)
    others = [
        EvaluationPlan(candidates, 1, 7, True, None, None, (), False),
        EvaluationPlan(candidates, 1, None, False, None, None, (), False),
        EvaluationPlan(candidates, 1, None, True, None, None, ("g=9.0",), False),
        EvaluationPlan(candidates, 1, None, True, None, None, (), False, max_steps=3),
    ]
    for other in others:
        assert not set(other.files(tmp_path)) & set(target.files)
    Evaluations(tmp_path, plan, again=True)
    assert target.missing() == target.files


def test_all_episodes_are_cut_where_the_command_says(
    runs: Path, cli: Command, tmp_path: Path
) -> None:
    command = ("eval", runs / "two", "-n", 1, "--workers", 1, "--out", tmp_path / "cut")
    shown = cli(*command, "--max-steps", 3)
    assert shown.code == 0, shown.err
    assert "cut there; give the environment a time limit (--set max_episode_steps=N), or set " in (
        " ".join(shown.out.split())
    )
    rows = json.loads(cli(*command, "--max-steps", 3, "--json").out)["evaluations"]
    assert [row["eval/length_mean"] for row in rows] == [3, 3]
    with pytest.raises(ConfigError, match="max_steps must be at least 1"):
        rl_training.evaluate_runs([runs / "one"], 1, max_steps=0, folder=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_evaluated_is_refused(runs: Path, cli: Command, tmp_path: Path) -> None:
    out = tmp_path / "results"
    for arguments, words in (
        ((tmp_path, runs), "holds no run"),
        ((tmp_path / "nothing", runs), "does not exist"),
        ((runs, "--checkpoint", 3), "no checkpoint '3'"),
        ((runs, "--video", tmp_path / "a.mp4"), "--video: it shows one policy"),
        ((runs, "--launcher", "slurm", "--address", "a:1"), "--address: it needs --launcher ray"),
    ):
        refused = cli("eval", *arguments, "--out", out)
        assert refused.code == 2
        assert words in refused.err
        assert len(refused.err.splitlines()) == 1
        assert not out.exists()
    copied = tmp_path / "copy"
    shutil.copytree(runs / "one", copied)
    plan = EvaluationPlan(candidates_of([copied]), 1, None, True, None, None, (), False)
    target = Evaluations(out, plan)
    manifest = Path(plan.candidates[0].path) / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    (file,) = out.glob("plan-*.json")
    with pytest.raises(CheckpointError, match="has changed since the evaluation began"):
        evaluate_some(file, 0, 1)
    episode = {"returns": [1.0], "lengths": [2], "cut": [False], "successes": [None]}
    target.files[0].write_text(json.dumps(episode | {"reference": ["human", 0.0, 2.0]}))
    assert read_result(target.files[0]).normalized_mean == 50.0
    for reference in ("human", ["human", 1.0, 1.0], [], {"low": 0.0}):
        target.files[0].write_text(json.dumps(episode | {"reference": reference}))
        with pytest.raises(ConfigError, match="is no result of an evaluation"):
            read_result(target.files[0])
    target.files[0].write_text("{}")
    with pytest.raises(ConfigError, match="is no result of an evaluation"):
        target.run(None, shown=False)  # type: ignore[arg-type]
    file.write_text("{}")
    with pytest.raises(ConfigError, match="is no plan of evaluations"):
        evaluate_some(file, 0, 1)
