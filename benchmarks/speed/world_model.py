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
MODES: dict[str, dict[str, Any]] = {
    "eager": {"mode": "eager"},
    "graph": {"mode": "graph"},
    "graph_tf32": {"mode": "graph", "tf32": True},
    "compiled_tf32": {"mode": "compiled_graph", "tf32": True},
    "compiled_bf16": {"mode": "compiled_graph", "tf32": True, "precision": "bfloat16"},
}
TIMES_EAGER = 2.0
MOST_MILLISECONDS = {"compiled_tf32": 45.0, "compiled_bf16": 25.0}
MEASURED, CARD = "12m", "H200"
"""The size and the card of the gates in milliseconds."""
BATCH, LENGTH, IMAGINED = 16, 64, 15


def speed_jobs(options: Options) -> list[Job]:
    """One job per size and way; of one size also compiled, whose first update takes minutes."""
    jobs = []
    for size in SIZES:
        for mode, way in MODES.items():
            compiled = way["mode"] == "compiled_graph"
            if compiled and size != MEASURED:
                continue
            spec: dict[str, Any] = {"size": size, "image": 64, "updates": 30, **way}
            spec |= {"batch_size": BATCH, "batch_length": LENGTH, "rollout_length": IMAGINED}
            if options.quick:
                spec |= {"batch_length": 8, "rollout_length": 3, "updates": 3}
            cost = 120 if compiled else 20
            jobs.append(Job(NAME, f"{size}-{mode}", 0, MODULE, spec, gpu=True, cost=cost))
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
        if size == MEASURED:
            verdicts += _absolute(results)
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
        "compiled, TF32, ms",
        "compiled, bfloat16, ms",
        "eager / graph",
        "GiB",
        f"gate: {TIMES_EAGER:g} times",
    )
    text = (
        "A whole update, sampling included: model, imagination, policy and critic, optimiser and "
        f"refreshed contexts. Batch {BATCH} × {LENGTH} moments of 64 × 64 pixels in colour, "
        f"{IMAGINED} imagined steps from each; convolutions round to TF32 in all but the last, "
        "which is PyTorch's default. Compiled: the steps of the chain and the losses one by one, "
        "inside the graph. For orientation, the authors' JAX code with this batch and the size "
        f"`{MEASURED}` on an H200: 55.3 ms in float32, 36.1 ms in bfloat16."
    )
    asked = gates.listing(v for v in verdicts if "milliseconds" in v.gate)
    parts = (text, table(header, rows), asked)
    return Section("\n\n".join(parts), tuple(verdicts))


def _absolute(results: dict[str, Any]) -> list[gates.Verdict]:
    """The gates in milliseconds, which other cards than the one they are set for do not judge."""
    verdicts = []
    for mode, most in MOST_MILLISECONDS.items():
        found = results.get(mode, {})
        counts = [found["milliseconds"]] if CARD in found.get("device", "") else []
        name = f"Dreamer {MEASURED}, {mode.replace('_', ' ')}, milliseconds per update on an {CARD}"
        verdicts.append(gates.at_most(name, counts, most))
    return verdicts


SUITE = Suite(NAME, "Speed of Dreamer on one GPU", speed_jobs, speed_report, alone=True)
