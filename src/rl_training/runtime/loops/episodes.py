"""What online loops remember of the episodes they collected."""

from __future__ import annotations

from typing import Any


class EpisodeReturns:
    """Returns of the training episodes that ended since the last report."""

    def __init__(self) -> None:
        self.pending: list[float] = []

    def add(self, value: float) -> None:
        self.pending.append(value)

    def report(self) -> dict[str, float]:
        if not self.pending:
            return {}
        mean, count = sum(self.pending) / len(self.pending), len(self.pending)
        self.pending.clear()
        return {"rollout/return_mean": mean, "rollout/episodes": float(count)}

    def training_state(self) -> dict[str, Any]:
        return {"pending": list(self.pending)}

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.pending = list(state["pending"])
