"""Speed of offline updates on one CPU core, beside d3rlpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.markdown import NO_VALUE, table
from benchmarks.peers.environment import D3RLPY_VERSION, SHARED
from benchmarks.speed.ratios import RatioTable, load_note, only
from benchmarks.speed.synthetic import SHAPE
from benchmarks.suites import Options, Section, Suite

NAME = "speed"
COMPARE, LATENCY = "benchmarks.speed.compare_job", "benchmarks.speed.latency_job"

SINCE_THE_FIRST = ("bc", "iql", "awac", "crr", "cql")
"""Algorithms that every version of the package has."""
WITH_PEER = (*SINCE_THE_FIRST, "td3_bc", "rebrac")
OURS_ALONE = ("awr", "marwil")
LABELS = {"td3_bc": "TD3+BC", "rebrac": "ReBRAC"}
PREDICTING = ("bc", "iql")
LARGEST, LEAST_SHARE = "cql", 0.6
KNOBS: dict[str, Any] = {"hidden_sizes": [256, 256], "batch_size": 256}

TIMES_FASTER, PREDICT_RATIO, IMPORT_SECONDS = 2.0, 2.0, 0.3
ROUNDS, TURN_SECONDS = 9, 1.5
PREDICT_CALLS, IMPORT_REPEATS = 20_000, 11


def speed_jobs(options: Options) -> list[Job]:
    """One job per algorithm, and the two waits; seeds play no part."""
    shape = {**SHAPE, "rows": 4_000} if options.quick else SHAPE
    pace = {
        "rounds": 2 if options.quick else ROUNDS,
        "turn_seconds": 0.1 if options.quick else TURN_SECONDS,
    }
    jobs = []
    for algo in (*WITH_PEER, *OURS_ALONE):
        peer = algo in WITH_PEER
        spec = {"algo": algo, "shape": shape, "knobs": KNOBS, "peer": peer, **pace}
        if peer:
            spec["d3rlpy"] = D3RLPY_VERSION
        cost = (2 if peer else 1) * (6 + pace["rounds"] * pace["turn_seconds"])
        jobs.append(Job(NAME, algo, 0, COMPARE, spec, peer=SHARED if peer else None, cost=cost))
    calls = 500 if options.quick else PREDICT_CALLS
    for algo in PREDICTING:
        spec = {"what": "predict", "algo": algo, "shape": shape, "knobs": KNOBS, "calls": calls}
        jobs.append(Job(NAME, f"predict-{algo}", 0, LATENCY, spec, cost=8))
    repeats = 2 if options.quick else IMPORT_REPEATS
    jobs.append(Job(NAME, "import", 0, LATENCY, {"what": "import", "repeats": repeats}, cost=5))
    updates = 3 if options.quick else 60
    spec = {"what": "products", "algo": LARGEST, "shape": shape, "knobs": KNOBS, "updates": updates}
    jobs.append(Job(NAME, f"products-{LARGEST}", 0, LATENCY, spec, cost=15))
    return jobs


# --- report ----------------------------------------------------------------------------------


def speed_report(records: Records, _: Path) -> Section:
    updates, waits = _updates(records), _waits(records)
    size = f"obs {SHAPE['obs_dim']}, act {SHAPE['action_dim']}, {SHAPE['rows']:,} rows"
    text = (
        f"Updates per second on one thread, sampling included: {size}, hidden layers 256×2, batch "
        f"256. Ours is the loop that `learn` runs; d3rlpy {D3RLPY_VERSION} samples and updates as "
        "its `fit` does, without its logging and progress bar, with twin critics and knobs of "
        f"equal meaning. The two take turns of about {TURN_SECONDS} s, only one runs at a time; "
        "the ratio is the median over rounds, with the lowest and the highest round beside it, and "
        "the same ratio in CPU time, which a busy machine disturbs less."
    )
    limits = (
        "What limits the ratio of CQL: both libraries have to compute the same matrix products, "
        "which take most of the time. Its critics see 31 actions per state, 6.6 GFLOP per update, "
        "about 39 ms of the 62 ms it takes at the 170 GFLOP/s this core reaches in float32; with "
        "d3rlpy at about 80 ms, twice its speed would need less than the products alone. Going "
        "through the samples one by one, so that they stay in the cache, with the states' share of "
        "the first layer computed once, was tried and gained nothing. CRR lies "
        "between: before whole updates were recorded and compiled it was measured at 1.86 and 1.94."
    )
    parts = (text, updates.markdown, waits.markdown, limits, load_note(records))
    short = f"Updates from data on one core, in multiples of d3rlpy's speed: {updates.short}."
    return Section("\n\n".join(parts), (*updates.verdicts, *waits.verdicts), short)


def _updates(records: Records) -> Section:
    ratios = RatioTable("d3rlpy")
    for algo in (*WITH_PEER, *OURS_ALONE):
        ratios.add(
            records,
            algo,
            LABELS.get(algo, algo.upper()),
            TIMES_FASTER if algo in WITH_PEER else None,
        )
    return ratios.section()


def _waits(records: Records) -> Section:
    rows, verdicts = [], []
    for algo in PREDICTING:
        record = only(records, f"predict-{algo}")
        r = record.result if record else {}
        name = f"predict ({algo.upper()}) over the bare network's time"
        verdict = gates.at_most(name, [r["ratio"]] if r else [], PREDICT_RATIO)
        verdicts.append(verdict)
        bare = min(r["bare_vector"], r["bare_batch"]) if r else None
        numbers = f"{r['predict']:.1f} µs against {bare:.1f} µs" if r else NO_VALUE
        ratio = f"{r['ratio']:.2f} times" if r else NO_VALUE
        what = f"`predict` of one observation, {algo.upper()}"
        rows.append([what, numbers, ratio, f"at most {PREDICT_RATIO:g} times", verdict.text])
    record = only(records, "import")
    seconds = [float(record.result["seconds"])] if record else []
    verdict = gates.at_most("import seconds", seconds, IMPORT_SECONDS)
    verdicts.append(verdict)
    torch = "" if record is None else "with" if record.result["loads_torch"] else "without"
    what = f"`import rl_training` ({torch} torch)" if torch else "`import rl_training`"
    numbers = f"{seconds[0] * 1e3:.0f} ms" if seconds else NO_VALUE
    rows.append([what, numbers, NO_VALUE, f"at most {IMPORT_SECONDS:g} s", verdict.text])
    record = only(records, f"products-{LARGEST}")
    share = [float(record.result["share"])] if record else []
    verdict = gates.at_least(f"share of matrix products in {LARGEST}", share, LEAST_SHARE)
    verdicts.append(verdict)
    numbers = f"{share[0]:.0%}" if share else NO_VALUE
    what = f"share of matrix products in an update of {LARGEST.upper()}"
    rows.append([what, numbers, NO_VALUE, f"at least {LEAST_SHARE:.0%}", verdict.text])
    return Section(table(("what", "median", "ratio", "gate", ""), rows), tuple(verdicts))


SUITE = Suite(NAME, "Speed on one CPU core", speed_jobs, speed_report, alone=True)
