"""How an evaluation is made."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from rl_training.experiment.errors import ConfigError, did_you_mean

IN_WORDS = {
    "fqe": "fitted Q evaluation",
    "mb": "returns in a learned model",
    "wdr": "weighted doubly robust",
    "wdr_full": "weighted doubly robust, weights not cut",
    "dr": "doubly robust",
    "wis": "weighted importance sampling",
    "pdwis": "weighted importance sampling per decision",
    "is": "importance sampling",
    "pdis": "importance sampling per decision",
    "behaviour": "the policy that made the log",
}
ESTIMATORS = tuple(name for name in IN_WORDS if name != "behaviour")
"""The first of those that were asked for is read first."""
DEFAULT = ("fqe", "wdr", "wis", "pdwis")
RATIOS = frozenset(ESTIMATORS) - {"fqe", "mb"}


@dataclass(frozen=True)
class Options:
    """How an evaluation is made."""

    estimators: tuple[str, ...] = DEFAULT
    gamma: float = 0.99
    horizon: int | None = None
    """Steps that are counted; needed with gamma 1."""
    stochastic: bool = False
    """Drawn actions instead of the likeliest ones."""
    value_range: tuple[float, float] | None = None
    replicates: int = 16
    """Bootstrap replicates of FQE."""
    updates: int = 2_000
    """Updates of the hidden layers of FQE; its last layer is solved."""
    hidden_sizes: tuple[int, ...] = (128, 512)
    critic_lr: float = 1e-3
    tau: float = 0.05
    """How far the target networks of FQE move at each update."""
    resamples: int = 1_000
    """Bootstrap resamples of the other estimators."""
    confidence: float = 0.95
    seed: int = 0
    device: str = "cpu"

    def check(self) -> None:
        """Refuse what makes no sense, in one sentence."""
        if not self.estimators:
            raise ConfigError(f"estimators: give at least one of {', '.join(ESTIMATORS)}")
        for name in self.estimators:
            if name not in ESTIMATORS:
                raise ConfigError(
                    f"estimators: unknown estimator '{name}'{did_you_mean(name, ESTIMATORS)}; "
                    f"known are {', '.join(ESTIMATORS)}"
                )
        for key, kinds, kind in (
            ("gamma", numbers.Real, "a number"),
            ("confidence", numbers.Real, "a number"),
            ("horizon", numbers.Integral, "an integer"),
            ("replicates", numbers.Integral, "an integer"),
            ("updates", numbers.Integral, "an integer"),
            ("resamples", numbers.Integral, "an integer"),
            ("seed", numbers.Integral, "an integer"),
        ):
            given = getattr(self, key)
            if not isinstance(given, kinds) and not (key == "horizon" and given is None):
                raise ConfigError(f"{key}: expected {kind}, got {given!r}")
        self._check_value_range()
        if not 0.0 < self.gamma <= 1.0:
            raise ConfigError(f"gamma: expected a number above 0, at most 1, got {self.gamma:g}")
        if self.gamma == 1.0 and self.horizon is None:
            raise ConfigError(
                "horizon: without a discount (gamma 1) FQE needs the number of steps that are "
                "counted; give horizon, or a gamma below 1"
            )
        if self.horizon is not None and self.horizon < 1:
            raise ConfigError(f"horizon: expected at least 1 step, got {self.horizon}")
        if self.replicates < 2:
            raise ConfigError(f"replicates: expected at least 2, got {self.replicates}")
        for key, least in (("updates", 1), ("resamples", 1), ("seed", 0)):
            if getattr(self, key) < least:
                raise ConfigError(f"{key}: expected at least {least}, got {getattr(self, key)}")
        if not 0.5 <= self.confidence < 1.0:
            raise ConfigError(
                f"confidence: expected a share from 0.5, below 1, got {self.confidence:g}"
            )

    def _check_value_range(self) -> None:
        if self.value_range is None:
            return
        try:
            low, high = map(float, self.value_range)
        except (TypeError, ValueError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            raise ConfigError(
                "value_range: expected two numbers, the smallest and the largest possible return, "
                f"got {self.value_range!r}"
            )
