"""Gates: what a number has to be, and whether it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from benchmarks.markdown import table

MISSED = "**MISSED**"


@dataclass(frozen=True)
class Verdict:
    """One gate and how it went; `passed` is None where there are no numbers yet."""

    gate: str
    passed: bool | None
    note: str = ""
    """What belongs beside the outcome wherever it is shown."""
    measured: str = ""
    """What the gate compares, where no table shows it beside the outcome."""

    @classmethod
    def missing(cls, gate: str) -> Verdict:
        return cls(gate, None)

    @property
    def text(self) -> str:
        """The outcome for the row of a table with what was measured."""
        return self._outcome(self.note)

    @property
    def full_text(self) -> str:
        return self._outcome(self.measured, self.note)

    def _outcome(self, *remarks: str) -> str:
        outcome = {None: "not run", True: "pass", False: MISSED}[self.passed]
        said = "; ".join(remark for remark in remarks if remark)
        return f"{outcome} ({said})" if said else outcome


def listing(verdicts: Iterable[Verdict]) -> str:
    """A table of gates, with what they compare."""
    return table(("gate", ""), [[verdict.gate, verdict.full_text] for verdict in verdicts])


def at_least(name: str, values: Sequence[float], bound: float) -> Verdict:
    """The mean over seeds reaches the bound; the text says so where not every seed does."""
    return _bounded(f"{name} at least {bound:,.12g}", values, bound, 1.0)


def at_most(name: str, values: Sequence[float], bound: float) -> Verdict:
    """The mean over seeds stays below the bound; the text says so where not every seed does."""
    return _bounded(f"{name} at most {bound:,.12g}", values, bound, -1.0)


def _bounded(gate: str, values: Sequence[float], bound: float, sign: float) -> Verdict:
    if not values:
        return Verdict.missing(gate)
    found = fmean(values)
    passed = sign * found >= sign * bound
    out = sum(not sign * value >= sign * bound for value in values)
    note = f"{out} of {len(values)} seeds outside" if passed and out else ""
    return Verdict(gate, passed, note, _measured(found))


def _measured(value: float) -> str:
    """A number as precisely as a gate needs it."""
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.3g}"


def every_seed_at_least(name: str, values: Sequence[float], bound: float) -> Verdict:
    """Each seed on its own reaches the bound."""
    return _counted(f"{name} at least {bound:,.12g} in every seed", values, bound, 1.0, len(values))


def every_seed_at_most(name: str, values: Sequence[float], bound: float) -> Verdict:
    """Each seed on its own stays below the bound."""
    return _counted(f"{name} at most {bound:,.12g} in every seed", values, bound, -1.0, len(values))


def most_seeds_at_most(name: str, values: Sequence[float], bound: float) -> Verdict:
    """Two of three seeds stay below the bound."""
    needed = math.ceil(len(values) * 2 / 3)
    gate = f"{name} at most {bound:,.12g} in two of three seeds"
    return _counted(gate, values, bound, -1.0, needed)


def _counted(gate: str, values: Sequence[float], bound: float, sign: float, needed: int) -> Verdict:
    if not values:
        return Verdict.missing(gate)
    inside = sum(sign * value >= sign * bound for value in values)
    return Verdict(gate, inside >= needed, f"{inside} of {len(values)}")


def better(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
    """Our mean is above theirs."""
    if not ours or not theirs:
        return Verdict.missing(name)
    note = f"{fmean(ours):.0f} against {fmean(theirs):.0f}"
    return Verdict(name, fmean(ours) > fmean(theirs), note)


def clearly_better(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
    """Our mean is above theirs by more than two standard errors of the difference."""
    gate = f"{name}, by more than two standard errors"
    if not ours or not theirs:
        return Verdict.missing(gate)
    difference, error = fmean(ours) - fmean(theirs), standard_error(ours, theirs)
    note = f"{fmean(ours):,.0f} against {fmean(theirs):,.0f}, standard error {error:,.0f}"
    return Verdict(gate, difference > 2.0 * error, note)


def times(name: str, ours: Sequence[float], theirs: Sequence[float], factor: float) -> Verdict:
    """Our mean is at least `factor` times theirs."""
    gate = f"{name} at least {factor:g} times"
    if not ours or not theirs:
        return Verdict.missing(gate)
    passed = fmean(ours) >= factor * fmean(theirs)
    return Verdict(gate, passed, f"{fmean(ours):,.0f} against {fmean(theirs):,.0f}")


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
    measured = f"{_measured(fmean(ours))} against {_measured(fmean(theirs))}"
    difference = fmean(ours) - fmean(theirs)
    if difference >= 0:
        return Verdict(gate, True, measured=measured)
    # where one seed alone differs, the two are equal, and rounding must not decide
    passed = difference >= -standard_error(ours, theirs) * (1.0 + 1e-9)
    return Verdict(gate, passed, "within one standard error" if passed else "", measured)
