"""Two sources of the package against each other: did a change cost speed?

    python -m benchmarks.speed.against OLDER            a checkout of another commit
    python -m benchmarks.speed.against OLDER --suites online_speed --only ppo

Both sides do the same work alternately, a second or so at a time, each with its own sources
and the same measuring program. The ratio is new over old, by wall clock and by CPU time; "best"
compares the fastest turn of each side, which a busy machine disturbs least.
The exit code is 1 when a ratio of the CPU time (on a GPU: of the wall clock) is below --least.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.machine import hardware, has_gpu
from benchmarks.markdown import number, table
from benchmarks.process import ROOT, Companion
from benchmarks.speed import gpu, offline_cpu, online_cpu
from benchmarks.speed.compare_job import OURS, Side
from benchmarks.speed.synthetic import SHAPE

LEAST, ROUNDS, TURN_SECONDS = 0.97, 9, 1.5
GPU_SUITE = gpu.NAME
PAPERS_CQL: dict[str, Any] = {
    "min_q_weight": 5.0,
    "lagrange_lr": 1e-4,
    "target_entropy": None,
    "temperature_lr": 1e-4,
    "tau": 0.005,
    "gamma": 0.99,
    "policy_lr": 1e-4,
    "critic_lr": 3e-4,
}
"""Knobs that runs of the first version stored: with all of them CQL has the paper's objective,
the only one that there was."""
SUITES = (offline_cpu.NAME, online_cpu.NAME, GPU_SUITE)


class Case(NamedTuple):
    """One thing that both sides build and run."""

    suite: str
    name: str
    build: dict[str, Any]
    turn: dict[str, Any]
    """Either the ticks of a turn, or its seconds."""


def cases(suite: str, seconds: float) -> Iterator[Case]:
    """What a suite measures."""
    turn = {"turn_seconds": seconds}
    if suite == offline_cpu.NAME:
        for algo in (*offline_cpu.SINCE_THE_FIRST, *offline_cpu.OURS_ALONE):
            changes = {"engine": "eager"}
            yield Case(suite, algo, {"algo": algo, "changes": changes, **_task(algo)}, turn)
        for algo in offline_cpu.PREDICTING:
            build = {"algo": algo, "predict": True, **_task(algo)}
            yield Case(suite, f"predict-{algo}", build, turn)
    elif suite == online_cpu.NAME:
        for name in online_cpu.TIMES_FASTER:
            config = online_cpu.measured_config(name)
            build = {"packaged": name, "changes": online_cpu.CHANGES}
            steps = online_cpu.turn_steps(config)
            yield Case(suite, name.replace("/", "-"), build, {"turn_ticks": steps})
    else:
        for algo in gpu.ALGORITHMS:
            if algo != "sac":  # its loop needs an environment that can be stepped
                for engine in ("graph", "compiled_graph"):
                    changes = {"device": "cuda", "engine": engine}
                    build = {"algo": algo, "changes": changes, **_task(algo)}
                    yield Case(suite, f"{algo}-{engine}", build, turn)


def _task(algo: str) -> dict[str, Any]:
    """The synthetic task, with knobs that mean the same in old and new sources."""
    knobs = {**offline_cpu.KNOBS, **(PAPERS_CQL if algo == "cql" else {})}
    return {"shape": SHAPE, "knobs": knobs}


def measure(case: Case, older: Path, rounds: int) -> dict[str, Any]:
    """Rates of both sides, measured alternately."""
    on_gpu = case.suite == GPU_SUITE
    with ExitStack() as stack:
        sides = []
        for source in (ROOT, older):
            companion = Companion(sys.executable, OURS, source, gpu=on_gpu)
            stack.enter_context(companion).ask(do="build", **case.build)
            sides.append(Side(companion, case.turn))
        # equally long turns, so that "best" means the same on both sides
        ticks = min(side.ticks for side in sides)
        for side in sides:
            side.ticks = ticks
        for turn in range(rounds):
            for side in sides if turn % 2 == 0 else reversed(sides):
                side.turn()
    new, old = sides
    wall, cpu = (new.rates, old.rates), (new.cpu_rates, old.cpu_rates)
    ratios = [a / b for a, b in zip(*(wall if on_gpu else cpu), strict=True)]
    best = [max(rates) for rates in (wall if on_gpu else cpu)]
    return {
        "suite": case.suite,
        "name": case.name,
        "new": median(wall[0]),
        "old": median(wall[1]),
        "ratio": median(a / b for a, b in zip(*wall, strict=True)),
        "cpu_ratio": median(a / b for a, b in zip(*cpu, strict=True)),
        "best_ratio": best[0] / best[1],
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "held": median(ratios),
        "new_rounds": wall[0],
        "old_rounds": wall[1],
        "new_cpu_rounds": cpu[0],
        "old_cpu_rounds": cpu[1],
        "load": os.getloadavg()[0],
    }


def commit_of(source: Path) -> str:
    """The commit that is checked out there, if git is at hand."""
    try:
        done = subprocess.run(
            ["git", "-C", str(source), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def summary(results: Sequence[dict[str, Any]]) -> str:
    header = ("suite", "what", "new /s", "old /s", "new / old", "by CPU time", "rounds", "best")
    rows = [
        [
            r["suite"],
            r["name"],
            number(r["new"]),
            number(r["old"]),
            number(r["ratio"], 3),
            number(r["cpu_ratio"], 3),
            f"{r['ratio_min']:.2f} to {r['ratio_max']:.2f}",
            number(r["best_ratio"], 3),
        ]
        for r in results
    ]
    return table(header, rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.against",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("older", type=Path, help="folder of the other sources")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=SUITES)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns per side (%(default)s)")
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS, help="per turn where free")
    parser.add_argument("--least", type=float, default=LEAST, help="ratio held (%(default)s)")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    chosen = parser.parse_args(arguments)
    older = chosen.older.resolve()
    if not (older / "src" / "rl_training").is_dir():
        parser.error(f"{older}: no src/rl_training there; name a checkout of the project")
    console = Console(stderr=True)
    results: list[dict[str, Any]] = []
    for suite in chosen.suites:
        if suite == GPU_SUITE and not has_gpu():
            console.print(f"{suite}: left out, it needs a CUDA device and none was found")
            continue
        for case in cases(suite, chosen.seconds):
            if chosen.only in case.name:
                results.append(measure(case, older, chosen.rounds))
                r = results[-1]
                console.print(
                    f"{suite} {case.name}: {r['held']:.3f} of the old speed", highlight=False
                )
                if chosen.out is not None:
                    commits = {"new": commit_of(ROOT), "old": commit_of(older)}
                    stored = {"machine": hardware(), "commits": commits, "results": results}
                    chosen.out.write_text(json.dumps(stored, indent=1), encoding="utf-8")
    print(summary(results))
    slower = [r["name"] for r in results if r["held"] < chosen.least]
    if slower:
        console.print(f"below {chosen.least:g} of the old speed: {', '.join(slower)}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
