"""The batch of an imitating algorithm."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rl_training.replay.batch import Batch
from rl_training.replay.rollout import RolloutBatch


class Pairs(NamedTuple):
    """Observations as the environment gives them, and inner actions."""

    obs: Tensor  # (B, O)
    action: Tensor  # (B, A) or (B,) int64

    def cut(self, pieces: int) -> list[Pairs]:
        """The pairs in so many equal pieces."""
        parts = zip(self.obs.chunk(pieces), self.action.chunk(pieces), strict=True)
        return [Pairs(obs, action) for obs, action in parts]


class ImitationBatch(NamedTuple):
    """What one update learns from: pairs for the discriminator, experience for the generator,
    or both."""

    expert: Pairs | None = None
    policy: Pairs | None = None
    experience: Batch | RolloutBatch | None = None
