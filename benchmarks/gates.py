"""Gates: what a number has to be, and whether it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

MISSED = "**MISSED**"


@dataclass(frozen=True)
class Verdict:
    """One gate and how it went; `passed` is None where there are no numbers yet."""

    gate: str
    passed: bool | None
    text: str

    @classmethod
    def missing(cls, gate: str) -> Verdict:
        return cls(gate, None, "not run")


def at_least(name: str, values: Sequence[float], bound: float) -> Verdict:
    """The mean over seeds reaches the bound; the text says so where not every seed does."""
    return _bounded(f"{name} at least {bound:g}", values, bound, 1.0)


def at_most(name: str, values: Sequence[float], bound: float) -> Verdict:
    """The mean over seeds stays below the bound; the text says so where not every seed does."""
    return _bounded(f"{name} at most {bound:g}", values, bound, -1.0)


def _bounded(gate: str, values: Sequence[float], bound: float, sign: float) -> Verdict:
    if not values:
        return Verdict.missing(gate)
    if not sign * fmean(values) >= sign * bound:
        return Verdict(gate, False, MISSED)
    out = sum(not sign * value >= sign * bound for value in values)
    note = f" ({out} of {len(values)} seeds outside)" if out else ""
    return Verdict(gate, True, f"pass{note}")


def every_seed_at_least(name: str, values: Sequence[float], bound: float) -> Verdict:
    """Each seed on its own reaches the bound."""
    return _counted(f"{name} at least {bound:g} in every seed", values, bound, 1.0, len(values))


def every_seed_at_most(name: str, values: Sequence[float], bound: float) -> Verdict:
    """Each seed on its own stays below the bound."""
    return _counted(f"{name} at most {bound:g} in every seed", values, bound, -1.0, len(values))


def most_seeds_at_most(name: str, values: Sequence[float], bound: float) -> Verdict:
    """Two of three seeds stay below the bound."""
    needed = math.ceil(len(values) * 2 / 3)
    gate = f"{name} at most {bound:g} in two of three seeds"
    return _counted(gate, values, bound, -1.0, needed)


def _counted(gate: str, values: Sequence[float], bound: float, sign: float, needed: int) -> Verdict:
    if not values:
        return Verdict.missing(gate)
    inside = sum(sign * value >= sign * bound for value in values)
    text = "pass" if inside >= needed else MISSED
    return Verdict(gate, inside >= needed, f"{text} ({inside} of {len(values)})")


def better(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
    """Our mean is above theirs."""
    if not ours or not theirs:
        return Verdict.missing(name)
    passed = fmean(ours) > fmean(theirs)
    text = f"{fmean(ours):.0f} against {fmean(theirs):.0f}"
    return Verdict(name, passed, f"{'pass' if passed else MISSED} ({text})")


def clearly_better(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
    """Our mean is above theirs by more than two standard errors of the difference."""
    gate = f"{name}, by more than two standard errors"
    if not ours or not theirs:
        return Verdict.missing(gate)
    difference, error = fmean(ours) - fmean(theirs), standard_error(ours, theirs)
    passed = difference > 2.0 * error
    text = f"{fmean(ours):,.0f} against {fmean(theirs):,.0f}, standard error {error:,.0f}"
    return Verdict(gate, passed, f"{'pass' if passed else MISSED} ({text})")


def times(name: str, ours: Sequence[float], theirs: Sequence[float], factor: float) -> Verdict:
    """Our mean is at least `factor` times theirs."""
    gate = f"{name} at least {factor:g} times"
    if not ours or not theirs:
        return Verdict.missing(gate)
    passed = fmean(ours) >= factor * fmean(theirs)
    text = f"{fmean(ours):,.0f} against {fmean(theirs):,.0f}"
    return Verdict(gate, passed, f"{'pass' if passed else MISSED} ({text})")


def standard_error(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the difference of two means over seeds; 0 where a side has one seed."""

    def squared(values: Sequence[float]) -> float:
        return stdev(values) ** 2 / len(values) if len(values) > 1 else 0.0

    return math.sqrt(squared(ours) + squared(theirs))


def not_worse(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
    """Our mean is at least theirs less one standard error of the difference."""
    gate = f"{name} at least as good"
    if not ours or not theirs:
        return Verdict.missing(gate)
    difference = fmean(ours) - fmean(theirs)
    if difference >= 0:
        return Verdict(gate, True, "pass")
    # where one seed alone differs, the two are equal, and rounding must not decide
    if difference >= -standard_error(ours, theirs) * (1.0 + 1e-9):
        return Verdict(gate, True, "pass (within one standard error)")
    return Verdict(gate, False, MISSED)
