"""The metrics of one run: they are written to its folder and given to its callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.envs.global_random import untouched_randomness
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.sinks import MetricsLog
from rl_training.runtime.callbacks import Callback, LogEvent
from rl_training.runtime.loops import Loop


class RunLog:
    """Writes rows of metrics and notifies callbacks; neither changes the run's random numbers."""

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm,
        loop: Loop,
        run_dir: Path,
        callbacks: Sequence[Callback],
        agent: Any,
        request_stop: Callable[[str], None],
    ) -> None:
        self._config, self._algorithm, self._loop = config, algorithm, loop
        self._run_dir, self._callbacks, self._agent = run_dir, callbacks, agent
        self._request_stop = request_stop

    def open(self, resumed_at: int | None, say: Callable[[str], None]) -> None:
        """Start, or continue the rows of a run that was resumed at a tick."""
        self._mark = (time.monotonic(), self._loop.progress.to_dict())
        with untouched_randomness():
            self.metrics = MetricsLog(self._run_dir, self._config, resumed_at, say)

    def close(self, status: str) -> None:
        self.metrics.close(status)

    def notify(self, call: Callable[[Callback], None]) -> None:
        with untouched_randomness():
            for callback in self._callbacks:
                call(callback)

    def write(self, kind: str, values: dict[str, Any]) -> None:
        """Write one row at the present tick, and give its numbers to the callbacks."""
        with untouched_randomness():
            logged = self.metrics.write(kind, self._loop.tick, values)
        event = LogEvent(
            kind,
            logged.tick,
            logged.numbers,
            self._run_dir,
            self._config,
            self._agent,
            self._request_stop,
        )
        self.notify(lambda callback: callback.on_log(event))

    def write_training(self, numbers: dict[str, float], elapsed: float) -> None:
        """Write the metrics of updates with counters, learning rates and speeds."""
        values: dict[str, Any] = {f"train/{key}": value for key, value in numbers.items()}
        values |= self._loop.report()
        for name, optimizer in self._algorithm.optimizers.items():
            values[f"lr/{name}"] = float(optimizer.lr)
        values["time/elapsed_seconds"] = elapsed
        self.write("train", {**self._loop.progress.to_dict(), **values, **self._rates()})

    def _rates(self) -> dict[str, float]:
        """Environment steps and updates per second since the last call."""
        (before, then), now = self._mark, (time.monotonic(), self._loop.progress.to_dict())
        self._mark = now
        return {
            f"time/{key}_per_second": (now[1][key] - then[key]) / max(now[0] - before, 1e-9)
            for key in ("env_steps", "updates")
            if now[1][key] > then[key]
        }
