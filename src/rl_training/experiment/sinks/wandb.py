"""Runs in Weights & Biases, online or offline."""

from __future__ import annotations

import importlib
import io
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rl_training.experiment.config import Section
from rl_training.experiment.errors import MissingExtraError
from rl_training.experiment.sinks.base import (
    MetricsEvent,
    RemoteRun,
    RunInfo,
    SinkFailure,
    Video,
)
from rl_training.experiment.sinks.jsonl import kept_events

ID_FILE = "wandb.json"


class WandbOptions(Section):
    """Options of the W&B logger; W&B's own settings are the defaults."""

    project: str = "rl-training"
    """Project of the run."""
    entity: str | None = None
    """User or team that owns the project."""
    mode: Literal["online", "offline"] | None = None
    """Send immediately, or keep in the run folder until `wandb sync`."""
    name: str | None = None
    """Name of the run; the name of the run folder by default."""
    tags: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Tags of the run."""


class WandbSink:
    """One W&B run per run folder, with the tick as its step.

    W&B cannot drop points. After a resume from an earlier checkpoint, points that were sent are
    not sent again. Points that were lost because the process was killed are sent from
    metrics.jsonl.
    """

    Options = WandbOptions

    def __init__(self, options: WandbOptions) -> None:
        try:
            self._wandb: Any = importlib.import_module("wandb")
        except ImportError:
            raise MissingExtraError("wandb", "wandb", "loggers: 'wandb'") from None
        self._options = options

    def open(self, run: RunInfo) -> None:
        wandb, options = self._wandb, self._options
        self._remote = RemoteRun(run.run_dir / ID_FILE)
        if run.resumed_at is not None:
            self._remote.resume(run.written)
        killed = self._remote.was_killed
        was_offline = killed and _set_aside(run.run_dir / "wandb", self._remote.session)
        try:
            self._run: Any = wandb.init(
                project=options.project,
                entity=options.entity,
                mode=options.mode,
                name=options.name or run.name,
                group=run.group,
                tags=list(options.tags),
                config=dict(run.config),
                allow_val_change=True,
                dir=str(run.run_dir),
                id=self._remote.id,
                resume="allow" if self._remote.id else None,
                reinit="create_new",  # each of several seeds has its own run
                settings=wandb.Settings(console="off"),
            )
        except (wandb.Error, OSError) as error:
            raise SinkFailure(str(error)) from error
        if killed and not was_offline:  # the server knows how far it came
            self._remote.received(dict.fromkeys(run.written, int(self._run.step) - 1))
        self._remote.keep(str(self._run.id), Path(self._run.dir).parent.name)
        for event in kept_events(run) if killed else ():
            self.write(event)

    def write(self, event: MetricsEvent) -> None:
        if not self._remote.is_new(event):
            return
        values: dict[str, Any] = dict(event.numbers)
        for key, value in event.values.items():
            if isinstance(value, np.ndarray):
                values[key] = self._wandb.Histogram(value)
            elif isinstance(value, Video):
                values[key] = self._wandb.Video(io.BytesIO(value.as_gif()), format="gif")
        try:
            self._run.log(values, step=event.tick)
        except (self._wandb.Error, OSError) as error:
            raise SinkFailure(str(error)) from error

    def close(self, status: str) -> None:
        self._run.finish(exit_code=int(status == "failed"))
        with suppress(OSError):  # as if killed: a later session looks for what was sent
            self._remote.closed()


def _set_aside(folder: Path, session: str) -> bool:
    """Rename the offline session that was killed, so that `wandb sync` does not upload it.

    Its file lacks what W&B had not written yet, and the next session holds all of its points.
    """
    name = Path(session).name
    if not name.startswith("offline-run-") or not (folder / name).is_dir():
        return False
    (folder / name).rename(folder / f"killed-{name}")
    return True
