"""Events for TensorBoard, in the folder `tensorboard` of the run."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.experiment.config import Section
from rl_training.experiment.errors import RLTrainingError
from rl_training.experiment.sinks.base import MetricsEvent, RunInfo, Video


class TensorBoardOptions(Section):
    """The TensorBoard logger has no options."""


class TensorBoardSink:
    """Writes curves, histograms and videos."""

    Options = TensorBoardOptions

    def __init__(self, options: TensorBoardOptions) -> None:
        try:
            self._package: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise RLTrainingError(
                "tensorboard: the package 'tensorboard' is not installed or cannot be imported; "
                "run: pip install tensorboard, or set tensorboard=false"
            ) from None

    def open(self, run: RunInfo) -> None:
        folder = run.run_dir / "tensorboard"
        purge = None if run.resumed_at is None else run.resumed_at + 1
        if purge is not None:
            _wait_for_a_later_name(folder)
        self._writer: Any = self._package.SummaryWriter(str(folder), purge_step=purge)

    def write(self, event: MetricsEvent) -> None:
        for key, value in event.values.items():
            if key in event.numbers:
                self._writer.add_scalar(key, value, event.tick)
            elif isinstance(value, np.ndarray):
                self._writer.add_histogram(key, value, event.tick)
            elif isinstance(value, Video):
                self._add_video(key, value, event.tick)

    def _add_video(self, key: str, video: Video, tick: int) -> None:
        """Write an animated GIF, because the writer's own videos need another package."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        height, width = video.frames.shape[1:3]
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=video.as_gif()
        )
        summary = Summary(value=[Summary.Value(tag=key, image=image)])
        self._writer.file_writer.add_summary(summary, tick)

    def close(self, status: str) -> None:
        self._writer.close()


def _wait_for_a_later_name(folder: Path) -> None:
    """Wait, at most a second, until a new event file sorts after those in `folder`.

    TensorBoard reads the files in the order of their names and drops what comes after the step at
    which a later file resumed. A name begins with the second at which the file was made; what
    follows (host, process, a counter) has no order in time.
    """
    this_second = int(time.time())
    if any(folder.glob(f"events.out.tfevents.{this_second:010d}.*")):
        time.sleep(max(0.0, this_second + 1 - time.time()))
