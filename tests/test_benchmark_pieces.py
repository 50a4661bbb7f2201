"""Long runs of the benchmarks: cut into pieces they give what a run in one piece gives."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import board, gates, progress
from benchmarks.areas import AREAS
from benchmarks.board import Board
from benchmarks.jobs import Job, JobRunner, Records, ResultStore
from benchmarks.learning import prior, train_job
from benchmarks.learning.prior import prior_data
from benchmarks.markdown import seed_columns
from benchmarks.peers.environment import IMITATION_HERE
from benchmarks.process import PausedError, Request
from benchmarks.progress import how_far
from benchmarks.run import chosen_jobs, main
from benchmarks.suites import SUITES, Options, load_suite
from rich.console import Console

from rl_training import Callback, ManagedAlgorithm, TrainConfig
from rl_training.runtime.callbacks import StepEvent

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
    # a walker that stands still and one that falls may have the same return
    assert found["length_mean"] > 0
    assert len(found["curve"]["length"]) == len(found["curve"]["return"])


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
        assert not report.short
        assert all(verdict.passed is None for verdict in report.verdicts)


def test_quick_long_runs_are_short_enough_and_draw_a_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    options = Options((0,), True, tmp_path)
    suites = [load_suite(name) for name in SUITES if name.startswith("field_")]
    jobs = [job for suite in suites for job in suite.jobs(options) if job.peer is None]
    assert {job.gpu for job in jobs} == {True, False}
    for job in jobs:
        config = job.spec["config"]
        data_need_one = "config" in job.spec.get("prior", {})
        assert job.gpu == (config["device"] == "cuda" or data_need_one)
        assert 0 < config["eval_interval"] <= config["total_timesteps"]
        knobs = {**config["algo_kwargs"], **config["algo_kwargs"].get("ppo", {})}
        steps = knobs.get("rollout_length", 1) * config.get("num_envs", 1)
        assert steps <= config["total_timesteps"]


def test_quick_long_runs_have_configurations_that_are_accepted(tmp_path: Path) -> None:
    options = Options((0,), True, tmp_path)
    for name in (name for name in SUITES if name.startswith("field_")):
        for job in load_suite(name).jobs(options):
            if job.module == train_job.__name__:
                TrainConfig(**{**job.spec["config"], "device": "cpu"})
                made = job.spec.get("prior", {}).get("config", {"total_timesteps": 0})
                assert made["total_timesteps"] <= 300


def zoo_of_two(folder: Path) -> dict[str, Any]:
    """Six episodes of two rows by two policies in turn; the prior of two of the second."""
    rows = np.arange(12)
    arrays: dict[str, Any] = {
        "observations": np.repeat(rows[:, None], 3, axis=1).astype(np.float32) / 12,
        "actions": np.zeros((12, 1), np.float32),
        "rewards": rows.astype(np.float32),
        "next_observations": np.repeat(rows[:, None] + 1, 3, axis=1).astype(np.float32) / 12,
        "terminations": np.zeros(12, bool),
        "truncations": rows % 2 == 1,
        "source_id": (rows // 2 % 2).astype(np.int8),
    }
    np.savez(folder / "two.npz", **arrays)
    return {"zoo": "two.npz", "source": 1, "episodes": 2, "env_id": "Pendulum-v1"}


def test_demonstrations_of_one_policy_are_its_first_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = zoo_of_two(tmp_path)
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RL_TRAINING_BENCHMARK_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="RL_TRAINING_BENCHMARK_DATA names the folder"):
        prior_data(spec)
    monkeypatch.setenv("RL_TRAINING_BENCHMARK_DATA", str(tmp_path))
    shown = prior_data(spec)
    assert shown.rewards.tolist() == [2.0, 3.0, 6.0, 7.0]
    (tmp_path / "two.npz").unlink()
    assert prior_data(spec).rewards.tolist() == shown.rewards.tolist()  # made once


def test_an_expert_whose_training_was_broken_off_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**CONFIG, "algo": "sac", "final_eval": False, "checkpoint_interval": 20}
    spec = {"config": config, "env_id": "CartPole-v1", "episodes": 2}
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "whole"))
    whole = prior_data(spec)
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cut"))
    learn = ManagedAlgorithm.learn

    def broken_off(agent: ManagedAlgorithm, **options: Any) -> Any:
        learn(agent, **options, callbacks=[StopAt(40)])
        raise KeyboardInterrupt

    monkeypatch.setattr(ManagedAlgorithm, "learn", broken_off)
    with pytest.raises(KeyboardInterrupt):
        prior_data(spec)
    assert list((tmp_path / "cut").glob("*.runs/*/checkpoints/*"))
    assert not list((tmp_path / "cut").glob("*.npz"))
    cut = prior_data(spec)  # a new run would be broken off again
    assert np.array_equal(cut.observations, whole.observations)
    assert not list((tmp_path / "cut").glob("*.runs"))


class StopAt(Callback):
    """Ends a run at a tick."""

    def __init__(self, tick: int) -> None:
        self.tick = tick

    def on_step(self, event: StepEvent) -> None:
        if event.tick >= self.tick:
            event.request_stop("broken off")


def test_other_libraries_get_the_data_and_the_start_states_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prior, "STORED", tmp_path / "none")
    jobs = load_suite("field_imitation").jobs(Options((0,), False, tmp_path))
    ours = {job.name: job for job in jobs if job.peer is None}
    theirs = [job for job in jobs if job.peer is not None]
    assert {job.peer for job in theirs} == {IMITATION_HERE}
    for job in theirs:
        off_policy = "-sac" if "sac" in job.name else ""
        own = ours[f"gail-{job.name.rpartition('-')[2]}{off_policy}"]
        assert job.spec["prior"] == own.spec["prior"]
        assert len(job.inputs["reset_seeds"]) == own.spec["final_episodes"]
        assert len(job.inputs["curve_seeds"]) == own.spec["config"]["eval_episodes"]
        assert job.gpu == ("config" in job.spec["prior"])  # whose data need one
        same = job.spec["total_timesteps"] == own.spec["config"]["total_timesteps"]
        assert same == ("sac" not in job.name)
    monkeypatch.undo()
    for walks in (job.spec["prior"] for job in theirs if job.spec["env_id"] == "Walker2d-v5"):
        assert prior.kept_at(walks).parent == prior.STORED
        assert prior_data(walks).episode_returns().min() > 4_000
    made = load_suite("field_imitation").jobs(Options((0,), False, tmp_path))
    assert not any(job.gpu for job in made if job.peer is not None)  # they are there


def test_ours_is_held_to_the_best_of_a_kind_and_to_its_curve_at_fewer_steps(
    tmp_path: Path,
) -> None:
    store, suite = ResultStore(tmp_path), load_suite("field_imitation")
    expert = {"return_mean": 1_000.0}
    curve = {"env_steps": [50_000, 500_000], "return": [200.0, 900.0]}
    found = {"gail-Hopper": 900.0, "imitation-tuned-Hopper": 50.0, "imitation-usual-Hopper": 950.0}
    found |= {"gail-Hopper-sac": 100.0, "imitation-sac-Hopper": 150.0}
    for job in suite.jobs(Options((0,), False, tmp_path)):
        value = found.get(job.name)
        if value is not None:
            result = {"return_mean": value, "best_eval": value, "env_steps": 1, "train_seconds": 1}
            result |= {"prior": expert, "curve": curve}
            store.write(job, {"result": result, "versions": {}, "modules": []}, 1.0)
    report = suite.report(store.load("field_imitation"), tmp_path)
    assert report.short.endswith("in brackets theirs: Hopper 900 (1,000).")
    passed = {v.gate: v.passed for v in report.verdicts if "Hopper" in v.gate}
    with_sac = "GAIL with SAC on Hopper beside imitation's with SAC after 50,000 steps"
    assert passed == {
        "GAIL on Hopper: share of the expert's return at least 0.8": True,
        "GAIL on Hopper beside imitation's with PPO at least as good": False,
        f"{with_sac} at least as good": True,
    }


def test_scores_stand_beside_published_ones_of_the_same_kind(tmp_path: Path) -> None:
    store, suite = ResultStore(tmp_path), load_suite("field_atari")
    curve = {"env_steps": [2_500_000], "return": [30.0]}
    for job in suite.jobs(Options((0,), False, tmp_path)):
        if job.name in ("dqn-breakout", "iqn-breakout", "dqn-pong"):
            result = {"return_mean": 30.0, "best_eval": 30.0, "env_steps": 1, "train_seconds": 1}
            result |= {"curve": curve, "training_curve": curve, "training_score": 20.0}
            store.write(job, {"result": result, "versions": {}, "modules": []}, 1.0)
    short = suite.report(store.load("field_atari"), tmp_path).short
    # the zoo's DQN while it learned, Tianshou's IQN afterwards; Pong's are of other budgets
    assert short.endswith(": DQN on Breakout 20 (197), IQN on Breakout 30 (288).")


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


def test_scores_in_training_are_means_over_games_of_the_last_twentieth_of_the_steps() -> None:
    def event(tick: int, episodes: float, score: float) -> dict[str, Any]:
        found = {"rollout/episodes": episodes, "rollout/score_mean": score}
        return {"tick": tick, **(found if episodes else {})}

    steps = range(10, 401, 10)  # two logs to a twentieth
    logged = [event(tick, 1.0, tick / 10) for tick in steps]
    logged[-2:] = [event(390, 3.0, 10.0), event(400, 1.0, 30.0)]
    logged[0] = event(10, 0.0, 0.0)  # no game had ended
    found = train_job.played(logged)
    assert found["training_score"] == 15.0
    assert found["training_curve"]["env_steps"] == list(range(20, 401, 20))
    assert found["training_curve"]["return"][:2] == [2.0, 3.5]
    assert train_job.played([event(10, 0.0, 0.0)]) == {}


def test_intervals_over_seeds_are_students() -> None:
    assert seed_columns([1.0, 2.0, 3.0], 3) == ["2.000", "1.000, 2.000, 3.000", "± 2.484"]
    assert seed_columns([1.0, 2.0], 2) == ["1.50", "1.00, 2.00", "± 6.35"]
    assert seed_columns([1.0]) == ["1", "1", "–"]
    assert seed_columns([]) == ["–", "–", "–"]
    many = [0.0, 1.0] * 6  # no fewer degrees of freedom than the quantiles that are known
    assert seed_columns(many, 3)[2] == "± 0.341"  # 2.262 * 0.5222 / sqrt(12)


def test_a_list_of_gates_shows_what_they_compare() -> None:
    many = gates.at_least("SAC on Ant", [4000.0, 6000.0], 4500.0)
    assert (many.passed, many.text) == (True, "pass (1 of 2 seeds outside)")
    worse = gates.not_worse("ours", [1.0, 3.0], [2.5, 2.5])
    few = gates.at_most("error", [0.0123], 0.01)
    found = gates.listing([many, worse, few, gates.at_least("SAC on Hopper", [], 1e6)])
    assert found.splitlines()[2:] == [
        "| SAC on Ant at least 4,500 | pass (5,000; 1 of 2 seeds outside) |",
        "| ours at least as good | pass (2 against 2.5; within one standard error) |",
        "| error at most 0.01 | **MISSED** (0.0123) |",
        "| SAC on Hopper at least 1,000,000 | not run |",
    ]


def test_a_long_run_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("field", "run", 3, "", {"config": CONFIG}, {"folder": str(tmp_path / "kept")})
    console = Console(file=io.StringIO(), width=200)
    shown = Board(console, "field", [job], 1)
    monkeypatch.setattr(board, "TELL_S", 0.0)
    shown.started(job)
    assert console.file.getvalue() == ""  # nothing is logged yet
    assert how_far(Job("field", "run", 3, "", {})) is None
    with pytest.raises(PausedError):
        result(tmp_path / "scratch", folder=str(tmp_path / "kept"), minutes=0.0)
    (log,) = (tmp_path / "kept").glob("*/metrics.jsonl")
    events = [
        {"event": "train", "tick": 20, "time/env_steps_per_second": 2.0, "rollout/score_mean": 7.0},
        {"event": "eval", "tick": 20, "eval/return_mean": 9.25},
        {"event": "train", "tick": 30, "time/env_steps_per_second": 0.5},
    ]
    log.write_text("".join(f"{json.dumps(event)}\n" for event in events) + '{"event": "tra')
    shown.refresh()
    assert console.file.getvalue() == (
        "field/run-s3: 30 of 60 steps, 0/s, 1 min left, score 7.0, evaluated 9.2 at 20\n"
    )
    monkeypatch.setattr(progress, "TAIL", 100)
    assert how_far(job) == "30 of 60 steps, 0/s, 1 min left"


def test_patterns_choose_jobs_in_their_order() -> None:
    jobs = [Job("field", name, seed, "", {}) for name in ("dqn", "ppo") for seed in (0, 1)]

    def chosen(*patterns: str) -> list[str]:
        return [job.key for job in chosen_jobs(jobs, patterns or None)]

    assert chosen() == ["dqn-s0", "dqn-s1", "ppo-s0", "ppo-s1"]
    assert chosen("ppo-s1", "field/*-s0") == ["ppo-s1", "dqn-s0", "ppo-s0"]
    assert chosen("ppo", "ppo-s0") == ["ppo-s0", "ppo-s1"]
    assert chosen("sac") == []


def test_a_pattern_that_chooses_nothing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["field_dreamer", "--only", "boxing-s0", "--only", "boxng"]) == 2
    assert "no job of field_dreamer matches 'boxng'" in capsys.readouterr().err


@pytest.mark.parametrize("in_turn", [False, True])
def test_jobs_that_start_later_are_nicer(in_turn: bool, tmp_path: Path) -> None:
    script = tmp_path / "how_nice.py"
    script.write_text(
        "import json, os, pathlib, sys, time\n"
        "time.sleep(0.3)\n"
        "group = pathlib.Path('/proc/self/autogroup')\n"
        "shared = int(group.read_text().split()[-1]) if group.exists() else None\n"
        "nice = {'nice': os.nice(0), 'session': shared}\n"
        "answer = {'versions': {}, 'modules': [], 'result': nice}\n"
        "open(sys.argv[2], 'w').write(json.dumps(answer))\n"
    )
    jobs = [Job("turns", f"job{i}", 0, "how_nice", {}, cost=99.0 - i) for i in range(5)]
    store = ResultStore(tmp_path / "results")
    runner = JobRunner(store, tmp_path / "scratch", 1, in_turn)
    before = os.nice(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        outcomes = [x for x in runner.run(jobs, lambda _: None) if x is not None]
    assert [outcome.failure for outcome in outcomes] == [None] * 5
    records = store.load("turns").all
    later = min(before + 5, 19) if in_turn else before
    assert [record.result["nice"] for record in records] == [*[before] * 3, later, later]
    sessions = [record.result["session"] for record in records]
    if sessions[0] is not None:  # Linux shares processors among sessions
        later = 5 if in_turn else 0
        assert sessions == [0, 0, 0, later, later]
