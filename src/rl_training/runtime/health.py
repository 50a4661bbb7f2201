"""Detects agents that no longer learn: losses or weights that are NaN, too few useful rows."""

from __future__ import annotations

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import collapsed_weights
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.errors import TrainingDivergedError
from rl_training.runtime.loops import Loop


class Health:
    """Watches one agent."""

    def __init__(self, algorithm: Algorithm, loop: Loop, store: CheckpointStore) -> None:
        self.algorithm, self.loop, self.store = algorithm, loop, store
        self._warned_of_collapse = False

    def check_losses(self) -> None:
        """Raise an error if a loss became NaN or infinite."""
        bad = self.algorithm.first_nonfinite()
        if bad:
            name, update = bad
            raise TrainingDivergedError(
                f"the {name} became NaN or infinite at update {update}; "
                f"{self._last_good()}, lower the learning rate, set algo_kwargs.grad_clip, "
                "or scale the rewards"
            )

    def check_weights(self) -> None:
        """Raise an error if a weight became NaN or infinite."""
        weight = self.algorithm.nonfinite_weight()
        if weight:
            raise TrainingDivergedError(
                f"the weight '{weight}' became NaN or infinite by update "
                f"{self.loop.progress.updates}; {self._last_good()}, lower the learning rate or "
                "set algo_kwargs.grad_clip"
            )

    def _last_good(self) -> str:
        latest = self.store.latest()
        return f"the last good checkpoint is '{latest.path}'" if latest else "none was saved yet"

    def collapse(self, metrics: dict[str, float]) -> str | None:
        """A warning where the policy learns from few rows, once in a run."""
        found = None if self._warned_of_collapse else collapsed_weights(metrics)
        if not found:
            return None
        self._warned_of_collapse = True
        return (
            f"warning: at {self.loop.tick:,} {self.loop.unit} {found}, so the policy learns from "
            f"few rows; {self.algorithm.softer_weights}"
        )
