"""Metrics leave a run: to several loggers at once, on one curve across resumes."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_training import (
    BC,
    Callback,
    LogEvent,
    MetricsEvent,
    RunInfo,
    SinkFailure,
    StartEvent,
    StepEvent,
    learn_seeds,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, MissingExtraError, RLTrainingError
from rl_training.experiment.sinks import MetricsLog
from rl_training.experiment.sinks.tensorboard import TensorBoardSink

METRIC = "train/policy_loss"


class OwnSink:
    """Keeps what it gets, across the sessions of a run."""

    kept: list[tuple[str, int]] = []
    infos: list[RunInfo] = []
    ends: list[str] = []

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.fails_at = fails_at

    def open(self, run: RunInfo) -> None:
        self.infos.append(run)
        if run.resumed_at is not None:
            self.kept[:] = [event for event in self.kept if event[1] <= run.resumed_at]

    def write(self, event: MetricsEvent) -> None:
        if self.fails_at is not None and event.tick >= self.fails_at:
            raise SinkFailure("no connection")
        self.kept.append((event.kind, event.tick))

    def close(self, status: str) -> None:
        self.ends.append(status)


class NoSink:
    def open(self, run: RunInfo) -> None: ...


class DiesAt(Callback):
    def __init__(self, tick: int) -> None:
        self.tick = tick

    def on_start(self, event: StartEvent) -> None:
        self.on_step(event)

    def on_step(self, event: StartEvent | StepEvent) -> None:
        if event.tick >= self.tick:
            raise KeyError("as if killed")


def agent(tmp_path: Path, **options: Any) -> BC:
    quick = {"hidden_sizes": [4], "eval_episodes": 1, "log_interval": 5, "eval_interval": 10}
    settings = {"checkpoint_interval": 10, "tensorboard": False, "device": "cpu", "threads": 1}
    return BC(
        "Pendulum-v1",
        dataset="pendulum-mixed",
        env_kwargs={"max_episode_steps": 3},
        output_dir=str(tmp_path / "runs"),
        **{**quick, **settings, **options},
    )


def wandb_points(run_dir: Path) -> list[tuple[int, float]]:
    """(step, metric) of every point in W&B's offline files, in the order of the sessions."""
    from wandb.proto import wandb_internal_pb2

    points = []
    for file in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        for data in _records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                values = {i.key or i.nested_key[0]: i.value_json for i in record.history.item}
                if METRIC in values:
                    points.append((int(values["_step"]), float(values[METRIC])))
    return points


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a log of blocks of 32 KiB, each part of one behind (checksum, size, type)."""
    position, whole = 7, b""
    while position + 7 <= len(data):
        room = 32768 - position % 32768
        if room < 7:
            position += room
            continue
        _, size, part = struct.unpack("<IHB", data[position : position + 7])
        if part == 0:
            break
        whole += data[position + 7 : position + 7 + size]
        position += 7 + size
        if part in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_a_resumed_run_continues_the_same_curve_in_every_logger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("wandb", "mlflow"):
        pytest.importorskip(package)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to make
    for kept in (OwnSink.kept, OwnSink.infos, OwnSink.ends):
        kept.clear()
    store = f"file://{tmp_path}/mlflow"
    own = f"{__name__}:OwnSink"
    learner = agent(
        tmp_path,
        loggers=[
            "tensorboard",
            "csv",
            {"kind": "wandb", "options": {"mode": "offline", "tags": ["test"]}},
            {"kind": "mlflow", "options": {"tracking_uri": store, "experiment": "pendulum"}},
            own,
        ],
    )
    # killed with points up to 15, and once more right after the resume from 10
    with pytest.raises(KeyError):
        learner.learn(30, callbacks=[DiesAt(15)], progress=False)
    run_dir = learner.run_dir
    assert run_dir is not None
    with (run_dir / "metrics.csv").open("a", encoding="utf-8") as file:
        file.write("train,16,0.5")  # cut short by a crash
    with pytest.raises(KeyError):
        BC.resume(run_dir, callbacks=[DiesAt(10)], progress=False)
    BC.resume(run_dir, progress=False)

    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    train = [(event["tick"], event[METRIC]) for event in events if event["event"] == "train"]
    evaluations = [event["tick"] for event in events if event["event"] == "eval"]
    assert [tick for tick, _ in train] == [5, 10, 15, 20, 25, 30]
    assert evaluations == [10, 20, 30]

    with (run_dir / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(r["tick"]), float(r[METRIC])) for r in rows if r["event"] == "train"] == train
    assert [int(row["tick"]) for row in rows if row["eval/return_mean"]] == evaluations

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    assert [point.step for point in curves.Scalars(METRIC)] == [5, 10, 15, 20, 25, 30]
    assert [point.step for point in curves.Scalars("eval/return_mean")] == evaluations

    assert wandb_points(run_dir) == train

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("pendulum")
    (run,) = client.search_runs([experiment.experiment_id])
    points = client.get_metric_history(run.info.run_id, METRIC)
    assert [(point.step, point.value) for point in points] == train
    scored = client.get_metric_history(run.info.run_id, "eval/return_mean")
    assert [point.step for point in scored] == evaluations
    assert run.info.status == "FINISHED"
    assert run.info.run_name == run_dir.name
    assert run.data.params["algo"] == "bc"
    assert run.data.params["algo_kwargs.hidden_sizes"] == "[4]"

    assert [event for event in OwnSink.kept if event[0] == "train"] == [
        ("train", t) for t, _ in train
    ]
    assert OwnSink.ends == ["failed", "failed", "finished"]
    assert [info.resumed_at for info in OwnSink.infos] == [None, 10, 10]
    assert OwnSink.infos[1].written == {"train": 15, "eval": 10}
    assert OwnSink.infos[2].written == {"train": 10, "eval": 10}
    assert OwnSink.infos[0].config["algo"] == "bc"

    (run_dir / "mlflow.json").write_text('{"id": "0123456789", "sent": {}}')
    with pytest.raises(RLTrainingError, match=r"^loggers: 'mlflow' cannot be opened: .*rl-tra"):
        BC.resume(run_dir, progress=False, total_updates=40)


KILLED = """
import os, signal, sys
from rl_training import BC
from rl_training.experiment.config import load_config
from rl_training.experiment.sinks.mlflow import MlflowSink

write = MlflowSink.write

def killed(self, event):
    if event.tick >= 15:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, event)

MlflowSink.write = killed
BC(load_config(sys.argv[1])).learn(progress=False)
"""


def test_points_that_a_kill_has_lost_are_sent_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B keeps offline points in memory for a while, and MLflow lacks the one of the kill."""
    for package in ("wandb", "mlflow"):
        pytest.importorskip(package)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = f"file://{tmp_path}/mlflow"
    loggers = [
        {"kind": "wandb", "options": {"mode": "offline"}},
        {"kind": "mlflow", "options": {"tracking_uri": store}},
    ]
    config = agent(tmp_path, loggers=loggers, total_updates=30).config
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    # a process of its own also for W&B, which other processes would find by a variable
    env = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    words = [sys.executable, "-c", KILLED, str(tmp_path / "config.yaml")]
    child = subprocess.run(words, env=env)
    assert child.returncode == -signal.SIGKILL
    (run_dir,) = (tmp_path / "runs").iterdir()
    BC.resume(run_dir, progress=False)
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    train = [(event["tick"], event[METRIC]) for event in events if event["event"] == "train"]
    assert [tick for tick, _ in train] == [5, 10, 15, 20, 25, 30]
    assert wandb_points(run_dir) == train

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    (run,) = client.search_runs([client.get_experiment_by_name("rl-training").experiment_id])
    points = client.get_metric_history(run.info.run_id, METRIC)
    assert [(point.step, point.value) for point in points] == train
    scored = client.get_metric_history(run.info.run_id, "eval/return_mean")
    assert [point.step for point in scored] == [10, 20, 30]


def test_event_files_sort_in_the_order_in_which_they_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard reads files by name, and the counter in a name sorts 10 before 9."""
    from tensorboard.summary.writer import event_file_writer

    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
    made: list[str] = []
    for resumed_at in (None, 5):
        sink = TensorBoardSink(TensorBoardSink.Options())
        sink.open(RunInfo(tmp_path, "run", None, {}, resumed_at=resumed_at))
        sink.close("finished")
        made += {file.name for file in (tmp_path / "tensorboard").iterdir()} - set(made)
    assert len(made) == 2
    assert made == sorted(made)


def test_loggers_that_cannot_work_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[tuple[Any, str]] = [
        (
            ["wandbb"],
            r"^loggers\.0: unknown logger 'wandbb' \(did you mean 'wandb'\?\); kno",
        ),
        (["csv", "csv"], r"^loggers: each may occur once, got csv, csv"),
        ("csv", r"^loggers: "),
        ([{"kind": "wandb", "options": {"projet": "x"}}], r"^loggers\.wandb\.projet: unknown key"),
        ([{"kind": "csv", "options": {"a": 1}}], r"^loggers\.csv\.a: unknown key"),
        (["no_such_package.x:Sink"], r"^loggers: 'no_such_package\.x:Sink' cannot be imported "),
        ([f"{__name__}:Missing"], r"^loggers: '.*:Missing' cannot be imported "),
        (
            [f"{__name__}:NoSink"],
            r"^loggers: '.*:NoSink' is not a logger, .* lacks .* write",
        ),
        (
            [{"kind": f"{__name__}:OwnSink", "options": {"speed": 1}}],
            r"^loggers: '.*:OwnSink' does not take the given options \(.*'speed'",
        ),
    ]
    if importlib.util.find_spec("mlflow"):
        server = {"kind": "mlflow", "options": {"tracking_uri": "ftpx://nowhere"}}
        wrong.append(([server], r"^loggers: the tracking server of 'mlflow' cannot be used "))
    for loggers, sentence in wrong:
        with pytest.raises(ConfigError, match=sentence) as refused:
            agent(tmp_path, loggers=loggers).learn(5, progress=False)
        assert "\n" not in str(refused.value)
    for package in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtraError, match=rf"'{package}' needs the package .*pip insta"):
            agent(tmp_path, loggers=[package]).learn(5, progress=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    for options in ({"tensorboard": True}, {"loggers": ["tensorboard"]}):
        with pytest.raises(RLTrainingError, match=r"^tensorboard: the package .*tensorboard=false"):
            agent(tmp_path, **options).learn(5, progress=False)
    assert not (tmp_path / "runs").exists()


def test_a_logger_named_only_by_a_run_folder_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_logger_of_a_stranger.py").write_text(
        f"from {__name__} import OwnSink as Sink\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    learner = agent(tmp_path, loggers=["own_logger_of_a_stranger:Sink"])
    learner.learn(5, progress=False)
    assert learner.run_dir is not None
    del sys.modules["own_logger_of_a_stranger"]
    with pytest.raises(ConfigError, match=r"loggers.* names the module 'own_logger_of_a_stranger'"):
        BC.resume(learner.run_dir, progress=False, total_updates=10)
    assert "own_logger_of_a_stranger" not in sys.modules
    BC.resume(learner.run_dir, progress=False, total_updates=10, trust=True)
    BC.resume(learner.run_dir, progress=False, total_updates=15, loggers=[], trust=True)


def test_a_logger_that_fails_leaves_the_run_alone(tmp_path: Path) -> None:
    said: list[str] = []
    OwnSink.kept.clear()
    sink = {"kind": f"{__name__}:OwnSink", "options": {"fails_at": 2}}
    config = TrainConfig(
        algo="bc",
        env_id="Pendulum-v1",
        dataset={"kind": "random"},
        total_updates=5,
        tensorboard=False,
        loggers=[sink, "csv"],
    )
    log = MetricsLog(tmp_path, config, None, said.append)
    for tick in (1, 2, 3):
        log.write("train", tick, {"x": 0.5})
    log.close("finished")
    assert said == [
        f"warning: the logger '{__name__}:OwnSink' failed (no connection), so the run goes on "
        "without it"
    ]
    assert OwnSink.kept == [("train", 1)]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 4


def test_several_seeds_have_a_curve_each_and_one_of_their_means(tmp_path: Path) -> None:
    OwnSink.infos.clear()
    own = f"{__name__}:OwnSink"
    source = agent(tmp_path, loggers=["csv", own], total_updates=10).config
    run_dir = learn_seeds(source, [2, 5], progress=False).run_dir
    for folder in (run_dir, run_dir / "seed-2", run_dir / "seed-5"):
        with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert "10" in [row["tick"] for row in rows if row["eval/return_mean"]]
    assert {(info.name, info.group) for info in OwnSink.infos} == {
        (run_dir.name, None),
        (f"{run_dir.name}/seed-2", run_dir.name),
        (f"{run_dir.name}/seed-5", run_dir.name),
    }


def test_callbacks_get_the_start_and_every_metric_that_is_logged(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Watch(Callback):
        def on_start(self, event: Any) -> None:
            seen.append(event)

        def on_log(self, event: LogEvent) -> None:
            assert event.agent.predict([0.0, 0.0, 0.0])[0].shape == (1,)
            seen.append(event)
            if event.tick >= 10:
                event.request_stop("enough")

    learner = agent(tmp_path, final_eval=False)
    result = learner.learn(30, callbacks=Watch(), progress=False)
    assert result.stop_reason == "enough"
    start, *logged = seen
    assert (start.tick, start.total, start.run_dir) == (0, 30, result.run_dir)
    assert start.agent is learner
    assert start.config == learner.config
    assert [(event.kind, event.tick) for event in logged] == [
        ("train", 5),
        ("train", 10),
        ("eval", 10),
    ]
    lines = (result.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    for event, line in zip(logged, map(json.loads, lines), strict=True):
        numbers = {k: v for k, v in line.items() if type(v) in (int, float) and k != "tick"}
        assert event.metrics == numbers
        assert event.run_dir == result.run_dir
        assert event.config == learner.config
    assert logged[0].metrics["time/updates_per_second"] > 0.0
    seen.clear()
    learner.learn(40, callbacks=Watch(), progress=False)
    assert seen[0].tick == 10
