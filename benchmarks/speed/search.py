"""Studies: killed workers, a whole tuning, what a sweep adds, and seeds in one run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records, digest
from benchmarks.markdown import table
from benchmarks.suites import Options, Section, Suite

NAME = "search"
MODULE = "benchmarks.speed.search_job"
ROUNDS, TRIALS, CORE_MINUTES, OVERHEAD = 10, 24, 20.0, 1.05
SEEDS, SEEDS_UPDATES = 16, 50_000
SMALL: dict[str, Any] = {
    "dataset": {"kind": "random", "steps": 400},
    "total_updates": 2000,
    "checkpoint_interval": 200,
    "eval_interval": 0,
    "eval_episodes": 1,
    "eval_max_steps": 5,
    "engine": "eager",
    "tensorboard": False,
    "algo_kwargs.hidden_sizes": [16],
    "algo_kwargs.batch_size": 16,
}


def search_jobs(options: Options) -> list[Job]:
    """Rounds of the kill are its seeds; the others have one."""
    kill = {
        "what": "kill",
        "config": "bc/pendulum",
        "keys": SMALL,
        "trials": 2,
        "kill_after": 8,
        "last": f"{SMALL['total_updates']:012d}",
    }
    tune = ["awr/pendulum", "--trials", str(TRIALS), "--seeds", "3", "--test-seeds", "5"]
    updates = 25_000
    rounds = ROUNDS
    if options.quick:
        rounds, updates = 1, 200
        tune = [*tune, "total_updates=60", "--trials", "2", "--seeds", "1", "--test-seeds", "1"]
    # its parts are timed; on the CPU also where there is a GPU: cores are what is counted
    tune += ["profile=true", "--workers", "2", "--threads", "1", "--device", "cpu"]
    # kept when the benchmark is interrupted: a study goes on
    folder = Path(tempfile.gettempdir()) / f"rl-training-benchmark-tune-{digest(tune)}"
    overhead = {
        "what": "overhead",
        "config": "awr/pendulum",
        "keys": {"total_updates": updates, "eval_interval": updates // 4, "device": "cpu"},
        "axis": ["algo_kwargs.temperature", [0.5, 1.0]],
    }
    together = {
        "what": "seeds",
        "config": "iql/pendulum",
        "keys": {
            "total_updates": 200 if options.quick else SEEDS_UPDATES,
            "eval_interval": 0,
            "checkpoint_interval": 0,
            "tensorboard": False,
            "device": "cuda",
        },
        "seeds": SEEDS,
    }
    return [
        *(Job(NAME, "kill", seed, MODULE, kill, cost=40.0) for seed in range(rounds)),
        Job(
            NAME,
            "tune",
            0,
            MODULE,
            {"what": "tune", "arguments": tune},
            inputs={"folder": str(folder)},
            cost=900.0,
            timeout=7200.0,
        ),
        Job(NAME, "overhead", 0, MODULE, overhead, cost=300.0),
        Job(NAME, "seeds", 0, MODULE, together, cost=240.0, gpu=True),
    ]


def search_report(records: Records, _: Path) -> Section:
    verdicts, rows = [], []

    def gate(what: str, values: list[float], bound: float, least: bool, shown: str) -> None:
        check = gates.at_least if least else gates.at_most
        verdict = check(what, values, bound)
        verdicts.append(verdict)
        side = "at least" if least else "at most"
        rows.append([what, shown if values else "–", f"{side} {bound:g}", verdict.text])

    kills = records.of("kill")
    right = [record for record in kills if _is_right(record.result)]
    count = [float(len(right))] if kills else []
    gate("studies that ended right after a kill", count, ROUNDS, True, f"{len(right)}")
    tuned = next(iter(records.of("tune")), None)
    result = tuned.result if tuned else {}
    minutes = records.values("tune", "core_minutes")
    gate("core-minutes of the tuning", minutes, CORE_MINUTES, False, f"{_first(minutes):.1f}")
    margin = records.values("tune", "margin")
    gate("winner − (defaults − interval)", margin, 0.0, True, f"{_first(margin):,.1f}")
    wall, cpu = (records.values("overhead", f"{what}_ratio") for what in ("wall", "cpu"))
    gate("wall time of a sweep ÷ by hand", wall, OVERHEAD, False, f"{_first(wall):.3f}")
    gate("CPU time of a sweep ÷ by hand", cpu, OVERHEAD, False, f"{_first(cpu):.3f}")
    text = [
        "**A killed worker.** Two processes work on one study of `tune`; the one that trains "
        f"trial 0 is killed with SIGKILL, {ROUNDS} times over, after one to eight checkpoints, in "
        "half of the rounds together with the process of the run. A study ends right if all "
        "trials asked for have ended, none is open in the journal, no process is left, the trial "
        "was taken over, and its parameters and optimisers equal those of an uninterrupted "
        "run bit for bit.",
        f"**A whole tuning.** `rl-training tune awr/pendulum --trials {TRIALS} --seeds 3 "
        "--test-seeds 5 --workers 2 --threads 1 --device cpu`; core-minutes are the processor time "
        "of all processes.",
        "**What a sweep adds.** A sweep of two runs of about a minute and the same two runs "
        "started by hand, one after the other, at the same time on one thread each, so that both "
        "see the same load.",
        f"**Seeds at once.** {SEEDS} seeds of `iql/pendulum` for {SEEDS_UPDATES:,} updates on one "
        "GPU, in one batched run and by as many processes at once, from the command to its end"
        + _seeds_sentence(records),
    ]
    if result:
        winner, defaults = (
            "{value:,.1f} [{low:,.1f}, {high:,.1f}]".format(**result[who])
            for who in ("winner", "defaults")
        )
        text[1] += (
            f" Of {result['trials']} trials {result['pruned']} were pruned and {result['failed']} "
            f"failed. Interquartile mean on five test seeds: winner {winner}, defaults {defaults}. "
            f"Verdict of the command: {result['verdict']}. Minutes of its runs, one thread each: "
            + ", ".join(f"{name} {minutes:.1f}" for name, minutes in result["parts"].items())
            + ". What is left of the core-minutes is the start of processes and the study itself."
        )
    header = ("what", "measured", "gate", "")
    return Section("\n\n".join((*text, table(header, rows))), tuple(verdicts))


def _seeds_sentence(records: Records) -> str:
    found = next(iter(records.of("seeds")), None)
    if found is None:
        return ": not measured."
    r = found.result
    return (
        f": {r['batched_wall']:,.0f} s in one run ({r['batched_cpu']:,.0f} s of processor time), "
        f"{r['processes_wall']:,.0f} s by processes ({r['processes_cpu']:,.0f} s), "
        f"{r['ratio']:.1f} times as long."
    )


def _is_right(result: dict[str, Any]) -> bool:
    ended = result["ended"] == result["trials"] and not result["open"]
    return bool(ended and not result["left_running"] and result["taken_over"] and result["equal"])


def _first(values: list[float]) -> float:
    return values[0] if values else float("nan")


SUITE = Suite(NAME, "Studies of many runs", search_jobs, search_report, alone=True)
