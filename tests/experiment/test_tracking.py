"""The record of a run: its folder, its metrics, and what the console says."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.console import ProgressConsole
from rl_training.experiment.errors import ConfigError, RLTrainingError
from rl_training.experiment.sinks import MetricsLog
from rl_training.experiment.tracking import (
    create_run_folder,
    read_run_config,
    write_json,
    write_run_config,
)


def config(output_dir: Path, **changes: Any) -> TrainConfig:
    values = {"dataset": {"kind": "random"}, "total_updates": 1, "output_dir": str(output_dir)}
    return TrainConfig(**{"algo": "bc", "env_id": "ns/My Env-v1", **values, **changes})


def ticks(run: Path) -> list[int]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["tick"] for line in lines]


def test_run_folders_never_collide(tmp_path: Path) -> None:
    folders = [create_run_folder(config(tmp_path / "a" / "b")) for _ in range(5)]
    assert len(set(folders)) == 5
    for folder in folders:
        assert folder.name.startswith("bc-ns_My_Env_v1-s0-"), "no slash, no blank"
        assert not list(folder.iterdir())


def test_run_folders_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "x", Path("/proc/none"), Path("a\0b")):
        with pytest.raises(ConfigError, match=r"^output_dir: cannot make a run folder"):
            create_run_folder(config(folder))
    assert (tmp_path / "file").is_file()


def test_the_config_of_a_run_comes_back(tmp_path: Path) -> None:
    written = config(tmp_path, seed=4)
    write_run_config(tmp_path, written)
    assert TrainConfig(**read_run_config(tmp_path)) == written
    with pytest.raises(ConfigError, match="not a run folder"):
        read_run_config(tmp_path / "other")


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow: every write fails, as on a full disk (Python ignores the signal)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_the_old_files(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", {"a": 1})
    write_run_config(tmp_path, config(tmp_path))
    before = (tmp_path / "config.yaml").read_bytes()
    log = MetricsLog(tmp_path, config(tmp_path, tensorboard=False))
    log.write("train", 1, {})
    with full_disk():
        with pytest.raises(RLTrainingError, match=r"result\.json' cannot be written: .*resume"):
            write_json(tmp_path / "result.json", {"a": 2})
        with pytest.raises(RLTrainingError, match=r"metrics\.jsonl' cannot be written"):
            log.write("train", 2, {})
        with pytest.raises(OSError, match="too large"):
            write_run_config(tmp_path, config(tmp_path, seed=9))
        log.close("finished")
    assert ticks(tmp_path) == [1]
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8")) == {"a": 1}
    assert (tmp_path / "config.yaml").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_metrics_after_the_resumed_tick_are_dropped(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, config(tmp_path, tensorboard=False))
    for tick in (5, 10, 10, 15, 20):
        log.write("train", tick, {"x": tick / 2})
    log.close("finished")
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'3\n"text"\n{"no": "tick"}\n{"tick": null}\n\xff\xfe\n{"event": "tra')
    log = MetricsLog(tmp_path, config(tmp_path, tensorboard=False), 10)
    assert ticks(tmp_path) == [5, 10, 10]
    log.write("train", 10, {})  # made up for, because the checkpoint has it as due
    log.write("train", 11, {})
    log.close("finished")
    assert ticks(tmp_path) == [5, 10, 10, 11]
    MetricsLog(tmp_path, config(tmp_path, tensorboard=False), -1).close("finished")
    assert ticks(tmp_path) == []


def test_a_new_log_needs_no_file_and_an_old_one_is_continued(tmp_path: Path) -> None:
    for tick in (1, 2):
        log = MetricsLog(tmp_path, config(tmp_path, tensorboard=False), None if tick == 1 else 1)
        log.write("train", tick, {"y": [1.0]})
        log.close("finished")
    assert ticks(tmp_path) == [1, 2]


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    log = MetricsLog(tmp_path, config(tmp_path))
    log.write("train", 1, {"loss": 0.5, "list": [1.0], "flag": True, "text": "x"})
    log.close("finished")
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert events.Scalars("loss")[0].value == 0.5


@pytest.mark.usefixtures("every_line")
def test_the_console_says_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = ProgressConsole()
    console.start("BC", 100, 10, "updates")
    console.advance(60, "return -3.0, length 20")
    console.evaluated(60, -1.0, "return -1.0", best=True)
    console.say("run folder: a[/b]:smile:")
    console.advance(100)
    console.stop()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "60/100 updates" in captured.err
    assert "updates 60: return -1.0 (best so far)" in captured.err
    assert "a[/b]:smile:" in captured.err
    assert "s left, return -3.0, length 20\n" in captured.err
    assert "evaluation -1.0" in captured.err.splitlines()[-1]
