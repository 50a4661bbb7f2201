"""How an evaluation is made."""

from __future__ import annotations

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
        for name in self.estimators:
            if name not in ESTIMATORS:
                raise ConfigError(
                    f"estimators: unknown estimator '{name}'{did_you_mean(name, ESTIMATORS)}; "
                    f"known are {', '.join(ESTIMATORS)}"
                )
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
        if not 0.5 <= self.confidence < 1.0:
            raise ConfigError(f"confidence: expected a share from 0.5, got {self.confidence:g}")
