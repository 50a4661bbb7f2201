"""Outputs of metrics: metrics.jsonl always, and the loggers that the config names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_training.experiment.config import LoggerConfig, TrainConfig
from rl_training.experiment.errors import ConfigError, RLTrainingError, describe_exception
from rl_training.experiment.sinks.base import (
    MetricsEvent,
    MetricsSink,
    RemoteRun,
    RunInfo,
    SinkFailure,
    Video,
)
from rl_training.experiment.sinks.jsonl import JsonlSink, newest_ticks
from rl_training.experiment.tracking import METRICS_FILE, resume_command

__all__ = [
    "MetricsEvent",
    "MetricsLog",
    "MetricsSink",
    "RemoteRun",
    "RunInfo",
    "SinkFailure",
    "Video",
    "make_sinks",
]

BUILT_IN = {
    "tensorboard": "rl_training.experiment.sinks.tensorboard:TensorBoardSink",
    "csv": "rl_training.experiment.sinks.csv:CsvSink",
    "wandb": "rl_training.experiment.sinks.wandb:WandbSink",
    "mlflow": "rl_training.experiment.sinks.mlflow:MlflowSink",
}


def make_sinks(config: TrainConfig) -> list[tuple[str, MetricsSink]]:
    """Make the loggers of a run by name, not yet open; raises an error if one cannot work.

    Called before the run folder is made.
    """
    wanted = list(config.loggers)
    if config.tensorboard and all(logger.kind != "tensorboard" for logger in wanted):
        wanted.insert(0, LoggerConfig(kind="tensorboard"))
    return [(logger.kind, _make_sink(logger)) for logger in wanted]


def _make_sink(logger: LoggerConfig) -> MetricsSink:
    own = logger.kind not in BUILT_IN
    module, _, name = (logger.kind if own else BUILT_IN[logger.kind]).partition(":")
    try:
        kind: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"loggers: '{logger.kind}' cannot be imported ({describe_exception(error)}); "
            "give a class as package.module:Class whose module Python can import"
        ) from None
    if not own:
        options = kind.Options.parse(logger.options, prefix=f"loggers.{logger.kind}.")
        sink: MetricsSink = kind(options)
        return sink
    try:
        inspect.signature(kind).bind(**logger.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"loggers: '{logger.kind}' does not take the given options "
            f"({describe_exception(error)}); correct the options of this logger"
        ) from None
    sink = kind(**logger.options)
    missing = [n for n in ("open", "write", "close") if not callable(getattr(sink, n, None))]
    if missing:
        raise ConfigError(
            f"loggers: '{logger.kind}' is not a logger, because it lacks the method {missing[0]}; "
            "write a class with the methods of rl_training.MetricsSink"
        )
    return sink


class MetricsLog:
    """Writes every event to metrics.jsonl and to all loggers of the run.

    A logger that fails with a `SinkFailure` is dropped with a warning: a service that cannot be
    reached must not end a run. Other exceptions of a user's own logger end it.
    """

    def __init__(
        self,
        run_dir: Path,
        config: TrainConfig,
        resumed_at: int | None = None,
        warn: Callable[[str], None] = print,
    ) -> None:
        self._warn, self._open = warn, list[tuple[str, MetricsSink]]()
        is_part = run_dir.name.startswith("seed-")  # of a run of several seeds
        path = run_dir / METRICS_FILE
        written = {} if resumed_at is None else newest_ticks(path)
        self._kept = {} if resumed_at is None else newest_ticks(path, resumed_at)
        run = RunInfo(
            run_dir=run_dir,
            name=f"{run_dir.parent.name}/{run_dir.name}" if is_part else run_dir.name,
            group=run_dir.parent.name if is_part else None,
            config=config.to_dict(),
            resumed_at=resumed_at,
            written=written,
        )
        self._open_all([("jsonl", JsonlSink()), *make_sinks(config)], run)

    def _open_all(self, sinks: Sequence[tuple[str, MetricsSink]], run: RunInfo) -> None:
        try:
            for name, sink in sinks:
                sink.open(run)
                self._open.append((name, sink))
        except BaseException as error:
            self.close("failed")
            if isinstance(error, SinkFailure):
                raise RLTrainingError(
                    f"loggers: '{name}' cannot be opened: {error}; correct its options, then go "
                    f"on with: {resume_command(run.run_dir)}"
                ) from None
            raise

    def write(self, kind: str, tick: int, values: dict[str, Any]) -> MetricsEvent:
        event = MetricsEvent(kind, tick, values)
        if tick <= self._kept.get(kind, -1):
            # an evaluation that the checkpoint has as due, made before a kill and now again
            return event
        for name, sink in list(self._open):
            try:
                sink.write(event)
            except SinkFailure as failure:
                self._open.remove((name, sink))
                self._warn(
                    f"warning: the logger '{name}' failed ({failure}), so the run goes on "
                    "without it"
                )
                with suppress(SinkFailure):
                    sink.close("failed")
        return event

    def close(self, status: str) -> None:
        while self._open:
            name, sink = self._open.pop()
            try:
                sink.close(status)
            except SinkFailure as failure:
                self._warn(f"warning: the logger '{name}' could not be closed ({failure})")
