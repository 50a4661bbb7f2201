"""Speed of learning with an ensemble of critics on one CPU core, beside a Python list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.jobs import Job, Records
from benchmarks.speed.ratios import RatioTable, load_note
from benchmarks.suites import Options, Section, Suite

NAME = "ensemble_speed"
JOB = "benchmarks.speed.ensemble_job"
TIMES_FASTER = 5.0
SIZES: dict[str, dict[str, Any]] = {
    "paper": {"batch_size": 256, "hidden_sizes": [256, 256]},
    "small": {"batch_size": 128, "hidden_sizes": [64, 64]},
}
ENGINES = ("eager", "compile")
GATED = "small-compile"
"""What a CPU can be asked for: networks of its size, as a long run executes them."""
ROUNDS, TURN_SECONDS = 9, 1.5
SHAPE = {"obs_dim": 11, "action_dim": 3}
"""Of Hopper."""


def ensemble_jobs(options: Options) -> list[Job]:
    """One job per size and engine; seeds play no part."""
    pace = {"rounds": 2, "turn_seconds": 0.1} if options.quick else {}
    jobs = []
    for size, knobs in SIZES.items():
        for engine in ENGINES:
            config = {
                "algo": "rlpd",
                "env_id": "Hopper-v5",
                "device": "cpu",
                "threads": 1,
                "engine": engine,
                "algo_kwargs": knobs,
            }
            spec = {"config": config, **SHAPE, "rounds": ROUNDS, "turn_seconds": TURN_SECONDS}
            cost = 45.0 if engine == "eager" else 150.0
            jobs.append(Job(NAME, f"{size}-{engine}", 0, JOB, {**spec, **pace}, cost=cost))
    return jobs


def ensemble_report(records: Records, _: Path) -> Section:
    ratios = RatioTable("list")
    for size, knobs in SIZES.items():
        width = "×".join(map(str, knobs["hidden_sizes"]))
        for engine in ENGINES:
            label = f"layers {width}, batch {knobs['batch_size']}"
            gate = TIMES_FASTER if f"{size}-{engine}" == GATED else None
            ratios.add(records, f"{size}-{engine}", label, gate)
    compared = ratios.section()
    text = (
        "Rounds per second on one thread: what RLPD learns after one environment step, twenty "
        "updates of ten critics with their sampling and target updates and one step of policy "
        "and temperature, on observations and actions of Hopper's size. The other side keeps its "
        "critics in a Python list, as one would write it first; it is a part of the benchmark. "
        f"The two take turns of about {TURN_SECONDS} s."
    )
    limits = (
        "What limits the larger networks: a round takes about 24 GFLOP in matrix products on "
        "either side, 140 ms at the 170 GFLOP/s that this core reaches in float32, and the list "
        "needs about 410 ms for everything. No ensemble could be five times as quick there; the "
        "gate is on networks of a size for a CPU, compiled, as `engine: auto` runs them from "
        "50,000 updates on."
    )
    parts = (text, compared.markdown, limits, load_note(records))
    return Section("\n\n".join(parts), compared.verdicts)


SUITE = Suite(NAME, "Speed of an ensemble of critics", ensemble_jobs, ensemble_report, alone=True)
