"""Decisions of exported policies: latency on one core, a steady load, a control loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.markdown import table
from benchmarks.speed.ratios import load_note
from benchmarks.suites import Options, Section, Suite

NAME = "serving"
MODULE = "benchmarks.speed.serving_job"
POLICY: dict[str, Any] = {
    "shape": {"obs_dim": 17, "action_dim": 6},
    "knobs": {"hidden_sizes": [256, 256]},
}
RUNTIME_US, HTTP_MS, WEBSOCKET_MS = 40.0, 2.0, 0.5
RATE, HERTZ, SECONDS = 2_000, 500, 60.0
HELD, GROWTH_MB, MISSED = 0.99, 16.0, 0.01
"""Share of the rate, growth of the server's memory, and share of missed deadlines."""


def serving_jobs(options: Options) -> list[Job]:
    """One job per way to ask; seeds play no part."""
    calls, seconds = (300, 2.0) if options.quick else (20_000, SECONDS)
    ways: dict[str, dict[str, Any]] = {
        "runner": {"calls": calls},
        "http": {"calls": calls // 4},
        "websocket": {"calls": calls // 4},
        "load": {"rate": RATE, "connections": 16, "seconds": seconds},
        "robot": {"hertz": HERTZ, "seconds": seconds},
    }
    return [
        Job(NAME, what, 0, MODULE, {"what": what, **POLICY, **way}, cost=40.0)
        for what, way in ways.items()
    ]


def serving_report(records: Records, _: Path) -> Section:
    verdicts, rows = [], []

    def gate(
        what: str, job: str, key: str, bound: float, scale: float, unit: str, least: bool = False
    ) -> None:
        values = [value * scale for value in records.values(job, key)]
        check = gates.at_least if least else gates.at_most
        verdict = check(what, values, bound)
        verdicts.append(verdict)
        shown = f"{values[0]:,.4g} {unit}".strip() if values else "–"
        side = "at least" if least else "at most"
        rows.append([what, shown, f"{side} {bound:,.4g} {unit}".strip(), verdict.text])

    gate("ONNX Runtime, median", "runner", "p50", RUNTIME_US, 1.0, "µs")
    gate("HTTP, median", "http", "p50", HTTP_MS, 1e-3, "ms")
    gate("WebSocket, median", "websocket", "p50", WEBSOCKET_MS, 1e-3, "ms")
    gate("requests per second under load", "load", "rate", RATE * HELD, 1.0, "", least=True)
    gate("errors under load", "load", "errors", 0.0, 1.0, "")
    gate("growth of the server's memory", "load", "memory_growth_mb", GROWTH_MB, 1.0, "MB")
    gate("same answer after a kill", "load", "same_after_restart", 1.0, 1.0, "", least=True)
    gate("missed deadlines at 500 Hz", "robot", "missed_share", MISSED * 100, 100.0, "%")
    text = (
        "A policy of two layers of 256 units, 17 observations and 6 actions, exported and served "
        "on this machine; client and server are processes on the same cores. HTTP is JSON over one "
        "connection that stays open, WebSocket and the control loop are binary frames, the load is "
        f"{RATE:,} requests per second over 16 connections for {SECONDS:g} s, the control loop "
        f"runs at {HERTZ} Hz for {SECONDS:g} s, and an answer after its period is a missed "
        "deadline. Run it as `taskset -c 0,1 python -m benchmarks.run serving` where there are "
        f"more than two cores. {_cores(records)}"
    )
    header = ("what", "measured", "gate", "")
    return Section("\n\n".join((text, table(header, rows), load_note(records))), tuple(verdicts))


def _cores(records: Records) -> str:
    """On how many cores it ran, and what an answer took of them."""
    cores = sorted({int(value) for value in records.values("load", "cores")})
    used = records.values("load", "server_us")
    if not cores or not used:
        return ""
    return (
        f"It ran on {' and '.join(map(str, cores))} cores; under load an answer took "
        f"{used[0]:.0f} µs of the server's processor time."
    )


SUITE = Suite(NAME, "Exported policies and their server", serving_jobs, serving_report, alone=True)
