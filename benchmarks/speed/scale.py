"""Many machines: Ray nodes that are killed, large data sets, and what limits many workers."""

from __future__ import annotations

from pathlib import Path

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.markdown import table
from benchmarks.speed.search import ROUNDS, SMALL
from benchmarks.suites import Options, Section, Suite

NAME = "scale"
MODULE = "benchmarks.speed.scale_job"
COLLECTING = "benchmarks.speed.collect_job"
COSTS = {
    "process": "start of a process that trains one update, s",
    "ray_start": "start of a Ray cluster on this machine, s",
    "ray_first": "first Ray task, which starts a worker, s",
    "ray_task": "next Ray tasks, each, ms",
    "status": "status of a run, read by the study, µs",
    "claim_1": "a trial of `tune` claimed and ended by one process, ms",
    "claim_8": "the same by eight processes on one journal, for each trial, ms",
    "claim_late": "the same by one process in a journal of 500 trials, ms",
    "checkpoint": "a small checkpoint, written and flushed, ms",
    "run_files": "files of a finished run with two checkpoints",
    "collect": "steps collected by a small policy on Pendulum, one core, per second",
}


def scale_jobs(options: Options) -> list[Job]:
    rounds = 1 if options.quick else ROUNDS
    last = f"{SMALL['total_updates']:012d}"
    nodes = {"what": "nodes", "rounds": rounds, "keys": SMALL, "kill_after": 8, "last": last}
    limits = {"what": "limits", "keys": SMALL, "trials": 10 if options.quick else 500}
    million = 1_000 if options.quick else 1_000_000
    keys = {**SMALL, "total_updates": 300, "checkpoint_interval": 0, "eval_max_steps": 200}
    small = {"keys": keys, "steps": million, "shard": million // 20, "workers": [1, 2], "again": []}
    # by all cores there are, and three of its shards once more by a single process
    large = {**small, "steps": 10 * million, "workers": [0], "again": [199, 100, 0]}
    return [
        Job(NAME, "nodes", 0, MODULE, nodes, cost=600.0, timeout=3600.0),
        Job(NAME, "limits", 0, MODULE, limits, cost=200.0, timeout=1800.0),
        Job(NAME, "collect", 0, COLLECTING, small, cost=600.0),
        Job(NAME, "collect_large", 0, COLLECTING, large, cost=3600.0, timeout=14400.0),
    ]


def scale_report(records: Records, _: Path) -> Section:
    found = next(iter(records.of("nodes")), None)
    rounds = found.result["rounds"] if found else []
    right = [one for one in rounds if one["finished"] and one["lost"] and one["equal"]]
    verdict = gates.at_least(
        "runs that went on bit for bit after their Ray node was killed",
        [float(len(right))] if rounds else [],
        ROUNDS,
    )
    limits = next(iter(records.of("limits")), None)
    rows = [
        [text, "–" if limits is None else f"{limits.result[key]:,.3g}"]
        for key, text in COSTS.items()
    ]
    text = [
        "**A killed node.** A Ray cluster of a head and two nodes with one CPU each trains a run "
        "by `--launcher ray`; everything on the node that trains it is killed with SIGKILL after "
        f"one to eight checkpoints, {ROUNDS} times over. Parameters and optimisers equal those of "
        f"an uninterrupted run bit for bit in {len(right)} of {len(rounds)} rounds.",
        "**Collecting.** `rl-training data collect RUN --steps N --shard N/20` (of the larger set "
        "N/200) with a small policy on Pendulum, by several numbers of workers. The files are "
        "equal if they are the same byte for byte, whatever the number of workers; of the larger "
        "set, three shards that one process wrote once more, in another order.",
        collected(records),
        "**What limits many workers**, on a machine that was not idle:",
        table(("what", "measured"), rows),
    ]
    verdicts = [verdict]
    for name, what in (("collect", "1 million"), ("collect_large", "10 million")):
        equal = [float(record.result["equal"]) for record in records.of(name)]
        verdicts.append(gates.at_least(f"equal shards of {what} steps", equal, 1.0))
    return Section("\n\n".join(text), tuple(verdicts))


def collected(records: Records) -> str:
    """Rates of the data sets."""
    rows = [
        [
            f"{record.spec['steps']:,}",
            f"{run['workers']}",
            f"{run['steps_per_second']:,.0f}",
            f"{run['steps_per_core_second']:,.0f}",
            f"{run['wall_seconds'] / 60:.1f}",
            f"{run['bytes'] / 2**20:,.0f}",
            "yes" if record.result["equal"] else "**no**",
        ]
        for record in (*records.of("collect"), *records.of("collect_large"))
        for run in record.result["runs"]
    ]
    header = ("steps", "workers", "steps/s", "per core-second", "minutes", "MiB", "equal")
    return table(header, rows)


SUITE = Suite(NAME, "Many machines", scale_jobs, scale_report, alone=True)
