"""The table of a speed comparison, one row per `compare_job`."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import gates
from benchmarks.jobs import Record, Records
from benchmarks.markdown import NO_VALUE, number, table
from benchmarks.suites import Section


def only(records: Records, job: str) -> Record | None:
    """The result of a job without seeds."""
    return next(iter(records.of(job)), None)


class RatioTable:
    """Collects rows and the gates in them."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._rows: list[Sequence[str]] = []
        self._found: dict[str, float] = {}
        self._verdicts: list[gates.Verdict] = []

    def add(self, records: Records, job: str, label: str, times_faster: float | None) -> None:
        """One row; without `times_faster` there is no gate."""
        record = only(records, job)
        result = record.result if record else {}
        if "ratio" in result:
            self._found[label] = result["ratio"]
        gate, text = NO_VALUE, "no gate" if "ratio" in result else "no peer"
        if times_faster is not None:
            ratios = [result["ratio"]] if record else []
            verdict = gates.at_least(f"{job} times {self.peer}'s speed", ratios, times_faster)
            self._verdicts.append(verdict)
            gate, text = f"{times_faster:g} times", verdict.text
        spread = (
            f"{result['ratio_min']:.2f} to {result['ratio_max']:.2f}" if "ratio" in result else ""
        )
        self._rows.append(
            [
                label,
                number(result.get("ours")),
                number(result.get("theirs")),
                number(result.get("ratio"), 2),
                spread or NO_VALUE,
                number(result.get("cpu_ratio"), 2),
                result.get("engine", NO_VALUE),
                gate,
                text,
            ]
        )

    def section(self) -> Section:
        rates = ("ours /s", f"{self.peer} /s")
        ratios = ("ratio", "rounds", "by CPU time")
        header = ("algorithm", *rates, *ratios, "engine", "gate: at least", "")
        return Section(table(header, self._rows), tuple(self._verdicts), self._short())

    def _short(self) -> str:
        """The ratios in words, the largest first."""
        ordered = sorted(self._found.items(), key=lambda found: -found[1])
        digits = [f"{label} {ratio:.3g}" for label, ratio in ordered]
        return ", ".join(digits)


def load_note(records: Records) -> str:
    """How busy the machine was, as a sentence."""
    loads = [record.result.get("load_before", 0.0) for record in records.all]
    return f"Load average before the jobs: up to {max(loads):.1f}." if loads else ""
