"""Did the package lose speed since an earlier commit? Both sources take turns on one machine."""

from __future__ import annotations

from pathlib import Path

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.markdown import number, table
from benchmarks.speed.against import GPU_SUITE, LEAST, ROUNDS, SUITES, TURN_SECONDS, cases
from benchmarks.speed.ratios import only
from benchmarks.suites import Options, Section, Suite

NAME, MODULE = "older_speed", "benchmarks.speed.older_job"
COMMIT = "f9df17d"
"""The last one before loops became objects and the package was laid out anew."""
GPU_ROUNDS = 5
"""Fewer than on a core: nothing else runs on the card."""


def older_jobs(options: Options) -> list[Job]:
    jobs = []
    for suite in SUITES:
        gpu = suite == GPU_SUITE
        rounds = 1 if options.quick else GPU_ROUNDS if gpu else ROUNDS
        pace = {"rounds": rounds, "seconds": TURN_SECONDS}
        for case in cases(suite, TURN_SECONDS):
            spec = {"suite": suite, "name": case.name, "commit": COMMIT, **pace}
            name = f"{suite}-{case.name}"
            jobs.append(Job(NAME, name, 0, MODULE, spec, gpu=gpu, cost=45))
    return jobs


def older_report(records: Records, _: Path) -> Section:
    rows, verdicts = [], []
    for suite in SUITES:
        for case in cases(suite, TURN_SECONDS):
            record = only(records, f"{suite}-{case.name}")
            found = record.result if record else {}
            values = [found["held"]] if found else []
            verdict = gates.at_least(f"{suite} {case.name}, of the old speed", values, LEAST)
            verdicts.append(verdict)
            spread = f"{found['ratio_min']:.2f} to {found['ratio_max']:.2f}" if found else ""
            cells = (number(found.get("new")), number(found.get("old")))
            rows.append(
                [suite, case.name, *cells, number(found.get("held"), 3), spread, verdict.text]
            )
    text = (
        f"These sources beside those of commit {COMMIT}, alternately, about {TURN_SECONDS:g} s at "
        "a time with the same measuring program: updates, predictions and environment steps per "
        "second. The ratio is the median over rounds, by CPU time on one core and by the wall "
        "clock on a GPU."
    )
    header = ("suite", "what", "new /s", "old /s", "new / old", "rounds", f"gate: {LEAST:g}")
    return Section("\n\n".join((text, table(header, rows))), tuple(verdicts))


SUITE = Suite(NAME, "Speed beside an earlier version", older_jobs, older_report, alone=True)
