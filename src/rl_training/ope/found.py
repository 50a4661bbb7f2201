"""The result of an evaluation: estimates, what they rest on, and a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rl_training.ope.coverage import COVERAGE
from rl_training.ope.options import ESTIMATORS, RATIOS, Options
from rl_training.runtime.statistics import Interval

LEAST_EFFECTIVE = 10.0
"""Effective episodes below which an estimate by ratios says nothing."""
MOST_UNUSUAL = 0.15
"""Share of the policy's actions that may be unusual before the data stop supporting it: of the
log's own actions it is `UNUSUAL`."""

MOST_UNCOUNTED = 0.05
"""Discount that may be left on the mean where logged episodes were cut, before a value that counts
on and the mean of logged returns are no longer compared."""
BEYOND = 0.05
"""Share of the largest or smallest logged return by which a value, and by more than its error, may
lie beyond it: the mean of a policy's returns beyond every logged one rests on no episode."""
PLAIN_RATIOS = frozenset({"is", "wis", "pdis", "pdwis"})
"""Estimators that count logged steps only."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result; `str` formats it for people, `to_dict` for ope.json."""

    policy: str
    """Fingerprint of the policy."""
    data: str
    """Fingerprint of the log."""
    episodes: int
    options: Options
    estimates: dict[str, Interval]
    behaviour: Interval
    effective_size: float | None
    """Episodes that carry the weights; None without ratios."""
    lower_bound: float | None
    """What the value exceeds with the given confidence whatever the distribution of returns, by
    empirical Bernstein; None where returns have no known range or probabilities are estimated."""
    unusual: float
    """Share of the policy's actions that the data hardly hold; 0.05 of the log's own."""
    verdict: str
    supported: bool
    notes: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> Interval:
        """The estimate to read first."""
        return self.estimates[next(name for name in ESTIMATORS if name in self.estimates)]

    def __str__(self) -> str:
        sure = f"{self.options.confidence:.0%}"
        lines = [
            f"{name} {one.value:.4g}, {sure} interval [{one.low:.4g}, {one.high:.4g}]"
            for name, one in {**self.estimates, "behaviour": self.behaviour}.items()
        ]
        if self.lower_bound is not None:
            lines.append(f"above {self.lower_bound:.4g} with {sure} confidence")
        if self.effective_size is not None:
            lines.append(f"effective sample size of the weights: {self.effective_size:.1f}")
        lines.append(f"unusual actions: {self.unusual:.1%} of the policy's, 5% of the log's own")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, f"verdict: {self.verdict}"])

    def to_dict(self) -> dict[str, Any]:
        numbers = {
            name: {
                "value": one.value,
                "low": one.low,
                "high": one.high,
                "coverage": COVERAGE.get(name),
            }
            for name, one in {**self.estimates, "behaviour": self.behaviour}.items()
        }
        return {
            "policy": self.policy,
            "data": self.data,
            "episodes": self.episodes,
            "gamma": self.options.gamma,
            "horizon": self.options.horizon,
            "stochastic": self.options.stochastic,
            "confidence": self.options.confidence,
            "estimates": numbers,
            "effective_size": self.effective_size,
            "lower_bound": self.lower_bound,
            "unusual": self.unusual,
            "supported": self.supported,
            "verdict": self.verdict,
            "notes": list(self.notes),
            **self.extra,
        }


def verdict_of(
    found: dict[str, Interval],
    behaviour: Interval,
    unusual: float,
    size: float | None,
    options: Options,
    settled: bool,
    uncounted: float = 0.0,
    logged: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[str, bool]:
    """A sentence about the estimate to read first, and whether the data support it; `settled` says
    whether fitted Q had enough updates, `uncounted` is the mean discount where episodes were cut,
    `logged` are the smallest and the largest logged return.
    """
    name = next(one for one in ESTIMATORS if one in found)
    best, sure = found[name], f"{options.confidence:.0%}"
    if unusual > MOST_UNUSUAL or (name in RATIOS and (size or 0.0) < LEAST_EFFECTIVE):
        why = f"{unusual:.0%} of the policy's actions are ones that the data hardly hold"
        if unusual <= MOST_UNUSUAL:
            why = f"the weights rest on {size or 0.0:.1f} episodes"
        return f"not supported by the data: {why}", False
    if name == "fqe" and not settled:
        return "not known yet: fqe has not settled", True
    above = best.value - logged[1] > max(best.value - best.low, BEYOND * abs(logged[1]))
    below = logged[0] - best.value > max(best.high - best.value, BEYOND * abs(logged[0]))
    if uncounted <= MOST_UNCOUNTED and (above or below):
        return (
            f"not supported by the data: {name} is {best.value:.4g}, and every logged episode "
            f"returned {'less' if above else 'more'} ({logged[0]:.4g} to {logged[1]:.4g})"
        ), False
    if name not in PLAIN_RATIOS and uncounted > MOST_UNCOUNTED:
        return (
            f"not known: logged episodes were cut where {uncounted:.0%} of the discount is left, "
            f"and {name} counts what comes after while the behaviour's value does not; give "
            "horizon, the steps that count"
        ), True
    gained = best.value - behaviour.value  # both are estimates, so the errors of both count
    if gained > math.hypot(best.value - best.low, behaviour.high - behaviour.value):
        return (
            f"better than the behaviour: the {sure} lower bound of {name}, {best.low:.4g}, is "
            f"above the behaviour's {behaviour.value:.4g}"
        ), True
    if -gained > math.hypot(best.high - best.value, behaviour.value - behaviour.low):
        return (
            f"worse than the behaviour: the {sure} upper bound of {name}, {best.high:.4g}, is "
            f"below the behaviour's {behaviour.value:.4g}"
        ), True
    return (
        f"not shown to differ from the behaviour: {name} is {best.value:.4g}, the behaviour "
        f"{behaviour.value:.4g}, and their {sure} intervals leave both orders possible"
    ), True
