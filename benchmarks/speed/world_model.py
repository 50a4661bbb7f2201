"""Milliseconds per update of Dreamer on one GPU, for each size and way to execute it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.markdown import number, table
from benchmarks.speed.ratios import only
from benchmarks.suites import Options, Section, Suite

NAME = "world_model_speed"
MODULE = "benchmarks.speed.world_model_job"
SIZES = ("tiny", "1m", "12m")
MODES = ("eager", "graph", "graph_tf32")
TIMES_EAGER = 2.0
BATCH, LENGTH, IMAGINED = 16, 64, 15


def speed_jobs(options: Options) -> list[Job]:
    """One job per size and way; compiling is none, it had not ended after three minutes."""
    jobs = []
    for size in SIZES:
        for mode in MODES:
            engine, _, rounded = mode.partition("_")
            spec: dict[str, Any] = {"size": size, "mode": engine, "image": 64, "updates": 30}
            if rounded:
                spec["tf32"] = True
            spec |= {"batch_size": BATCH, "batch_length": LENGTH, "rollout_length": IMAGINED}
            if options.quick:
                spec |= {"batch_length": 8, "rollout_length": 3, "updates": 3}
            jobs.append(Job(NAME, f"{size}-{mode}", 0, MODULE, spec, gpu=True, cost=20))
    return jobs


def speed_report(records: Records, _: Path) -> Section:
    rows, verdicts = [], []
    for size in SIZES:
        found = {mode: only(records, f"{size}-{mode}") for mode in MODES}
        results: dict[str, Any] = {m: r.result for m, r in found.items() if r is not None}
        times = {mode: results.get(mode, {}).get("milliseconds") for mode in MODES}
        ratio = times["eager"] / times["graph"] if times["eager"] and times["graph"] else None
        name = f"Dreamer {size} as a graph, times eager on a GPU"
        verdict = gates.at_least(name, [] if ratio is None else [ratio], TIMES_EAGER)
        verdicts.append(verdict)
        first = results.get("graph", {})
        rows.append(
            [
                size,
                number(first.get("parameters")),
                *(number(times[mode], 1) for mode in MODES),
                number(ratio, 1),
                number(first.get("gib"), 1),
                verdict.text,
            ]
        )
    header = (
        "size",
        "parameters",
        "eager ms",
        "graph ms",
        "graph, TF32, ms",
        "eager / graph",
        "GiB",
        f"gate: {TIMES_EAGER:g} times",
    )
    text = (
        "A whole update, sampling included: model, imagination, policy and critic, optimiser and "
        f"refreshed contexts. Batch {BATCH} × {LENGTH} moments of 64 × 64 pixels in colour, "
        f"{IMAGINED} imagined steps from each, float32; convolutions round to TF32 in all three, "
        "which is PyTorch's default. For orientation, of a full learner of that size of batch on a "
        "GB200: 22 ms in JAX, 358 ms for a compiled PyTorch scan."
    )
    return Section("\n\n".join((text, table(header, rows))), tuple(verdicts))


SUITE = Suite(NAME, "Speed of Dreamer on one GPU", speed_jobs, speed_report, alone=True)
