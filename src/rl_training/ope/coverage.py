"""What nominal 95 % intervals were worth on a problem whose answer is known."""

from __future__ import annotations

PROBLEM = "ICU-Sepsis, 1,000 episodes, 100 replications"
COVERAGE: dict[str, tuple[float, float]] = {
    "fqe": (0.91, 0.92),
    "mb by counts": (0.86, 0.90),
    "wdr": (0.75, 0.91),
    "wdr_full": (0.79, 0.91),
    "dr": (0.56, 0.91),
    "wis": (0.91, 0.91),
    "pdwis": (0.16, 0.34),
    "is": (0.16, 0.28),
    "pdis": (0.16, 0.28),
}
"""Least and largest share of intervals that held the exact value, over policies half and nine
tenths of the way from the behaviour to the best one; jobs `coverage` and, of `mb` where it counts
transitions, `counted` of the suite `ope`."""
FEW = 0.8
"""Below this an interval says less than its width suggests."""


def worth_of(estimator: str) -> str:
    """How often intervals of an estimator held the truth, for people."""
    if estimator not in COVERAGE:
        return "not measured"
    shares = dict.fromkeys(f"{share:.0%}" for share in COVERAGE[estimator])
    return " to ".join(shares)


def caution_about(estimator: str) -> str | None:
    """One sentence where intervals of an estimator are known to be too narrow."""
    if estimator not in COVERAGE or min(COVERAGE[estimator]) >= FEW:
        return None
    return (
        f"nominal 95% intervals of {estimator} held the exact value in {worth_of(estimator)} of "
        f"replications ({PROBLEM}; policies half and nine tenths of the way from the behaviour to "
        "the best one), so read its value and not its interval where actions are unusual"
    )
