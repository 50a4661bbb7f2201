"""The protocol of loggers, and the events that they receive."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.files import replace_text


class Video(NamedTuple):
    """A short video, for loggers that support videos."""

    frames: NDArray[np.uint8]  # (T, height, width, 3)
    seconds_per_frame: float = 0.2

    def as_gif(self) -> bytes:
        from PIL import Image  # a dependency of TensorBoard

        images = [Image.fromarray(frame) for frame in self.frames]
        buffer = io.BytesIO()
        images[0].save(
            buffer,
            "GIF",
            save_all=True,
            append_images=images[1:],
            duration=round(1000 * self.seconds_per_frame),
            loop=0,
        )
        return buffer.getvalue()


@dataclass(frozen=True)
class RunInfo:
    """The run whose metrics a sink receives."""

    run_dir: Path
    name: str
    """Name of the run folder; for one of several seeds, followed by its own folder."""
    group: str | None
    """Name of the run folder that holds several seeds; None for a run of one."""
    config: Mapping[str, Any]
    """The resolved config, as plain values."""
    resumed_at: int | None = None
    """None for a new run. A resumed run repeats everything after this tick: drop it."""
    written: Mapping[str, int] = field(default_factory=dict)
    """The newest tick per kind of event that was written before the resume: a sink that cannot
    drop points skips events up to it."""


@dataclass(frozen=True)
class MetricsEvent:
    """The metrics logged at one tick."""

    kind: str
    """"train" or "eval"."""
    tick: int
    """Updates (offline) or environment steps (online) so far."""
    values: Mapping[str, Any]
    """Numbers, booleans, texts and lists; arrays are histograms, `Video`s are videos."""

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The scalar values."""
        return {
            key: float(value)
            for key, value in self.values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The values that JSON can hold."""
        return {
            key: value
            for key, value in self.values.items()
            if not isinstance(value, (np.ndarray, Video))
        }


class SinkFailure(Exception):  # noqa: N818  (the run goes on)
    """A sink failed: it is dropped for the rest of the run, with a warning."""


class MetricsSink(Protocol):
    """An output of metrics. Made before the run folder, so refuse bad options in `__init__`."""

    def open(self, run: RunInfo) -> None:
        """Start, or continue after a resume."""

    def write(self, event: MetricsEvent) -> None:
        """Write an event; ticks never decrease between two calls of `open`."""

    def close(self, status: str) -> None:
        """Close the sink; `status` is "finished", "interrupted" or "failed"."""


class RemoteRun:
    """The id of a run in a service that cannot drop points, and what the service has received.

    Kept as a small file in the run folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id: str | None = None
        self.session = ""
        """Name of the newest session, if the service names sessions."""
        self.was_killed = False
        """Whether the session before this one was never closed: its last points may be lost."""
        self._sent: dict[str, int] = {}

    def resume(self, written: Mapping[str, int]) -> None:
        """Read the file of an earlier session, which has sent the events in `written` unless it
        was killed."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            self.id, sent = str(stored["id"]), dict(stored["sent"])
        except (OSError, ValueError, KeyError, TypeError):
            return  # the logger is new to the run
        self.was_killed = stored.get("open") is True
        self.session = str(stored.get("session", ""))
        self._sent = {kind: int(tick) for kind, tick in sent.items()}
        if not self.was_killed:
            self.received(written)

    def received(self, ticks: Mapping[str, int]) -> None:
        """The service has the events of these kinds up to these ticks."""
        for kind, tick in ticks.items():
            self._sent[kind] = max(tick, self._sent.get(kind, -1))

    def keep(self, id: str, session: str = "") -> None:
        """Store the id, for a later session."""
        self.id, self.session = id, session
        self._store(is_open=True)

    def closed(self) -> None:
        """All events of this session have been sent."""
        self._store(is_open=False)

    def _store(self, is_open: bool) -> None:
        values = {"id": self.id, "sent": self._sent, "open": is_open, "session": self.session}
        replace_text(self.path, json.dumps(values) + "\n")

    def is_new(self, event: MetricsEvent) -> bool:
        """Whether no earlier session has sent this event."""
        return event.tick > self._sent.get(event.kind, -1)
