"""The page about runs, the list of all runs, and the view in the terminal."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import Callback, EvalEvent, MetricsEvent, RunInfo, SinkFailure, learn_seeds
from rl_training.api.managed import ManagedAlgorithm
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.sinks import Video
from rl_training.experiment.sinks.tensorboard import TensorBoardSink
from rl_training.experiment.tracking import read_run_config
from rl_training.reports.charts import MOST_DRAWN, Line, drawable, line_chart
from rl_training.reports.comparison import compare
from rl_training.reports.events import MOST_POINTS, EventReader, parsed
from rl_training.reports.extras import PREDICTIONS, Extras, newest_prediction
from rl_training.reports.figures import return_distribution
from rl_training.reports.page import document, folded, paragraph
from rl_training.reports.report import REFRESH_SECONDS, report
from rl_training.reports.runs import Curve, Run, find_runs, read_run
from rl_training.reports.settings import differences, overrides
from rl_training.reports.watching import plotted
from rl_training.runtime.callbacks import StartEvent
from tests.conftest import QUICK, Command

from .test_compare import made_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
HOLD = (
    "import sys, time; from pathlib import Path\n"
    "from rl_training.experiment.lock import working_in\n"
    "with working_in(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
)
"""A process that trains in a run folder, as far as others can see, until its input ends."""


class Page(HTMLParser):
    """What a page holds; a tag that is not closed as it was opened is an error."""

    EMPTY = ("meta", "link", "input", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.numbers: list[float] = []
        self.tags: list[str] = []
        self.said: list[str] = []
        self.headings: list[int] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attributes)
        if tag not in self.EMPTY:
            self._open.append(tag)
        if tag == "data":
            self.numbers.append(float(given["value"] or "nan"))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "svg":
            assert given["role"] == "img"
            assert given["aria-label"]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).split())


def page_of(*folders: Path) -> Page:
    return Page(report(find_runs(folders)))


@pytest.fixture(scope="module")
def seeds_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of two seeds with a report, a profile and measures on held-out data."""
    config = load_config("bc/pendulum", [
        *QUICK, "eval_interval=10", "log_interval=5", "eval_episodes=2", "report=true",
        "profile=true", "dataset.max_episodes=6", "dataset.split.holdout=0.34",
        f"output_dir={tmp_path_factory.mktemp('runs')}", "run_name=<i>two",
    ])  # fmt: skip
    return learn_seeds(config, 2, progress=False).run_dir


def test_a_run_writes_its_report_whose_numbers_are_those_of_its_result(seeds_run: Path) -> None:
    text = (seeds_run / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    for seed in (0, 1):
        result = json.loads((seeds_run / f"seed-{seed}" / "result.json").read_text())
        expected = [
            result["last_eval"]["eval/return_mean"],
            result["best"]["score"],
            result["held_out"]["last"]["eval/return_mean"],
            *(v for key, v in result["last_eval"].items() if key.startswith("offline/")),
        ]
        assert len(expected) > 3
        for value in expected:
            assert value in page.numbers
    whole = json.loads((seeds_run / "result.json").read_text())
    summaries = [whole[name]["iqm"] for name in ("last", "best", "held_out")]
    for value in (v for part in (*summaries, whole["profile"]) for v in part.values()):
        assert value in page.numbers or value == 0.0
    for words in (
        "status finished", "20 of 20 updates", "Where the time went", "Training metrics",
        "Settings that differ from the defaults", "algo_kwargs.hidden_sizes", "gymnasium",
        "rl-training train", "Returns of 4 episodes", "offline/", "<i>two",
    ):  # fmt: skip
        assert words in page.text, words
    assert "<i>" not in text
    assert 'id="reload"' not in text
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(page.headings, page.headings[1:]))  # noqa: B905
    assert page.tags.count("table") == page.tags.count("caption")
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", text)
    assert len(text) < 3_000_000


class LostAtOnce:
    """A logger that is dropped at its first event."""

    def open(self, run: RunInfo) -> None:
        pass

    def write(self, event: MetricsEvent) -> None:
        raise SinkFailure("nothing answers")

    def close(self, status: str) -> None:
        pass


class FailsLater(Callback):
    """Keeps the report as it was during the run, then ends the run by an error."""

    page = ""
    folder = Path()

    def on_start(self, event: StartEvent) -> None:
        self.folder = event.run_dir

    def on_eval(self, event: EvalEvent) -> None:
        if event.tick == 20:
            self.page = (self.folder / "report.html").read_text()
            raise ValueError("<b>lost")


def test_a_report_is_kept_during_a_run_and_after_its_failure(tmp_path: Path) -> None:
    config = load_config("bc/pendulum", [
        *QUICK, "eval_interval=10", "log_interval=5", "report=true", "final_eval=false",
        f"output_dir={tmp_path}", f"loggers=[{__name__}:LostAtOnce]",
    ])  # fmt: skip
    watcher = FailsLater()
    with pytest.raises(ValueError, match="lost"):
        ManagedAlgorithm(config).learn(progress=False, callbacks=watcher)
    assert f"again every {REFRESH_SECONDS} seconds" in watcher.page
    assert "status running" in Page(watcher.page).text
    text = (watcher.folder / "report.html").read_text()
    for words in ("it failed", "ValueError: <b>lost", "LostAtOnce' failed (nothing answers)"):
        assert words in Page(text).text
    assert "<b>" not in text
    assert 'id="reload"' not in text


def test_the_command_in_a_report_makes_the_same_config(seeds_run: Path) -> None:
    config = TrainConfig.stored(read_run_config(seeds_run))
    texts = overrides(config)
    assert texts is not None
    made, stored = load_config("bc", texts).to_dict(), config.to_dict()
    assert [key for key in stored if made[key] != stored[key]] == [
        "report",
        "output_dir",
        "run_name",
    ]
    shown = next(line for line in page_of(seeds_run).said if " train bc " in line)
    assert shlex.split(shown) == ["rl-training", "train", "bc", *texts]
    keys = {one.key: (one.value, one.default) for one in differences(config.to_dict())}
    assert keys["eval_interval"] == ("10", "0")
    assert keys["algo_kwargs.hidden_sizes"][0] == "[8]"
    assert "seed" not in keys
    assert not {"report", "output_dir", "run_name"} & set(keys)
    unknown = differences({"algo": "of another package", "x": [1]})
    assert [(one.key, one.value, one.default) for one in unknown] == [
        ("algo", "of another package", None),
        ("x", "[1]", None),
    ]
    held_out = load_config("bc/pendulum", ["dataset.split.holdout=0.2"])
    listed = {one.key: one.value for one in differences(held_out.to_dict())}
    assert listed["dataset.split"] == '{"holdout": 0.2, "seed": 0}'  # all its keys at defaults
    for task, name in (
        ({"env_id": "ALE/Pong-v5"}, "ALE/Pong-v5"),
        ({"dataset": {"kind": "npz", "path": "/data/log.npz"}}, "log.npz"),
    ):
        assert Run(Path("run"), task, "finished", (), {}).task_name == name


def test_several_runs_are_compared(tmp_path: Path) -> None:
    for seed in range(3):
        made_run(tmp_path / "runs" / f"a{seed}", seed, [10.0, 20.0 + seed])
        made_run(tmp_path / "runs" / f"b<b>{seed}", seed, [10.0, 40.0 + seed], algo="td3<b>")
    page = page_of(tmp_path / "runs")
    for words in (
        "6 runs on Toy-v0",
        "interquartile mean",
        "Performance profile",
        "td3<b>, 3",
        "Interquartile means over seeds (mean return)",
    ):
        assert words in page.text, words
    for value in (21.0, 41.0, 1.0):
        assert value in page.numbers
    assert page.tags.count("b") == 0
    made_run(tmp_path / "more" / "a0", 7, [10.0, 25.0])
    assert {20.0, 25.0} <= set(page_of(tmp_path / "runs" / "a0", tmp_path / "more").numbers)
    many = [made_run(tmp_path / "many" / str(i), i, [1.0], gamma=i) for i in range(14)]
    assert page_of(*many).tags.count("section") < 150


def test_warnings_estimates_and_damaged_files(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 0, [1.0, 3.0, 2.0])
    result = json.loads((run / "result.json").read_text())
    result |= {"status": "failed", "stop_reason": "</script>broke", "warnings": ["few rows"],
               "data_notes": ["rewards are zero"], "inexact_because": "it keeps state"}  # fmt: skip
    (run / "result.json").write_text(json.dumps(result))
    entry = {"checkpoint": "1", "data": "ab", "episodes": 7, "gamma": 0.9, "unusual": 0.25,
             "effective_size": 3.5, "verdict": "not supported by the data",
             "stochastic": True, "rows_trained_on": 0.125, "notes": ["few <episodes>"],
             "estimates": {"fqe": {"value": 1.25, "low": 0.5, "high": 2.5, "coverage": [0.1, 0.5]},
                           "new": {"value": 7.5, "low": None}}}  # fmt: skip
    (run / "ope.json").write_text(json.dumps({"evaluations": [entry, "odd", {"estimates": 3}]}))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('no json\n{"event": "eval", "tick": 500, "eval/retu')
    page = page_of(run)
    for words in (
        "not complete: it failed", "Few rows", "Rewards are zero", "it keeps state",
        "</script>broke", "Not supported by the data", "25.0%", "3.5 episodes",
        "rl-training resume", "300 of 300", "Fitted Q evaluation", "10% to 50%", "sampled actions",
        "trained on 12.5%", "Few <episodes>",
    ):  # fmt: skip
        assert words in page.text, words
    assert {1.25, 0.5, 2.5, 3.0, 7.5} <= set(page.numbers)
    for name, content in (
        ("result.json", "{"),
        ("result.json", '{"profile": 3, "best": [], "held_out": "x", "versions": []}'),
        ("result.json", '{"wall_seconds": NaN, "profile": {"update": NaN}, "warnings": 3}'),
        ("result.json", '{"best": {"metric": "eval/return_mean", "score": 1, "tick": "x"}}'),
        ("ope.json", "[]"),
        ("metrics.jsonl", ""),
        ("config.yaml", ""),
    ):
        (run / name).write_text(content)
        assert page_of(run).headings[0] == 1
    assert "No evaluation yet" in page_of(run).text


def test_less_is_better_of_an_error(tmp_path: Path) -> None:
    """A result keeps the negative of such a metric as the score of its best evaluation."""
    for name, seed, errors in (("a", 0, [4.0, 2.0, 3.0]), ("b", 0, [9.0, 8.0, 7.0])):
        run = made_run(tmp_path / name, seed, errors, algo=name)
        file = run / "metrics.jsonl"
        file.write_text(file.read_text().replace("eval/return_mean", "offline/td_error"))
        best = {"metric": "offline/td_error", "tick": 200, "score": -min(errors)}
        (run / "result.json").write_text(json.dumps({"status": "finished", "best": best}))
    page = page_of(tmp_path / "a")
    assert "TD error on held-out data" in page.text
    assert 2.0 in page.numbers
    assert -2.0 not in page.numbers
    found = compare(find_runs([tmp_path]))
    first, second = found.arms
    assert (first.best.scores, second.best.scores) == ((2.0,), (7.0,))
    assert found.improvement(first, second).value == 1.0
    assert found.steps_to(first, 3.5) == [200]


def test_what_a_model_expected_is_beside_what_came(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 0, [1.0])
    for i in range(2):
        event = {"event": "train", "tick": 200 + i, "rollout/return_mean": 30.0,
                 "rollout/length_mean": 10.0, "imagined/reward_mean": 4.5 + i,
                 "model/mse": 0.25}  # fmt: skip
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")
    page = page_of(run)
    for words in (
        "What the model expected", "Reward per step, imagined and in training episodes",
        "what came in the environment from 3 to 3", "what the model imagined from 4.5 to 5.5",
        "Squared error of the model model/mse",
    ):  # fmt: skip
        assert words in page.text, words
    assert {5.5, 0.25} <= set(page.numbers)
    assert newest_prediction(run) is None
    for tick in (3, 4):
        sink = TensorBoardSink(TensorBoardSink.Options())
        sink.open(RunInfo(run, "run", None, {}))
        video = Video(np.full((2, 4, 4, 3), tick, np.uint8))
        sink.write(MetricsEvent("train", tick, {PREDICTIONS: video}))
        sink.close("finished")
    assert newest_prediction(run) == video.as_gif()
    (found,) = find_runs([run])
    text = report([found], {run: Extras(predictions="data:image/gif;base64,R0lG")})
    assert text.count('<img src="data:image/gif;base64,R0lG" alt="From top to bottom') == 1
    assert "img" in Page(text).tags


def test_a_million_evaluations_make_a_small_page(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 0, [])
    line = '{"event": "eval", "tick": %d, "eval/return_mean": %d, "best": %s}\n'
    with (run / "metrics.jsonl").open("w") as file:
        for tick in range(1_000_000):
            peak = tick == 654_321
            file.write(line % (tick, 7_000 if peak else tick % 100, "true" if peak else "false"))
    began = time.process_time()
    found = read_run(run)
    text = report([found])
    assert time.process_time() - began < 12.0
    assert MOST_POINTS <= len(found.seeds[0].evaluations) <= 2 * MOST_POINTS + 1
    assert found.seeds[0].best("eval/return_mean") == (654_321, 7_000.0)
    assert 7_000.0 in Page(text).numbers
    assert len(text) < 1_000_000


def test_a_record_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = EventReader(path)

    def ticks() -> list[int]:
        reader.update()
        return [event["tick"] for event in parsed(reader.training.lines())]

    assert ticks() == []
    lines = [json.dumps({"event": "train", "tick": tick}) + "\n" for tick in range(6)]
    path.write_text("".join(lines[:3]) + lines[3][:9])
    assert ticks() == [0, 1, 2]
    path.write_text("".join(lines[:5]))
    assert ticks() == [0, 1, 2, 3, 4]
    path.write_text("".join(lines[:2]) + lines[5])  # a resumed run dropped the end
    assert ticks() == [0, 1, 5]


def test_a_record_is_the_same_in_blocks_of_any_size(tmp_path: Path) -> None:
    kinds = ["eval" if tick % 3 == 0 else "train" for tick in range(500)]
    events = [
        {"event": kind, "tick": tick, "best": tick in (30, 33), "x": "x" * (tick % 50)}
        for tick, kind in enumerate(kinds)
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + "[]\n\n{")
    for size in (7, 100, 1 << 17):
        reader = EventReader(path, most_points=20, block_bytes=size)
        reader.update()
        assert parsed([reader.newest_best]) == [events[33]]
        # every 8th of 167, and the newest; every 16th of 333 and two lines that are no events
        kept = [events[at] for at in range(0, 500, 24)]
        assert parsed(reader.evaluations.lines()) == [*kept, events[498]]
        train = [event for event in events if event["event"] == "train"]
        assert parsed(reader.training.lines()) == train[::16]


def heed_ctrl_c() -> None:
    """A process that a shell put into the background ignores the signal, and so would its own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_page_and_the_terminal_follow_a_run_that_goes_on(tmp_path: Path, cli: Command) -> None:
    run = made_run(tmp_path / "run", 0, [1.0, 2.0])
    whole = (run / "result.json").read_text()
    (run / "result.json").unlink()
    command = [sys.executable, "-c", HOLD, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        out = tmp_path / "live.html"
        assert cli("report", run, "--out", out).code == 0
        assert f"again every {REFRESH_SECONDS} seconds" in out.read_text()
        arguments = ["rl_training", "watch", str(run), "--every", "0.1"]
        with subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=heed_ctrl_c,
        ) as watcher:
            assert watcher.stdout is not None
            first = watcher.stdout.readline()
            assert "200 of 200 environment steps (100%)" in first
            assert "4 s so far" in first
            assert watcher.poll() is None
            with subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=heed_ctrl_c,
            ) as left:
                assert left.stdout is not None
                left.stdout.readline()
                left.send_signal(signal.SIGINT)
                assert "the run goes on" in left.stdout.read()
                assert left.wait(60) == 130
            assert holder.poll() is None
            (run / "result.json").write_text(whole)
            holder.stdin.close()
            holder.wait()
            shown = watcher.stdout.read()
            assert watcher.wait(60) == 0
    assert "sac on Toy-v0: finished" in shown
    assert "mean return over environment steps" in shown
    assert cli("report", run, "--out", out, "--follow").code == 0
    assert 'id="reload"' not in out.read_text()


def test_charts_of_extreme_numbers() -> None:
    for returns in ([1e16, 1e16 + 2], [3.0], [-1e299, 1e299], [0.0, 5e-324]):
        assert "episodes" in return_distribution(returns, "returns")
    for tick in (0, 10**7, 10**15):
        assert "<circle" in line_chart("one", "x", "y", [Line("a", [tick], [1e17])])
    peak = [0.0] * 10_000
    peak[4_321] = 9.0
    curve = drawable("long", range(10_000), peak)
    assert len(curve.x) <= MOST_DRAWN
    assert (4_321, 9.0) in zip(curve.x, curve.y, strict=True)
    assert len(drawable("huge", [1, 2], [-1e308, 1e308]).y) == 2
    assert "nan" not in line_chart("h", "x", "y", [drawable("huge", [1, 2], [-1e308, 1e308])])


def test_curves_in_the_terminal() -> None:
    rising = plotted([Curve((0, 10), (0.0, 1.0))], 22, 5, plain=True)
    assert [line.strip() for line in rising[1:-1]] == ["****"] * 3
    assert rising[0].startswith("1 ")
    assert rising[0].endswith("*")
    assert rising[-1].startswith("0 *")
    for values in ((3.0,), (5.0, 5.0), (-1e308, 1e308)):
        ticks = tuple(range(len(values)))
        assert len(plotted([Curve(ticks, values)], 30, 4)) == 4
    assert plotted([], 30, 4) == ["no points yet"]


def test_all_runs_are_listed_and_wrong_requests_refused(tmp_path: Path, cli: Command) -> None:
    runs = tmp_path / "runs"
    made_run(runs / "one", 0, [1.0])
    made_run(runs / "two<script>", 1, [2.0], env_id="Other<img>-v0")
    (runs / "one" / "report.html").write_text("")
    assert cli("report", "--all", runs).code == 0
    text = (runs / "index.html").read_text()
    page = Page(text)
    assert 'href="one/report.html"' in text
    assert "Other<img>-v0" in page.text
    assert page.tags.count("script") == 1
    assert page.numbers == [1.0, 2.0]
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        ((), "name the runs"),
        ((runs,), "different tasks"),
        ((tmp_path / "empty",), "holds no run"),
        ((tmp_path / "missing",), "does not exist"),
        ((runs / "one", "--out", tmp_path / "x.pdf"), "not an .html file"),
        (("--all", runs, "--videos"), "--all"),
    ):
        refused = cli("report", *arguments)
        assert refused.code == 2
        assert words in refused.err
        assert len(refused.error_lines) == 1
    assert not (tmp_path / "x.pdf").exists()
    assert cli("watch", tmp_path / "missing").code == 2


def data_mean(page: Page) -> str:
    return str(re.findall(r"mean return of the data (\S+)", page.text)[0])


def test_videos_and_data_on_request(bc_run: Path, tmp_path: Path, cli: Command) -> None:
    pytest.importorskip("imageio_ffmpeg")
    out = tmp_path / "report.html"
    done = cli("report", bc_run, "--out", out, "--videos", "--data")
    assert done.code == 0, done.err
    page = Page(out.read_text())
    assert page.tags.count("video") == 2
    returns = [float(r.replace(",", "")) for r in re.findall(r"episodes, return (\S+)", page.text)]
    assert returns[0] > returns[1]
    assert "mean return of the data" in page.text
    assert out.read_text().count("data:video/mp4;base64,AAAA") == 2
    config = read_run_config(bc_run)
    scaled = {**config["dataset"], "rewards": {"scale": 1 / 16}}
    (bc_run / "config.yaml").write_text(json.dumps({**config, "dataset": scaled}))
    assert cli("report", bc_run, "--out", out, "--data").code == 0
    assert data_mean(Page(out.read_text())) == data_mean(page)  # as evaluations count rewards
    (bc_run / "config.yaml").write_text(json.dumps({**config, "dataset": None}))
    shutil.rmtree(bc_run / "checkpoints")
    done = cli("report", bc_run, "--out", out, "--videos", "--data")
    assert done.code == 0
    assert "No videos:" in Page(out.read_text()).text
    assert "No summary of the data:" in done.out


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_pages_in_a_browser(seeds_run: Path, tmp_path: Path, cli: Command) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    for i in range(3):
        long = "a_very_long_name_without_a_space_" * 5
        made_run(tmp_path / "runs" / f"r{i}", i, [5.0, 9.0 - i], algo_kwargs={"x": long})
    made_run(tmp_path / "other", 0, [1.0], algo="ppo", env_id="Other-v0")
    pages = {name: tmp_path / f"{name}.html" for name in ("comparison", "all")}
    assert cli("report", tmp_path / "runs", "--out", pages["comparison"]).code == 0
    assert cli("report", "--all", tmp_path, "--out", pages["all"]).code == 0
    pages["run"] = seeds_run / "report.html"
    live = pages["live"] = tmp_path / "live.html"
    live.write_text(document("live", folded("more", [paragraph("text")]), 600))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 400, "height": 800}, color_scheme="dark")
        page = context.new_page()
        problems: list[str] = []
        requests: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text))
        page.on("request", lambda request: requests.append(request.url))
        for path in pages.values():
            page.goto(path.as_uri())
            page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 400, f"{path.name} is {wide} px wide"
            colours: Any = page.evaluate(
                "[getComputedStyle(document.body).color,"
                " getComputedStyle(document.body).backgroundColor]"
            )
            assert colours == ["rgb(230, 233, 238)", "rgb(15, 18, 22)"]
        page.goto(live.as_uri())
        assert page.locator("#reload").is_checked()
        assert not problems, problems
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []

        page.goto(pages["all"].as_uri())
        names = page.locator("tbody tr:visible th")
        expect = playwright.expect
        expect(names).to_have_text(["other", "r0", "r1", "r2"])
        page.get_by_role("button", name="score").click()
        expect(names).to_have_text(["other", "r2", "r1", "r0"])
        page.get_by_role("button", name="score").click()
        expect(names).to_have_text(["r0", "r1", "r2", "other"])
        page.get_by_label("Words").fill("toy SAC r1")
        expect(names).to_have_text(["r1"])
        expect(page.locator("#shown")).to_have_text("1 of 4 runs")
        page.get_by_label("Words").fill("")
        page.get_by_label("Status").select_option("failed")
        expect(names).to_have_count(0)
        browser.close()
