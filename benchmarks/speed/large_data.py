"""Data larger than memory: packing, memory, and updates from each home of the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.gates import Verdict
from benchmarks.jobs import Job, Records
from benchmarks.markdown import number, table
from benchmarks.speed.ratios import only
from benchmarks.suites import Options, Section, Suite

NAME, MODULE = "large_data", "benchmarks.speed.large_data_job"
UPDATES, LOG_ROWS = 1_000, 10_000_000
DISK_ROWS = 181_000_000
"""30 GB of 166 bytes each: observations and their successors of 17 numbers, actions of 6."""
ROWS_PER_CPU_SECOND, PEAK_RATIO, DISK_RATIO, RESIDENT_GB, HOST_RATE = 1e6, 1.3, 0.8, 4.0, 2_000.0


def offline_algorithms() -> list[str]:
    """Those that learn from a table of transitions alone."""
    from rl_training.algorithms.loops import loop_family
    from rl_training.experiment.registry import algorithm_class, algorithm_names

    def from_table(loop: str) -> bool:
        family = loop_family(loop)
        return family.needs_data and not family.needs_env and loop != "model_based_offline"

    return [
        name
        for name in algorithm_names()
        if name != "fqe" and any(from_table(loop) for loop in algorithm_class(name).loops())
    ]


def large_data_jobs(options: Options) -> list[Job]:
    """One job per figure; seeds play no part."""
    quick = options.quick
    homes = {"what": "homes", "updates": 5 if quick else UPDATES}
    algorithms = offline_algorithms()
    parquet = {"what": "parquet", "rows": 20_000 if quick else LOG_ROWS}
    disk = {
        "what": "disk",
        "rows": 200_000 if quick else DISK_ROWS,
        "rows_in_memory": 100_000 if quick else 2_000_000,
        "seconds": 0.5 if quick else 20.0,
    }
    cuda = {
        "what": "cuda",
        "rows": 200_000 if quick else 20_000_000,
        "seconds": 0.5 if quick else 3.0,
    }
    return [
        *(
            Job(NAME, f"homes-{algo}", 0, MODULE, {**homes, "algo": algo}, cost=15)
            for algo in (algorithms[:2] if quick else algorithms)
        ),
        Job(NAME, "parquet", 0, MODULE, parquet, cost=90),
        Job(NAME, "disk", 0, MODULE, disk, cost=600),
        Job(NAME, "cuda", 0, MODULE, cuda, cost=120, gpu=True),
    ]


def large_data_report(records: Records, _: Path) -> Section:
    found: dict[str, dict[str, Any]] = {}
    for name in ("parquet", "disk", "cuda"):
        record = only(records, name)
        found[name] = record.result if record else {}
    rows: list[list[str]] = []
    verdicts: list[Verdict] = []

    def line(what: str, measured: str, verdict: Verdict) -> None:
        rows.append([what, measured, verdict.gate.split(" at ")[-1], verdict.text])
        verdicts.append(verdict)

    parquet, disk, cuda = (found[name] for name in ("parquet", "disk", "cuda"))
    homes = [r.result["equal"] for r in records.all if r.job.startswith("homes-")]
    wanted = len(offline_algorithms())
    decided = len(homes) >= wanted or not all(homes)
    line(
        f"algorithms with equal parameters in all homes after {UPDATES:,} updates",
        f"{sum(homes)} of {len(homes)}; there are {wanted}" if homes else "",
        # of some of them nothing is decided yet, unless one differs
        gates.at_least("algorithms", [float(sum(homes))] if decided else [], float(wanted)),
    )
    pack = parquet.get("pack", {})
    rate = [pack["rows_per_cpu_second"]] if pack else []
    line(
        f"Parquet of {LOG_ROWS:,} rows, 20 columns: rows packed per CPU second",
        number(rate[0]) if rate else "",
        gates.at_least("rows packed per CPU second", rate, ROWS_PER_CPU_SECOND),
    )
    line(
        "peak memory of the table in memory, times the packed size",
        number(parquet.get("ratio"), 2),
        gates.at_most("peak memory", [parquet["ratio"]] if parquet else [], PEAK_RATIO),
    )
    peak = {key: disk["disk"]["peak"][key] / 1e9 for key in ("anon", "file")} if disk else {}
    line(
        f"IQL from {disk.get('bytes', 0) / 1e9:,.1f} GB on disk: memory of its own, GB "
        f"(mapped pages beside it: {peak.get('file', 0.0):,.1f})",
        number(peak.get("anon"), 2),
        gates.at_most("GB of its own", [peak["anon"]] if peak else [], RESIDENT_GB),
    )
    line(
        "IQL from disk, times its updates/s from memory",
        number(disk.get("ratio"), 2),
        gates.at_least("disk times memory", [disk["ratio"]] if disk else [], DISK_RATIO),
    )
    host = [max(cuda["host"].values())] if cuda else []
    others = (
        f" (device {max(cuda['device'].values()):,.0f}, disk {max(cuda['disk'].values()):,.0f})"
        if cuda
        else ""
    )
    line(
        f"IQL on a GPU from host memory, updates/s{others}",
        number(host[0]) if host else "",
        gates.at_least("updates/s from host memory", host, HOST_RATE),
    )
    if cuda:
        line(
            f"equal parameters in all homes on a GPU after {UPDATES:,} updates",
            "yes" if cuda["equal"] else "no",
            gates.at_least("equal parameters on a GPU", [float(cuda["equal"])], 1.0),
        )
    text = (
        "Sets are made by the job and deleted. IQL has hidden layers of 256 x 2 and batches of "
        "256; on the CPU one thread, eagerly. Memory is read from `/proc/self/status` every 50 ms: "
        "RssAnon is the process's own, RssFile are pages of the mapped file, which the system "
        "takes back when it needs them."
    )
    header = ("what", "measured", "gate", "")
    return Section("\n\n".join((text, table(header, rows))), tuple(verdicts))


SUITE = Suite(NAME, "Data larger than memory", large_data_jobs, large_data_report, alone=True)
