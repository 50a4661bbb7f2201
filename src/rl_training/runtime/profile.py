"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch


class Part(NamedTuple):
    """A method whose time is counted under a name."""

    owner: Any
    method: str
    name: str


class Profile:
    """Seconds and calls by part, each without the parts that run inside it.

    Methods are wrapped on their objects, so that a run without a profile pays nothing. On
    CUDA every part waits for the device, which makes the run slower than without.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._device = device
        self._inside: list[float] = []  # per open part: seconds of the parts within
        self._began = self._now()

    def watch(self, parts: Sequence[Part]) -> None:
        for part in parts:
            setattr(part.owner, part.method, self._timed(part))

    def _timed(self, part: Part) -> Callable[..., Any]:
        method, name = getattr(part.owner, part.method), part.name
        self.seconds.setdefault(name, 0.0)
        self.calls.setdefault(name, 0)

        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            began = self._now()
            try:
                return method(*args, **kwargs)
            finally:
                taken = self._now() - began
                self.seconds[name] += taken - self._inside.pop()
                self.calls[name] += 1
                if self._inside:
                    self._inside[-1] += taken

        return timed

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    @property
    def total(self) -> float:
        """Seconds since the profile began."""
        return self._now() - self._began

    def lines(self, done: float) -> list[str]:
        """A table of the parts, and the time to finish after the share `done` of the budget."""
        total = self.total
        rows = sorted(self.seconds.items(), key=lambda item: -item[1])
        rows.append(("everything else", total - sum(self.seconds.values())))
        text = ["where the time goes:"]
        for name, seconds in rows:
            calls = self.calls.get(name)
            per_call = f"{1e6 * seconds / calls:,.0f} µs × {calls:,}" if calls else ""
            text.append(f"  {name:16} {seconds:9.1f} s {seconds / total:6.1%}  {per_call}".rstrip())
        if 0.0 < done < 1.0:
            text.append(f"  at this rate the run takes {total * (1.0 - done) / done:,.0f} s more")
        return text

    def to_dict(self) -> dict[str, float]:
        """Seconds by part, for a file."""
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}
