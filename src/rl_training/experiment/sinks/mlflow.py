"""Runs in an MLflow tracking server, database or file store."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rl_training.experiment.config import Section
from rl_training.experiment.errors import ConfigError, MissingExtraError, describe_exception
from rl_training.experiment.sinks.base import MetricsEvent, RemoteRun, RunInfo, SinkFailure
from rl_training.experiment.sinks.jsonl import kept_events

ID_FILE = "mlflow.json"
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
MOST_PARAMS, LONGEST_PARAM = 100, 500
"""Limits of all MLflow versions: metrics per call and characters per parameter."""


class MlflowOptions(Section):
    """Options of the MLflow logger."""

    tracking_uri: str | None = None
    """Server, database or folder; by default MLFLOW_TRACKING_URI or MLflow's own default."""
    experiment: str = "rl-training"
    """Experiment of the run; created if it does not exist."""
    name: str | None = None
    """Name of the run; the name of the run folder by default."""


class MlflowSink:
    """One MLflow run per run folder: the config as parameters, metrics with the tick as step.

    MLflow cannot drop points. After a resume from an earlier checkpoint, points that were sent
    are not sent again. A point that was lost because the process was killed is sent from
    metrics.jsonl.
    """

    Options = MlflowOptions

    def __init__(self, options: MlflowOptions) -> None:
        try:
            self._mlflow: Any = importlib.import_module("mlflow")
        except ImportError:
            raise MissingExtraError("mlflow", "mlflow", "loggers: 'mlflow'") from None
        self._options = options
        self._errors = (self._mlflow.exceptions.MlflowException, OSError, ImportError)
        try:
            self._client: Any = self._mlflow.MlflowClient(tracking_uri=options.tracking_uri)
            self._client.get_experiment_by_name(options.experiment)
        except self._errors as error:
            raise ConfigError(
                f"loggers: the tracking server of 'mlflow' cannot be used "
                f"({describe_exception(error)}); correct its option tracking_uri or the "
                "variable MLFLOW_TRACKING_URI"
            ) from None

    def open(self, run: RunInfo) -> None:
        self._remote = RemoteRun(run.run_dir / ID_FILE)
        if run.resumed_at is not None:
            self._remote.resume(run.written)
        with self._failures():
            if self._remote.id is None:
                self._remote.keep(self._new_run(run))
            else:
                self._client.update_run(self._remote.id, status="RUNNING")
                killed = self._remote.was_killed
                if killed:
                    self._remote.received(self._newest_stored(self._remote.id, run))
                self._remote.keep(self._remote.id)
                for event in kept_events(run) if killed else ():
                    self.write(event)

    def _newest_stored(self, identity: str, run: RunInfo) -> dict[str, int]:
        """The newest tick per kind of event that MLflow has; where no event of a kind is kept, by
        which it could be asked for, the newest that was written."""
        keys = {event.kind: set(event.numbers) for event in kept_events(run)}
        found = dict(run.written)
        for kind, own in keys.items():
            others = [names for other, names in keys.items() if other != kind]
            for key in sorted(own.difference(*others))[:1]:
                points = self._client.get_metric_history(identity, key)
                found[kind] = max((point.step for point in points), default=-1)
        return found

    def _new_run(self, run: RunInfo) -> str:
        client, name = self._client, self._options.experiment
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        tags = {} if run.group is None else {"rl_training.group": run.group}
        made = client.create_run(experiment, tags=tags, run_name=self._options.name or run.name)
        identity = str(made.info.run_id)
        param = self._mlflow.entities.Param
        params = [param(key, str(value)[:LONGEST_PARAM]) for key, value in _flat(run.config)]
        for first in range(0, len(params), MOST_PARAMS):
            client.log_batch(identity, params=params[first : first + MOST_PARAMS])
        return identity

    def write(self, event: MetricsEvent) -> None:
        if not self._remote.is_new(event):
            return
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        numbers = [metric(key, x, now, event.tick) for key, x in event.numbers.items()]
        with self._failures():
            self._client.log_batch(self._remote.id, metrics=numbers)

    def close(self, status: str) -> None:
        with self._failures():
            self._client.set_terminated(self._remote.id, STATUS[status])
            self._remote.closed()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise SinkFailure(describe_exception(error)) from error


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten a mapping to dotted keys."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
