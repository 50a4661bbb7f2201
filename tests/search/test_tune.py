"""Tuning: what it searches and refuses, that a kill loses nothing, and what it concludes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.experiment.config import load_config
from rl_training.experiment.errors import ConfigError, MissingExtraError
from rl_training.experiment.ranges import Choices, Log
from rl_training.runtime.statistics import Interval, Summary
from rl_training.search.launch import Launcher
from rl_training.search.local import LocalProcesses, Slots
from rl_training.search.slurm_jobs import SlurmJobs
from rl_training.search.space import configured, space_of, value_of
from rl_training.search.study import Study
from rl_training.search.tune import Tuner, chosen_metric, evaluated, rungs_of
from rl_training.search.tuning import EndedTrial, TuningFolder, TuningPlan
from rl_training.search.verdict import Verdict, best_of, judged, on_other_episodes
from tests.conftest import Command
from tests.search.sleeping import SleepingRuns

KNOBS = [
    "dataset={kind: random, steps: 160}",
    "total_updates=30",
    "eval_episodes=1",
    "eval_max_steps=5",
    "tensorboard=false",
    "engine=eager",
    "algo_kwargs.hidden_sizes=[8]",
    "algo_kwargs.batch_size=16",
]
LR, RETURN = "algo_kwargs.lr", "eval/return_mean"


def plan_for(
    overrides: Sequence[str] = KNOBS, seeds: int = 1, metric: str = "eval/return_mean", **keys: Any
) -> TuningPlan:
    config = evaluated(load_config("bc/pendulum", list(overrides)), metric, False)
    return TuningPlan(
        config,
        space_of(config, [], [], metric),
        tuple(range(seeds)),
        tuple(range(seeds, seeds + seeds)),
        metric,
        **{"prune": False, **keys},
    )


def ended(number: int, objective: float | None, **keys: Any) -> EndedTrial:
    state = "finished" if objective is not None else "failed"
    given = {"values": {}, "rungs": {}, "lows": {}, "seeds": {}, "scores": (), "why": ""}
    given |= {"state": state, **keys}
    return EndedTrial(number=number, objective=objective, **given)


# --- what is searched ----------------------------------------------------------------------------


def test_the_ranges_of_the_knobs_are_searched_unless_a_knob_has_a_value_or_ranges_are_named() -> (
    None
):
    config = load_config("awr/pendulum", ["algo_kwargs.gamma=0.97"])
    space = space_of(config, [], ["algo_kwargs.gamma=0.97"], RETURN)
    assert list(space) == [
        f"algo_kwargs.{name}" for name in ("temperature", "policy_lr", "value_lr")
    ]  # not the sizes, which change the time of a run
    named = space_of(config, ["algo_kwargs.batch_size", "tf32=[true, false]"], [], RETURN)
    assert named["algo_kwargs.batch_size"] == Choices((64, 128, 256, 512), by_default=False)
    assert named["tf32"] == Choices((True, False))
    # the config's own value, with which the search begins, is in the range
    wide = space_of(config, ["algo_kwargs.temperature=log(2, 3)"], [], RETURN)
    assert wide["algo_kwargs.temperature"] == Log(config.algo_kwargs["temperature"], 3)
    changed = configured(config, {"algo_kwargs.gamma": 0.5, "tf32": True})
    assert (changed.params.gamma, changed.tf32) == (0.5, True)
    for asked, words in (
        ("algo_kwargs.temprature", "did you mean 'algo_kwargs.temperature'"),
        ("algo_kwargs.gamma=log(1, 2)", "gamma"),
        ("algo_kwargs.gamma=between(1, 2)", "is no range"),
        ("algo_kwargs.gamme=[0.1, 0.2]", "did you mean 'gamma'"),
        ("nothing=[1, 2]", "nothing"),
        ("seed=[1, 2]", "sets it itself"),
        ("total_updates=[10, 20]", "different budgets"),
    ):
        with pytest.raises(ConfigError, match=words):
            space_of(config, [asked], [], RETURN)
    with pytest.raises(ConfigError, match="has a value already"):
        space_of(config, ["algo_kwargs.gamma"], ["algo_kwargs.gamma=0.97"], RETURN)
    # a discount of its own gives every trial other units
    for metric in ("offline/td_error", "offline/fitted_value"):
        assert "algo_kwargs.gamma" not in space_of(config, [], [], metric)
        for asked in ("algo_kwargs.gamma", "dataset.rewards.scale=[1.0, 2.0]"):
            with pytest.raises(ConfigError, match=f"changes the units of {metric}"):
                space_of(config, [asked], [], metric)
    assert "algo_kwargs.gamma" in space_of(config, [], [], "offline/log_likelihood")


def test_pruning_waits_for_a_third_of_the_budget_and_needs_evaluations() -> None:
    config = load_config("awr/pendulum", ["total_updates=1000", "eval_interval=100"])
    assert rungs_of(config) == (400, 700)
    assert rungs_of(config.replace(eval_interval=0)) == ()
    for interval in (0, 100):  # further evaluations would decide nothing
        often = evaluated(config.replace(eval_interval=interval), RETURN, True)
        assert (often.eval_interval, rungs_of(often)) == (334, (334, 668))
    assert evaluated(config, RETURN, False).eval_interval == 100
    stopping = configured(config, {"early_stopping": {"patience": 3}})
    assert evaluated(stopping, RETURN, True).eval_interval == 100
    with pytest.raises(ConfigError, match=r"set dataset\.split"):
        evaluated(config, "offline/td_error", True)
    assert chosen_metric(config, None) == "eval/return_mean"
    blind = config.settled(env_id=None)
    with pytest.raises(ConfigError, match="offline/fitted_value"):
        chosen_metric(blind, None)
    assert chosen_metric(blind, "offline/td_error") == "offline/td_error"
    split = configured(config, {"dataset.split": {"holdout": 0.5, "seed": 4}})
    assert value_of(on_other_episodes(split), "dataset.split") == {"holdout": 0.5, "seed": 5}


# --- the journal ---------------------------------------------------------------------------------


def test_one_worker_draws_the_same_trials_every_time_also_after_a_stop(tmp_path: Path) -> None:
    def drawn(folder: Path, stops: bool) -> list[dict[str, Any]]:
        study = TuningFolder(folder, plan_for())
        for number in range(12):
            if stops:
                study = TuningFolder(folder, plan_for())
            claim = study.claim(12)
            assert claim is not None
            assert claim.number == number
            study.tell(claim, "finished", -abs(claim.values[LR] - 3e-3), [0.0])
        assert study.claim(12) is None
        return [one.values for one in study.ended()]

    first, second = drawn(tmp_path / "a", False), drawn(tmp_path / "b", True)
    assert first == second
    own = load_config("bc/pendulum", KNOBS).algo_kwargs["lr"]
    assert first[0] == {LR: own}  # the defaults come first
    assert len({one[LR] for one in first}) == 12
    other = TuningFolder(tmp_path / "c", plan_for(sampler_seed=1))
    other.claim(2)
    found = other.claim(2)
    assert found is not None
    assert found.values != first[1]


def test_a_trial_belongs_to_the_process_that_holds_it_and_is_taken_over_when_it_dies(
    tmp_path: Path,
) -> None:
    one, two = (TuningFolder(tmp_path / "study", plan_for()) for _ in range(2))
    first = one.claim(2)
    second = two.claim(2)
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (0, 1)
    assert one.claim(2) is None  # both are held
    assert one.others_at_work()
    second.lock.close()  # as the death of its process does
    journal = tmp_path / "study" / "study.journal"
    with journal.open("a") as file:
        file.write('{"op_code": 5, "half')  # cut off by a kill
    taken = one.claim(2)
    assert taken is not None
    assert (taken.number, taken.values, taken.begun) == (1, second.values, True)
    one.report(taken, 10, Interval(-3.0, -4.0, -2.0), [-4.0, -2.0])
    one.report(taken, 10, Interval(-9.0, -9.0, -9.0), [-9.0])  # an evaluation that a resume repeats
    one.tell(taken, "pruned", None, [-3.0], "bad")
    one.tell(first, "finished", -1.0, [-1.0])
    assert not two.others_at_work()
    assert [(t.number, t.state, t.objective, t.rungs, t.lows, t.seeds) for t in two.ended()] == [
        (0, "finished", -1.0, {}, {}, {}),
        (1, "pruned", None, {10: -3.0}, {10: -4.0}, {10: (-4.0, -2.0)}),
    ]


def test_another_study_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    TuningFolder(folder, plan_for())
    for plan, words in (
        (plan_for([*KNOBS, "total_updates=40"]), "another total_updates of the config"),
        (plan_for(seeds=2), "another seeds, test_seeds of the study"),
        (plan_for(sampler_seed=5), "another sampler_seed"),
    ):
        with pytest.raises(ConfigError, match=words):
            TuningFolder(folder, plan)
    with pytest.raises(ConfigError, match="another command, tune"):
        Study(folder, [("a", plan_for().config)])
    file = folder / "study.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "version": "0.0.1"}))
    with pytest.raises(ConfigError, match=r"begun with rl-training 0\.0\.1"):
        TuningFolder(folder, plan_for())
    file.write_text(json.dumps(stored))
    whole = (folder / "study.journal").read_text()
    for damaged in ("{}\n", '{"op_code": 99}\n', f'{whole}{{"op_code": 5, "worker_id": "a"}}\n'):
        (folder / "study.journal").write_text(damaged)
        with pytest.raises(ConfigError, match="is damaged"):
            TuningFolder(folder, plan_for())


def test_what_cannot_be_tuned_is_refused_before_anything_is_made(
    cli: Command, tmp_path: Path
) -> None:
    for arguments, words in (
        (("algo_kwargs.gama=1",), "did you mean 'gamma'"),
        (("seed=3",), "--seeds"),
        (("--search", "algo_kwargs.tau=log(3, 1)"), "is no range"),
        (("--metric", "eval/retrun_mean"), "did you mean 'eval/return_mean'"),
        (("--trials", "0"), "--trials"),
        (("--gpus", "no-such-gpu"), "GPU no-such-gpu was not found"),
    ):
        refused = cli("tune", "sac/pendulum", *arguments, "--out", tmp_path / "study")
        assert refused.code == 2
        assert words in refused.err
        assert len(refused.err.splitlines()) == 1
        assert not (tmp_path / "study").exists()


# --- trials and verdicts -------------------------------------------------------------------------


def test_pruning_needs_a_trial_whose_best_case_is_below_the_median_of_the_others(
    tmp_path: Path,
) -> None:
    # rungs at 10 and 20
    study = TuningFolder(
        tmp_path / "study", plan_for([*KNOBS, "eval_interval=10"], seeds=3, prune=True)
    )
    tuner = Tuner(study, LocalProcesses(Slots(1, 1)), 9, lambda line: None)
    for number, value in enumerate((1.0, 2.0, 3.0, 4.0, 5.0)):
        assert not tuner.reason_to_prune(Interval(-9.0, -9.0, -9.0), 10)  # too few to compare with
        claim = study.claim(9)
        assert claim is not None
        assert claim.number == number
        for tick in (10, 20):
            study.report(claim, tick, Interval(value, value - 0.5, value + 0.5), [value - 99.0] * 3)
        study.tell(claim, "finished", value, [value] * 3)
    for rung in (10, 20):
        assert "median" in tuner.reason_to_prune(Interval(2.0, 1.0, 2.9), rung)
        assert not tuner.reason_to_prune(Interval(4.0, 3.0, 4.6), rung)  # noise: it may be the best
        assert not tuner.reason_to_prune(Interval(-9.0, -9.0, -9.0), 15)  # another tick
    # above the median, but below the whole interval of the best: that decides at the last rung
    assert not tuner.reason_to_prune(Interval(3.5, 3.0, 4.4), 10)
    assert "another trial was better" in tuner.reason_to_prune(Interval(3.5, 3.0, 4.4), 20)


@pytest.mark.parametrize("metric", [RETURN, "offline/data_distance"])
def test_pruning_takes_a_trial_that_lacks_more_than_any_seed_has_gained(
    tmp_path: Path, metric: str
) -> None:
    config = [*KNOBS, "eval_interval=10", "dataset.split.holdout=0.2"]
    plan = plan_for(config, seeds=3, metric=metric, prune=True)
    study = TuningFolder(tmp_path / "study", plan)
    tuner = Tuner(study, LocalProcesses(Slots(1, 1)), 9, lambda line: None)
    ends = {0: (90.0, 99.0, 95.0), 1: (10.0, 40.0, 30.0)}  # the seeds gain at most 30 from tick 10
    for number in range(3):
        assert not tuner.reason_to_prune(
            Interval(-99.0, -99.0, -99.0), 10
        )  # too few gains are known
        claim = study.claim(9)
        assert claim is not None
        final = ends[min(number, 1)]
        then = [score - gain for score, gain in zip(final, (30.0, 2.0, -5.0), strict=True)]
        study.report(claim, 10, Interval(then[1], min(then), max(then)), then)
        study.tell(claim, "finished", min(final), [plan.sign * score for score in final])
    assert "as much as it lacks" in tuner.reason_to_prune(Interval(50.0, 45.0, 59.0), 10)  # of 90
    assert not tuner.reason_to_prune(Interval(50.0, 45.0, 61.0), 10)
    before = study.claim(9)  # a trial of which the seeds at the rung are not known
    assert before is not None
    study.report(before, 10, Interval(20.0, 20.0, 20.0), [])
    study.tell(before, "finished", 20.0, [plan.sign * 20.0] * 3)
    assert not tuner.reason_to_prune(Interval(50.0, 45.0, 59.0), 10)


def test_a_trial_that_looks_bad_is_stopped_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a budget that no machine spends before the trial is looked at
    monkeypatch.setattr("rl_training.search.tune.RUNGS", (1e-6,))
    config = [*KNOBS, "total_updates=200000000", "eval_interval=200"]
    study = TuningFolder(tmp_path / "study", plan_for(config, seeds=3, prune=True))
    said: list[str] = []
    tuner = Tuner(study, LocalProcesses(Slots(1, 1)), 6, said.append)
    for _ in range(5):
        claim = study.claim(6)
        assert claim is not None
        study.report(claim, 200, Interval(1e6, 1e6, 1e6), [1e6] * 3)
        study.tell(claim, "finished", 1e6, [1e6] * 3)
    last = tuner.run()[-1]
    assert (last.number, last.state, last.objective, len(last.scores)) == (5, "pruned", None, 3)
    assert "as much as it lacks" in said[-1]
    run = study.trial("trial-0005-3seeds")
    assert run.status == "stopped"
    result = json.loads((run.run_dir / "result.json").read_text())
    assert result["status"] == "interrupted"


def test_seeds_wait_only_where_a_trial_may_be_pruned_and_free_places_take_the_next_trial(
    tmp_path: Path,
) -> None:
    """Three online seeds and two places."""
    config = evaluated(
        load_config("sac/pendulum", ["total_timesteps=900", "eval_interval=300"]),
        "eval/return_mean",
        True,
    )
    space = space_of(config, ["algo_kwargs.tau"], [], "eval/return_mean")
    plan = TuningPlan(config, space, (0, 1, 2), (3,), "eval/return_mean", True)
    study = TuningFolder(tmp_path / "study", plan)
    runs = SleepingRuns(Slots(2, 1))
    tuner = Tuner(study, runs, 9, lambda line: None)

    def score(name: str, *ticks: int, finished: bool = False) -> None:
        run = study.trial(name)
        run.run_dir.mkdir(exist_ok=True)
        (run.run_dir / "config.yaml").write_text(run.config_file.read_text())
        events = [{"event": "eval", "tick": tick, "eval/return_mean": -1.0} for tick in ticks]
        lines = "".join(f"{json.dumps(event)}\n" for event in events)
        (run.run_dir / "metrics.jsonl").write_text(lines)
        if finished:
            (run.run_dir / "result.json").write_text('{"status": "finished"}')

    def look(processes: SleepingRuns) -> None:
        for end in processes.ended():
            tuner._process_ended(end)
        for work in list(tuner._work):
            work.looked = float("-inf")
            tuner._go_on(work, processes)
        tuner._claim_more(processes)

    with runs as processes:
        look(processes)
        assert processes.running == {"trial-0000-s0", "trial-0000-s1"}
        score("trial-0000-s0", 300)
        look(processes)
        assert processes.paused == set()  # nothing to compare with: it goes on to its end
        score("trial-0000-s0", 300, 600, 900, finished=True)
        processes.end("trial-0000-s0")
        look(processes)
        assert processes.running == {"trial-0000-s1", "trial-0000-s2"}
        score("trial-0000-s1", 300, 600, 900, finished=True)
        processes.end("trial-0000-s1")
        look(processes)
        assert processes.running == {"trial-0000-s2", "trial-0001-s0"}
        score("trial-0000-s2", 300, 600, 900, finished=True)
        processes.end("trial-0000-s2")
        for _ in range(3):  # two rungs and the end
            look(processes)
        assert [(t.number, t.state, t.rungs) for t in study.ended()] == [
            (0, "finished", {300: -1.0, 600: -1.0})
        ]
        others = TuningFolder(tmp_path / "study", plan)
        for _ in range(4):
            claim = others.claim(9)
            assert claim is not None
            others.report(claim, 300, Interval(0.0, 0.0, 0.0), [0.0])
            others.tell(claim, "finished", 0.0, [0.0])
        look(processes)
        assert processes.running == {"trial-0001-s0", "trial-0001-s1"}
        score("trial-0001-s0", 300)
        look(processes)
        assert processes.paused == {"trial-0001-s0"}  # its place is for the third seed


def test_a_killed_tuning_is_gone_on_with_exactly_and_tested(
    tmp_path: Path, light_fuse: Callable[[int, str], str]
) -> None:
    # random data reset once; killed at the third evaluation, after a checkpoint
    keys = [*KNOBS, "total_updates=100", "checkpoint_interval=20", "eval_interval=20"]
    keys += [light_fuse(4, "both")]
    command = [sys.executable, "-m", "rl_training", "tune", "bc/pendulum", *keys]
    command += ["--trials", "1", "--seeds", "1", "--test-seeds", "1", "--workers", "1"]
    folder = tmp_path / "study"
    command += ["--search", LR, "--no-prune", "--out", str(folder)]
    killed = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    run = folder / "runs" / "trial-0000-s0"
    kept = {path.name for path in (run / "checkpoints").glob("0*")}
    assert "000000000020" in kept
    assert "000000000100" not in kept

    said: list[str] = []
    tuner = Tuner(TuningFolder(folder, plan_for(keys)), some_launcher(folder), 1, said.append)
    trials = tuner.run()
    assert "taken over" in said[0]
    assert [(one.number, one.state, len(one.scores)) for one in trials] == [(0, "finished", 1)]
    verdict = judged(tuner.folder, tuner.launcher, tuner.say, trials)
    assert verdict.sentence.startswith("no better than the defaults")
    assert len(verdict.winner_scores.scores) == 1
    assert verdict.looks == 5  # one seed; what the resume evaluated again counts once
    assert not (folder / "test-0000" / "runs" / "winner-s1").exists()

    from rl_training import ManagedAlgorithm

    whole = ManagedAlgorithm(load_config("bc/pendulum", [*keys, f"output_dir={tmp_path}/whole"]))
    whole.learn(progress=False)
    assert whole.run_dir is not None
    states = [
        torch.load(path / "checkpoints" / "000000000100" / "algorithm.pt", weights_only=True)
        for path in (run, whole.run_dir)
    ]
    assert json.dumps(states[0], default=_plain) == json.dumps(states[1], default=_plain)


def some_launcher(folder: Path) -> Launcher[Any]:
    """Jobs of submitit on this machine where it is installed: no launcher changes the result."""
    try:
        return SlurmJobs(folder, 1, settings={"cluster": "local"})
    except MissingExtraError:
        return LocalProcesses(Slots(1, 1))


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, torch.Tensor) else str(value)


def test_the_verdict_may_be_that_nothing_was_gained() -> None:
    trials = [ended(0, 1.0), ended(1, None), ended(2, 3.0), ended(3, 3.0)]
    winner = best_of(trials)
    assert winner is trials[2]
    assert best_of([ended(0, None)]) is None
    scores = Summary.of([1.0, 2.0, 3.0])
    for improvement, words in (
        (None, "no better than the defaults"),
        (Interval(0.7, 0.4, 0.9), "no better than the defaults"),
        (Interval(0.9, 0.6, 1.0), "better than the defaults"),
        (Interval(0.1, 0.0, 0.4), "worse than the defaults"),
    ):
        verdict = Verdict(winner, "eval/return_mean", scores, scores, improvement, 7)
        assert verdict.sentence.startswith(words)
        assert json.loads(json.dumps(verdict.to_dict()))["looks"] == 7
    few = Verdict(winner, RETURN, Summary.of([2.0, 2.0]), scores, Interval(1.0, 1.0, 1.0), 7)
    assert few.sentence.startswith("no better than the defaults: fewer than 3 test seeds")
