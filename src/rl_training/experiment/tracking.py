"""The record of a run: its folder, metrics.jsonl, TensorBoard, and what the console shows."""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import platform
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import read_yaml_file
from rl_training.experiment.errors import ConfigError, RLTrainingError
from rl_training.experiment.files import NOT_ALLOWED, append_text, replace_text
from rl_training.experiment.trust import needs_trust

CONFIG_FILE, METRICS_FILE, RESULT_FILE = "config.yaml", "metrics.jsonl", "result.json"
CHECKPOINT_FOLDER, DATASET_FILE = "checkpoints", "dataset.npz"


def create_run_folder(config: TrainConfig) -> Path:
    """A new folder `<algo>-<env>-s<seed>-<time>` under the output folder; of several seeds,
    `<number>seeds` stands in the place of the seed, and without an environment the data in its."""
    env = re.sub(r"[^A-Za-z0-9.]+", "_", config.env_id or _data_name(config))
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    seed = f"s{config.seed}" if config.seeds is None else f"{len(config.seeds)}seeds"
    base = Path(config.output_dir) / f"{config.algo}-{env}-{seed}-{stamp}"
    for attempt in range(1000):
        folder = base if attempt == 0 else base.with_name(f"{base.name}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not base.parent.is_dir():
                break
        except (OSError, ValueError) as error:  # ValueError: a name with a null character
            reason = getattr(error, "strerror", None) or str(error)
            raise _unwritable(config.output_dir, reason) from None
    raise _unwritable(config.output_dir, "a file is in the way")


def _data_name(config: TrainConfig) -> str:
    """What a run without an environment is called after."""
    data = config.dataset
    if data is None or data.mix is not None:
        return "data"
    if data.path is not None and Path(data.path).name != DATASET_FILE:
        return Path(data.path).stem
    return data.name or data.id or "data"


def _unwritable(output_dir: str, reason: str) -> ConfigError:
    return ConfigError(
        f"output_dir: cannot make a run folder under '{output_dir}': {reason}; "
        "choose another folder with --output-dir"
    )


def read_run_config(run_dir: Path) -> dict[str, Any]:
    """The resolved config of a run."""
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(
            f"'{run_dir}' is no run folder: it has no {CONFIG_FILE}; "
            "'rl-training list' shows the runs under ./runs"
        )
    return read_yaml_file(path)


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    installed = {name: _version(name) for name in ("rl-training", "torch", "numpy", "gymnasium")}
    return {"python": platform.python_version(), **installed}


@functools.cache  # every checkpoint asks
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def hardware() -> dict[str, Any]:
    """The machine a result was made on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
    }


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write atomically."""
    with written_or_said(path):
        replace_text(path, json.dumps(values, indent=1) + "\n")


def write_run_config(run_dir: Path, config: TrainConfig) -> None:
    """Write the resolved config atomically: without it a run could not be resumed."""
    replace_text(run_dir / CONFIG_FILE, config.to_yaml())


def resume_command(run_dir: Path) -> str:
    """What to type to go on with a run."""
    try:
        flag = " --trust" if needs_trust(read_run_config(run_dir)) else ""
    except RLTrainingError:
        flag = ""
    return f"rl-training resume {shlex.quote(str(run_dir))}{flag}"


@contextmanager
def written_or_said(path: Path) -> Iterator[None]:
    """Turn a failure to write a file of a run into a sentence about it."""
    try:
        yield
    except OSError as error:
        remedy = "make room"
        if error.errno in NOT_ALLOWED:
            remedy = "make the run folder writable for you"
        elif error.errno == errno.ELOOP:
            remedy = "a link is in its place, remove it"
        raise RLTrainingError(
            f"'{path}' cannot be written: {error.strerror or error}; {remedy}, then go on with: "
            f"{resume_command(path.parent)}"
        ) from None


class Film(NamedTuple):
    """Moving pictures for TensorBoard."""

    frames: NDArray[np.uint8]  # (T, height, width, 3)
    seconds_per_frame: float = 0.2

    def as_gif(self) -> bytes:
        from PIL import Image  # which TensorBoard brings

        pictures = [Image.fromarray(frame) for frame in self.frames]
        buffer = io.BytesIO()
        pictures[0].save(
            buffer,
            "GIF",
            save_all=True,
            append_images=pictures[1:],
            duration=round(1000 * self.seconds_per_frame),
            loop=0,
        )
        return buffer.getvalue()


class MetricsLog:
    """metrics.jsonl, one object per event, and the same numbers for TensorBoard.

    Values that are arrays are samples of a distribution, for TensorBoard alone, as films are.

    After a crash the file may hold events later than the checkpoint from which the run
    goes on; they are dropped on opening, so that curves continue without a fold.
    """

    def __init__(self, run_dir: Path, resume_tick: int | None, tensorboard: bool) -> None:
        self.path = run_dir / METRICS_FILE
        if resume_tick is not None:
            self._drop_after(resume_tick)
        with written_or_said(self.path):
            self._file = append_text(self.path)
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            purge = None if resume_tick is None else resume_tick + 1
            self._writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=purge)

    def _drop_after(self, tick: int) -> None:
        if not self.path.is_file():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                if json.loads(line)["tick"] <= tick:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):
                continue  # a line cut short by a crash
        with written_or_said(self.path):
            replace_text(self.path, "".join(kept))

    def write(self, kind: str, tick: int, values: Mapping[str, Any]) -> None:
        films = {key: value for key, value in values.items() if isinstance(value, Film)}
        samples = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
        numbers = {k: value for k, value in values.items() if k not in samples and k not in films}
        event = {"event": kind, "tick": tick, **numbers}
        with written_or_said(self.path):
            self._file.write(json.dumps(event) + "\n")
            self._file.flush()
        if self._writer is not None:
            for key, value in values.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    self._writer.add_scalar(key, value, tick)
            for key, value in samples.items():
                self._writer.add_histogram(key, value, tick)
            for key, film in films.items():
                self._show(key, film, tick)

    def _show(self, key: str, film: Film, tick: int) -> None:
        """Its images may move: the writer's own way to films needs a further package."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        height, width = film.frames.shape[1:3]
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=film.as_gif()
        )
        summary = Summary(value=[Summary.Value(tag=key, image=image)])
        self._writer.file_writer.add_summary(summary, tick)

    def close(self) -> None:
        with suppress(OSError):  # what could not be flushed was said when it was written
            self._file.close()
        if self._writer is not None:
            self._writer.close()


class Console(Protocol):
    """What the trainer tells a watching person."""

    def start(self, title: str, total: int, done: int, unit: str) -> None: ...
    def advance(self, done: int) -> None: ...
    def busy(self, text: str) -> None: ...
    def evaluated(self, tick: int, score: float, text: str, best: bool) -> None: ...
    def say(self, text: str) -> None: ...
    def stop(self) -> None: ...


class SilentConsole:
    """Says nothing."""

    def start(self, title: str, total: int, done: int, unit: str) -> None: ...
    def advance(self, done: int) -> None: ...
    def busy(self, text: str) -> None: ...
    def evaluated(self, tick: int, score: float, text: str, best: bool) -> None: ...
    def say(self, text: str) -> None: ...
    def stop(self) -> None: ...


class ProgressConsole:
    """A live bar with rate, time left and last score; plain lines where output is no terminal.

    Whatever happens to the output, the run goes on.
    """

    PLAIN_LINE_SECONDS = 10.0

    def __init__(self) -> None:
        from rl_training.experiment.terminal import terminal

        self._rich = terminal("stderr", forgiving=True)
        self._bar: Any = None
        self._score = ""

    def start(self, title: str, total: int, done: int, unit: str) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._total, self._unit = total, unit
        self._began, self._done_at_start = time.monotonic(), done
        self._last_line = self._began
        if not self._rich.is_terminal:
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[score]}"),
            console=self._rich,
        )
        self._task = self._bar.add_task(title, total=total, completed=done, rate="", score="")
        self._bar.start()

    def advance(self, done: int) -> None:
        now = time.monotonic()
        rate = (done - self._done_at_start) / max(now - self._began, 1e-9)
        if self._bar is not None:
            self._bar.update(
                self._task, completed=done, rate=f"{rate:,.0f} {self._unit}/s", score=self._score
            )
        elif now - self._last_line >= self.PLAIN_LINE_SECONDS:
            self._last_line = now
            left = (self._total - done) / max(rate, 1e-9)
            self.say(
                f"{done:,}/{self._total:,} {self._unit}, {rate:,.0f}/s, {left:,.0f} s left"
                + (f", {self._score}" if self._score else "")
            )

    def busy(self, text: str) -> None:
        """What a tick that takes long is doing."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, score=text)
        elif now - self._last_line >= self.PLAIN_LINE_SECONDS:
            self._last_line = now
            self.say(text)

    def evaluated(self, tick: int, score: float, text: str, best: bool) -> None:
        self._score = f"return {score:,.1f}"
        if self._bar is not None:
            self._bar.update(self._task, score=self._score)
        self.say(f"{self._unit} {tick:,}: {text}{' (best so far)' if best else ''}")

    def say(self, text: str) -> None:
        (self._bar.console if self._bar is not None else self._rich).print(text, soft_wrap=True)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
