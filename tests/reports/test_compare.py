"""Run folders as they are read, and the statistics of a comparison."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rl_training.experiment.errors import ConfigError
from rl_training.reports.charts import Line, Mark, line_chart, ticks
from rl_training.reports.comparison import (
    compare,
    performance_profile,
    probability_of_improvement,
)
from rl_training.reports.events import MOST_POINTS
from rl_training.reports.runs import Run, find_runs, read_run
from rl_training.runtime.statistics import Summary
from tests.conftest import Command

RLIABLE = (
    ([2.5, 0.35, 2.5, 3.84, 5.27], [2.5, 1.9, 1.7, 3.2, 4.1, 2.8, 1.3], 2.94666667, 0.57142857),
    (
        [2.5, 6.2, 3.41, -0.46, 2.83, 0.67, 1.74, 2.02, 1.57, 4.11],
        [2.5, 1.9, 2.9, 3.3, 0.9, 2.2, 1.5, 2.3, 1.2, 2.5, 2.5, 2.2],
        2.345,
        0.5375,
    ),
    (
        [2.5, 2.21, 0.82, 0.29, 3.45, 0.78, 5.34, 4.43, -1.0, 3.54, 0.8, 3.07, 3.09],
        [2.5, 2.3, 2.2, 3.5, 1.3, 3.2, 1.4, 2.2, 1.7, 3.9, 3.1, 4.9, 3.1, 3.3, 3.3],
        2.27714286,
        0.40769231,
    ),
)
"""Scores of two algorithms, with the interquartile mean and the probability of improvement that
rliable 1.2.0 computes."""


def made_run(
    folder: Path, seed: int, values: list[float], algo: str = "sac", **config: Any
) -> Path:
    """The files of a finished run that was evaluated every hundred steps."""
    folder.mkdir(parents=True)
    config = {"algo": algo, "env_id": "Toy-v0", "total_timesteps": 100 * len(values), **config}
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed, **config}))
    lines = []
    for i, value in enumerate(values, 1):
        lines += [{"event": "train", "tick": 100 * i, "time/elapsed_seconds": 2.0 * i},
                  {"event": "eval", "tick": 100 * i, "eval/return_mean": value}]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = {"status": "finished", "env_steps": 100 * len(values), "wall_seconds": 60.0,
              "best": {"metric": "eval/return_mean"}}  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_the_statistics_equal_those_of_rliable() -> None:
    for scores, others, iqm, improvement in RLIABLE:
        assert Summary.of(scores).iqm.value == pytest.approx(iqm)
        found = probability_of_improvement(scores, others)
        assert found.value == pytest.approx(improvement)
        assert found.low < found.value < found.high
        swapped = probability_of_improvement(others, scores)
        assert swapped.value == pytest.approx(1.0 - improvement)
    assert probability_of_improvement([3.0, 4.0], [1.0, 2.0]).low == 1.0
    profile = performance_profile([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.5, 4.0])
    assert profile.tolist() == [1.0, 0.75, 0.5, 0.0]


def test_runs_that_differ_in_their_seed_alone_are_one_experiment(tmp_path: Path) -> None:
    for seed in range(4):
        made_run(tmp_path / f"a{seed}", seed, [10.0 + seed, 20.0 + seed], device=f"cuda:{seed}")
        knobs = {"tau": 0.5, "gamma": 0.9 if seed < 2 else 0.8}
        made_run(tmp_path / f"b{seed}", seed, [5.0, 30.0 + seed], algo_kwargs=knobs)
    found = compare(find_runs([tmp_path]))
    first = "sac gamma=None tau=None"
    assert [arm.name for arm in found.arms] == [
        first,
        "sac gamma=0.9 tau=0.5",
        "sac gamma=0.8 tau=0.5",
    ]
    assert [len(arm.seeds) for arm in found.arms] == [4, 2, 2]
    arm = found.arms[0]
    assert arm.summary.scores == (20.0, 21.0, 22.0, 23.0)
    assert arm.summary.iqm.value == 21.5
    assert arm.wall_seconds == 240.0
    assert found.steps_to(arm, 12.0) == [200, 200, 100, 100]
    assert found.steps_to(arm, 99.0) == [None] * 4
    band = found.band(arm)
    assert band.ticks == (100, 200)
    assert band.middle == (11.5, 21.5)
    assert band.low[0] < 11.5 < band.high[0]
    assert found.improvement(found.arms[1], arm).value == 1.0


def test_the_score_is_that_of_start_states_which_chose_nothing(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 0, [10.0, 20.0])
    result = json.loads((run / "result.json").read_text())
    result["held_out"] = {"last": {"eval/return_mean": 17.0}}
    (run / "result.json").write_text(json.dumps(result))
    assert read_run(run).seeds[0].score("eval/return_mean") == 17.0


def test_running_dead_and_finished_runs_are_distinguished(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 0, [1.0])
    assert read_run(run).status == "finished"
    (run / "result.json").unlink()
    assert read_run(run).status == "dead"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from rl_training.experiment.lock import working_in\n"
        "with working_in(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        found = read_run(run)
        assert found.status == "running"
        assert (found.tick, found.budget, found.wall_seconds) == (100, 100, 2.0)
    finally:
        holder.kill()
        holder.wait()
    assert read_run(run).status == "dead"
    assert (run / ".lock").exists()


def test_a_long_record_is_thinned_and_its_torn_end_left_out(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 0, [1.0, 2.0])
    with (run / "metrics.jsonl").open("a") as file:
        for tick in range(300, 300_300):
            file.write(f'{{"event": "train", "tick": {tick}, "train/loss": 0.5}}\n')
        file.write('{"event": "train", "tick": 400000, "tra')
    began = time.process_time()
    seed = read_run(run).seeds[0]
    assert time.process_time() - began < 3.0
    assert MOST_POINTS <= len(seed.training) <= 2 * MOST_POINTS + 1
    assert len(seed.evaluations) == 2
    assert max(np.diff([event["tick"] for event in seed.training])) < 1_000


def test_what_cannot_be_compared_is_refused_in_one_sentence(tmp_path: Path, cli: Command) -> None:
    def runs(*names: str) -> list[Run]:
        return find_runs([tmp_path / name for name in names])

    made_run(tmp_path / "one", 0, [1.0])
    made_run(tmp_path / "again", 0, [2.0])
    made_run(tmp_path / "other", 1, [1.0], env_id="Other-v0")
    made_run(tmp_path / "new", 2, [])
    for game in ("pong", "breakout"):
        atari = {"env_id": "rl_training/Atari-v0", "env_kwargs": {"game": game}}
        made_run(tmp_path / game, 0, [1.0], **atari)
    (tmp_path / "empty").mkdir()
    for names, metric, words in (
        (("pong", "breakout"), None, r"different tasks \(Atari pong, Atari breakout\)"),
        (("one", "other"), None, "different tasks"),
        (("one", "again"), None, "count twice"),
        (("new",), None, "no evaluation yet"),
        (("one",), "eval/length", "there are eval/return_mean"),
    ):
        with pytest.raises(ConfigError, match=words):
            compare(runs(*names), metric)
    for place, words in (("empty", "holds no run"), ("missing", "does not exist")):
        refused = cli("compare", tmp_path / place)
        assert refused.code == 2
        assert words in refused.err
    assert cli("compare", tmp_path / "one", "--figure", "x.png").code == 2


def test_the_command_prints_a_table_json_and_a_figure(tmp_path: Path, cli: Command) -> None:
    for seed in range(3):
        made_run(tmp_path / "runs" / f"a{seed}", seed, [10.0, 20.0 + seed])
        made_run(tmp_path / "runs" / f"b{seed}", seed, [10.0, 40.0 + seed], algo="td3<b>")
    figure = tmp_path / "curves.svg"
    shown = cli("compare", tmp_path / "runs", "--threshold", "30", "--figure", figure)
    assert shown.code == 0, shown.err
    for words in ("sac", "21.00", "1.00 [1.00", "never", "200"):
        assert words in shown.out
    assert "td3&lt;b&gt;, 3 seeds" in figure.read_text()
    assert "<b>" not in figure.read_text()
    found = json.loads(cli("compare", tmp_path / "runs", "--json").out)
    assert found["experiments"][1]["last"]["mean"]["value"] == 41.0
    assert found["experiments"][1]["improves_on_first"]["value"] == 1.0
    assert "steps_to_threshold" not in found["experiments"][0]
    found = json.loads(cli("compare", tmp_path / "runs", "--threshold", "41", "--json").out)
    steps = [experiment["steps_to_threshold"] for experiment in found["experiments"]]
    assert (found["threshold"], steps) == (41.0, [[None] * 3, [None, 200, 200]])
    listed = json.loads(cli("list", "--runs", tmp_path / "runs", "--json", "--sort", "score").out)
    assert [run["score"] for run in listed] == [20.0, 21.0, 22.0, 40.0, 41.0, 42.0]
    assert cli("list", "--runs", tmp_path, "--status", "asleep").code == 2


def test_charts_take_any_numbers() -> None:
    flat = line_chart("flat", "x", "y", [Line("a", [1], [3.0])], [Mark("data", 3.0)])
    assert "<circle" in flat
    assert "data: 3" in flat
    assert "no points yet" in line_chart("none", "x", "y", [])
    assert "nan" not in line_chart("gap", "x", "y", [Line("a", [1, 2, 3], [1.0, np.nan, 2.0])])
    for low, high in ((0.0, 1.0), (-3e7, 2e6), (5.0, 5.0), (1e-9, 2e-9)):
        marks = ticks(low, high)
        assert marks[0] <= low
        assert marks[-1] >= high
        assert 3 <= len(marks) <= 9
