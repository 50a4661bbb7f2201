"""ReBRAC, TD3+BC, CQL and IQL on the locomotion data of the suite `zoo`, beside d3rlpy's.

Ours learn with five seeds in one batched run on a GPU; the last policies are evaluated from many
start states, because single policies of these algorithms scatter. d3rlpy's learn one seed each on
the same device, and fewer updates, after which ours are evaluated as well.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.field import UNFINISHED
from benchmarks.learning.shared import FINAL_EPISODES, peer_inputs
from benchmarks.learning.zoo import MODULE, SEEDS, TASKS, UPDATES, Entry, data_file, interval
from benchmarks.machine import has_gpu
from benchmarks.markdown import NO_VALUE, number, table
from benchmarks.peers.environment import D3RLPY_VERSION, SHARED
from benchmarks.speed.ratios import RatioTable, only
from benchmarks.speed.synthetic import SHAPE
from benchmarks.suites import Options, Section, Suite

NAME = "zoo_critics"
PEER, COMPARE = "benchmarks.peers.d3rlpy_job", "benchmarks.speed.compare_job"
PEERS = ("td3_bc", "rebrac", "cql")
PEER_UPDATES = 20_000
"""Of the comparison with d3rlpy, which makes 40 to 90 updates per second on an H200."""
KNOBS = {"ours": "our knobs", "own": "its defaults"}
"""What d3rlpy's algorithms are given."""
AVERAGE = {"policy_average": 5e-4}
BY_RETURN = {"return_temperature": 0.1}
SLOWER, QUICKER = {**BY_RETURN, "policy_lr": 1e-4}, {**BY_RETURN, "policy_lr": 1e-3}
STEADY = {**SLOWER, **AVERAGE}
ALIKE = {"return_temperature": 0.0, "policy_lr": 1e-3}
DEFAULTS_OF_CQL = "cql-by-return"
BRIEF = (
    Entry("brief-td3_bc-by-return", "td3_bc", "TD3+BC", BY_RETURN),
    Entry("brief-td3_bc", "td3_bc", "TD3+BC, `return_temperature` 0", {"return_temperature": 0.0}),
    Entry("brief-rebrac-by-return", "rebrac", "ReBRAC", SLOWER),
    Entry("brief-cql-by-return", "cql", "CQL", BY_RETURN),
)
"""Ours beside d3rlpy's; the first of an algorithm has its defaults, written out because earlier
versions had others."""
ENTRIES = (
    Entry("bc", "bc", "BC", {}),
    Entry("iql", "iql", "IQL", {}),
    Entry("iql-average", "iql", "IQL, `policy_average` 5e-4", AVERAGE),
    Entry("iql-by-return", "iql", "IQL, `return_temperature` 0.1", BY_RETURN),
    Entry("iql-by-return-slower", "iql", "the same, `policy_lr` 1e-4", SLOWER),
    Entry("iql-by-return-average", "iql", "the same, `policy_average` 5e-4", STEADY),
    Entry("td3_bc-by-return", "td3_bc", "TD3+BC", BY_RETURN),  # as default, see ReBRAC
    Entry("td3_bc", "td3_bc", "TD3+BC, `return_temperature` 0", {"return_temperature": 0.0}),
    Entry("rebrac", "rebrac", "ReBRAC", SLOWER),  # as default, which older versions had not
    Entry("rebrac-quick", "rebrac", "ReBRAC, `policy_lr` 1e-3", QUICKER),
    Entry("rebrac-alike", "rebrac", "ReBRAC, `return_temperature` 0", ALIKE),
    Entry(DEFAULTS_OF_CQL, "cql", "CQL", BY_RETURN),  # as default
    Entry("cql-alike", "cql", "CQL, `return_temperature` 0", {"return_temperature": 0.0}),
)
SCALED = ("bc", "iql")
"""Their knobs are for returns in a range of 1,000; the others have none that rewards scale."""
LEARNS = {"hopper": 3_000.0, "halfcheetah": 6_500.0}
"""What ReBRAC is to reach."""
OVER_BC = 1.2
"""What CQL is to reach, in returns of BC."""
TIMES_FASTER = 15.0
"""Updates per second of one seed, in those of d3rlpy on the same GPU."""


def zoo_critics_jobs(options: Options) -> list[Job]:
    jobs = []
    for task in TASKS:
        jobs += [_job(options, entry, task) for entry in ENTRIES]
        jobs += [_job(options, entry, task, PEER_UPDATES, "auto") for entry in BRIEF]
        for algo in PEERS:
            jobs += [_peer_job(options, algo, task, knobs) for knobs in KNOBS]
    return [*jobs, *(_speed_job(options, algo) for algo in PEERS)]


def _job(
    options: Options, entry: Entry, task: str, updates: int = UPDATES, device: str = "cuda"
) -> Job:
    updates = 200 if options.quick else updates
    rewards = {"rewards": {"return_range": 1_000.0}} if entry.algo in SCALED else {}
    config = {
        **({"algo_kwargs": entry.knobs} if entry.knobs else {}),
        "algo": entry.algo,
        "env_id": TASKS[task][0],
        "dataset": {"kind": "npz", "normalize_observations": True, **rewards},
        "total_updates": updates,
        "eval_interval": updates,
        "eval_episodes": 2 if options.quick else FINAL_EPISODES,
        "keep_best": False,
        "tensorboard": False,
        "device": device,
    }
    spec = {"config": config, "seeds": list(SEEDS)}
    cost = 240 if entry.algo in ("cql", "rebrac") else 120
    gpu = device == "cuda" or has_gpu()
    more: dict[str, Any] = {"cost": cost, "gpu": gpu, "timeout": 7_200.0}
    return Job(NAME, f"{entry.job}-{task}", 0, MODULE, spec, data_file(task), **more)


def _peer_job(options: Options, algo: str, task: str, knobs: str) -> Job:
    from rl_training.experiment.registry import algorithm_class

    updates = 200 if options.quick else PEER_UPDATES
    ours = algorithm_class(algo).Params().model_dump(mode="json") if knobs == "ours" else None
    spec = {
        "d3rlpy": D3RLPY_VERSION,
        "algo": algo,
        "env_id": TASKS[task][0],
        "knobs": ours,
        "updates": updates,
        "eval_interval": 0,
        "standardize": True,
        "device": "cuda:0",
    }
    name = f"d3rlpy-{algo}-{knobs}-{task}"
    more = {"peer": SHARED, "python": SHARED.python, "cost": 600.0, "timeout": 7_200.0}
    job = Job(NAME, name, 0, PEER, spec, gpu=True, **more)  # type: ignore[arg-type]
    folder = (options.scratch if options.quick else UNFINISHED) / NAME / job.key
    inputs = {"data": data_file(task)["path"], **peer_inputs(options, 2)}
    return replace(job, inputs={**inputs, "folder": str(folder), "minutes": options.minutes})


def _speed_job(options: Options, algo: str) -> Job:
    """Updates of one seed, in alternation with d3rlpy's."""
    spec = {
        "d3rlpy": D3RLPY_VERSION,
        "algo": algo,
        "shape": {**SHAPE, "rows": 4_000} if options.quick else SHAPE,
        "knobs": {},
        "peer": True,
        "device": "cuda:0",
        "rounds": 2 if options.quick else 5,
        "turn_seconds": 0.1 if options.quick else 1.5,
    }
    return Job(NAME, f"speed-{algo}", 0, COMPARE, spec, peer=SHARED, gpu=True, cost=60)


# --- report ----------------------------------------------------------------------------------


def zoo_critics_report(records: Records, figures: Path) -> Section:
    rows, verdicts = [], []
    for task in TASKS:
        last = {entry.job: _last(records, f"{entry.job}-{task}") for entry in ENTRIES}
        cloned = last["bc"]
        for entry in ENTRIES:
            found, gate = last[entry.job], NO_VALUE
            least = LEARNS[task] if entry.job == "rebrac" else None
            if entry.job == DEFAULTS_OF_CQL and cloned:
                least = OVER_BC * sum(cloned) / len(cloned)
            if least is not None:
                verdict = gates.at_least(f"{entry.label} on {task}", found, least)
                verdicts.append(verdict)
                gate = verdict.text
            record = only(records, f"{entry.job}-{task}")
            r: dict[str, Any] = record.result if record else {}
            shown = interval(r["last"]["mean"]) if r else NO_VALUE
            seconds = r["seconds"] if r else None
            rate = len(SEEDS) * UPDATES / seconds if seconds else None
            rows.append([task, entry.label, shown, number(seconds), number(rate), gate])
    beside = _beside(records)
    speed = RatioTable("d3rlpy")
    names = {entry.algo: entry.label for entry in reversed(BRIEF)}
    for algo in PEERS:
        speed.add(records, f"speed-{algo}", names[algo], TIMES_FASTER)
    compared = speed.section()
    header = ("data", "algorithm", "last policy", "seconds", "updates/s", "gate")
    text = (
        f"{UPDATES:,} updates, default knobs unless stated, standardised observations; the mean "
        f"return of the last policy over {FINAL_EPISODES} start states, with 95% bootstrap "
        f"intervals over {len(SEEDS)} seeds, which learn in one batched run. Updates per "
        "second are of all seeds together, evaluations included; runs share the card. Gates: "
        f"ReBRAC {' and '.join(f'{value:,.0f}' for value in LEARNS.values())}, CQL "
        f"{OVER_BC:g} times BC."
    )
    alternately = (
        "Speed of one seed beside d3rlpy's on the same card, alternately, with default knobs and "
        f"{SHAPE['rows']:,} rows of {SHAPE['obs_dim']} observations and {SHAPE['action_dim']} "
        "actions (other runs may have shared the card, which slows ours more than d3rlpy's):"
    )
    parts = (text, table(header, rows), beside.markdown, alternately, compared.markdown)
    short = f"{beside.short} Updates on one GPU, in multiples of d3rlpy's speed: {compared.short}."
    return Section(
        "\n\n".join(parts), (*verdicts, *beside.verdicts, *compared.verdicts), short.strip()
    )


def _beside(records: Records) -> Section:
    """Ours and d3rlpy's after equally many updates."""
    rows, verdicts, returns = [], [], []
    for task in TASKS:
        for entry in BRIEF:
            job = f"{entry.job}-{task}"
            own = only(records, job)
            cells, best = [], []
            for knobs in KNOBS:
                record = only(records, f"d3rlpy-{entry.algo}-{knobs}-{task}")
                r: dict[str, Any] = record.result if record else {}
                cells.append(number(r.get("return_mean")))
                best += [r["return_mean"]] if r else []
            ours = _last(records, job) if len(best) == len(KNOBS) else []
            least = max(best, default=0.0)
            said = NO_VALUE
            if "by-return" in entry.job:
                verdict = gates.at_least(f"{entry.label} on {task} beside d3rlpy's", ours, least)
                verdicts.append(verdict)
                said = verdict.text
                if ours:
                    mean = sum(ours) / len(ours)
                    returns.append(f"{entry.label} on {task} {mean:,.0f} ({least:,.0f})")
            shown = interval(own.result["last"]["mean"]) if own else NO_VALUE
            rows.append([task, entry.label, shown, *cells, said])
    text = (
        f"After {PEER_UPDATES:,} updates, beside d3rlpy {D3RLPY_VERSION} on the same data, "
        f"observations standardised in both; last policies over {FINAL_EPISODES} start states, "
        f"ours of {len(SEEDS)} seeds with default knobs unless stated, d3rlpy's of one seed, with "
        "our knobs by meaning and with its own defaults. The gate is the better of its two.\n\n"
    )
    heads = ("data", "algorithm", "ours", *(f"d3rlpy, {knobs}" for knobs in KNOBS.values()), "")
    short = (
        f"Returns from logs of several policies after {PEER_UPDATES:,} updates, and in brackets "
        f"the better of two d3rlpy runs: {', '.join(returns)}."
    )
    return Section(text + table(heads, rows), tuple(verdicts), short if returns else "")


def _last(records: Records, job: str) -> list[float]:
    """Returns of the last policies, by seed."""
    record = only(records, job)
    return list(record.result["last"]["scores"]) if record else []


SUITE = Suite(NAME, "Critics on mixed locomotion data", zoo_critics_jobs, zoo_critics_report)
