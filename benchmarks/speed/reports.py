"""Reports of runs with very many rows of metrics."""

from __future__ import annotations

from pathlib import Path

from benchmarks import gates
from benchmarks.gates import Verdict
from benchmarks.jobs import Job, Records
from benchmarks.markdown import number, table
from benchmarks.speed.ratios import only
from benchmarks.suites import Options, Section, Suite

NAME, MODULE = "reports", "benchmarks.speed.reports_job"
ROWS, EVALUATIONS = 10_000_000, 1_000_000
MOST_SECONDS, MOST_MEGABYTES = 20.0, 3.0


def report_jobs(options: Options) -> list[Job]:
    """One run that logs every update, and one that evaluates after every update."""
    shrink = 1_000 if options.quick else 1
    rows = {"rows": ROWS // shrink, "rows_per_evaluation": 1_000}
    evaluations = {"rows": EVALUATIONS // shrink, "rows_per_evaluation": 1}
    return [
        Job(NAME, "rows", 0, MODULE, rows, cost=60),
        Job(NAME, "evaluations", 0, MODULE, evaluations, cost=15),
    ]


def report_report(records: Records, _: Path) -> Section:
    verdicts: list[Verdict] = []
    rows: list[list[str]] = []
    whats = {
        "rows": f"{ROWS:,} rows of training, an evaluation after every 1,000",
        "evaluations": f"{EVALUATIONS:,} rows of training, an evaluation after each",
    }
    for name, what in whats.items():
        record = only(records, name)
        found = record.result if record else {}
        used, size = ([found[key]] if found else [] for key in ("cpu_seconds", "megabytes"))
        checks = (
            gates.at_most(f"CPU seconds of a report: {what}", used, MOST_SECONDS),
            gates.at_most(f"MB of its page: {what}", size, MOST_MEGABYTES),
        )
        verdicts += checks
        keys = {"cpu_seconds": 1, "wall_seconds": 1, "megabytes": 2, "peak_megabytes": 0}
        cells = [number(found.get(key), digits) for key, digits in keys.items()]
        rows.append([what, *cells, "; ".join(check.text for check in checks)])
    text = (
        "The job writes the metrics of a run and times `rl-training report` from its start to its "
        "end, the start of Python and of PyTorch included. It has one thread, so far more seconds "
        "by the clock than of the processor are those of other programs on the machine, and the "
        f"gate is on the processor's: at most {MOST_SECONDS:g}, and a page of at most "
        f"{MOST_MEGABYTES:g} MB."
    )
    header = (
        "metrics of the run",
        "CPU seconds",
        "seconds by the clock",
        "page, MB",
        "peak memory, MB",
        "",
    )
    return Section("\n\n".join((text, table(header, rows))), tuple(verdicts))


SUITE = Suite(NAME, "Reports of long runs", report_jobs, report_report, alone=True)
