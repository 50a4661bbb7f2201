"""Critics on Discrete actions: a log of clinicians whose value is exact, and mixed CartPole data.

ICU-Sepsis needs the extra `icu-sepsis`; its decision process is known, so that the value of a
greedy policy is computed and not estimated.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.icu_sepsis_mdp import assets, clinicians_log, load_process
from benchmarks.learning.shared import FINAL_EPISODES, TRAIN, details, evaluation, returns
from benchmarks.markdown import NO_VALUE, SEED_HEADER, mean, number, seed_columns, table
from benchmarks.peers.environment import D3RLPY_VERSION, SHARED
from benchmarks.suites import Options, Section, Suite

NAME = "discrete"
ICU = "benchmarks.learning.icu_sepsis_job"
TABLE = "benchmarks.learning.icu_sepsis_table_job"
PEER = "benchmarks.peers.d3rlpy_discrete_job"
SEEDS = (0, 1, 2, 3, 4)
EPISODES, DATA_SEED, UPDATES, LONG = 10_000, 0, 1_500, 6_000
CRITICS = ("iql", "awac", "crr", "cql")
ALGORITHMS = ("bc", *CRITICS)
LEARNS, HOLDS, CLONES, SHUFFLED = 0.82, 0.785, 0.80, 0.79
BALANCES = 450.0
OPTIMUM = 0.875

SCALE = 10.0
"""Survival is paid 1, and the knobs below are for ten times that."""
SIZES = {"hidden_sizes": [64, 64]}
CRITIC = {**SIZES, "policy_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.02}
KNOBS: dict[str, dict[str, Any]] = {
    "bc": {**SIZES, "lr": 1e-3},
    "iql": {**CRITIC, "value_lr": 1e-3, "inverse_temperature": 30.0},
    "awac": {**CRITIC, "temperature": 0.2},
    "crr": {**CRITIC, "weight_type": "binary"},
    "cql": {**CRITIC, "min_q_weight": 0.3, "temperature_lr": 1e-2},
}
"""Chosen by some fifteen trial runs with seed 0, the exact value in view."""
STEADY = {"gamma": 1.0, "batch_size": 2_048, "policy_average": 2e-3}
LONGER: dict[str, dict[str, Any]] = {
    **{algo: {**KNOBS[algo], **STEADY} for algo in CRITICS},
    "cql": {**KNOBS["cql"], **STEADY, "min_q_weight": 0.1},
}
"""For more updates; chosen by some ten further trial runs of CQL and IQL with seed 0."""
BY_RETURN = {"iql": "IQL", "cql": "CQL", "bc": "BC"}
"""Also run with rows of better episodes drawn more often."""
RETURN_TEMPERATURE = 0.1


def discrete_jobs(options: Options) -> list[Job]:
    jobs = [
        _cartpole_job(options, seed, algo)
        for algo in (*CRITICS, "bc")
        for seed in (SEEDS if not options.quick else options.seeds)
    ]
    jobs += [
        _cartpole_job(options, seed, algo, by_return=True)
        for algo in BY_RETURN
        for seed in (SEEDS if not options.quick else options.seeds)
    ]
    if find_spec("icu_sepsis") is None:
        return jobs
    for seed in SEEDS if not options.quick else options.seeds:
        jobs += [_icu_job(options, seed, algo) for algo in ALGORITHMS]
        jobs += [_icu_job(options, seed, algo, "shuffled") for algo in CRITICS]
        jobs += [_icu_job(options, seed, algo, "longer") for algo in CRITICS]
        jobs += [_table_job(options, seed), _peer_job(options, seed)]
    return jobs


def _icu_job(options: Options, seed: int, algo: str, form: str = "") -> Job:
    rewards = {} if algo == "bc" else {"rewards": {"scale": SCALE}}
    longer = form == "longer"
    config = {
        "algo": algo,
        "dataset": {"kind": "npz", "normalize_observations": True, **rewards},
        "total_updates": 100 if options.quick else LONG if longer else UPDATES,
        "algo_kwargs": (LONGER if longer else KNOBS)[algo],
        **({"lr_schedule": {"kind": "cosine"}} if longer else {}),
        "tensorboard": False,
        "device": "cpu",
        "threads": 1,
    }
    spec = {
        "config": config,
        "shuffle_rewards": form == "shuffled",
        "episodes": 100 if options.quick else EPISODES,
        "data_seed": DATA_SEED,
    }
    name = f"icu-{algo}-{form}" if form else f"icu-{algo}"
    return Job(NAME, name, seed, ICU, spec, cost=150 if longer else 30)


def _table_job(options: Options, seed: int) -> Job:
    """The seed is that of the log: the first is the log that the algorithms learn from."""
    spec: dict[str, Any] = {
        "episodes": 100 if options.quick else EPISODES,
        "least": [1] if options.quick else [1, 3, 5, 10, 20, 40],
        "penalties": [0.0] if options.quick else [0.0, 0.1, 0.2, 0.3, 0.5, 1.0],
    }
    return Job(NAME, "icu-table", seed, TABLE, spec, cost=60)


def _peer_job(options: Options, seed: int) -> Job:
    episodes = 100 if options.quick else EPISODES
    data = options.scratch / f"icu-{episodes}.npz"
    if not data.is_file():
        arrays: dict[str, Any] = clinicians_log(load_process(), episodes, DATA_SEED)
        np.savez(data, **arrays)
    spec = {
        "d3rlpy": D3RLPY_VERSION,
        "updates": 100 if options.quick else UPDATES,
        "episodes": episodes,
        "data_seed": DATA_SEED,
    }
    inputs = {"data": str(data), "assets": str(assets())}
    return Job(NAME, "icu-d3rlpy-cql", seed, PEER, spec, inputs, SHARED, SHARED.python, 60)


def _cartpole_job(options: Options, seed: int, algo: str, *, by_return: bool = False) -> Job:
    from rl_training.experiment.config import load_config

    # cloning has no config of its own here: it takes CRR's budget and sizes
    values = load_config(f"{algo if algo in CRITICS else 'crr'}/cartpole").to_dict()
    if algo == "bc":
        sizes = values["algo_kwargs"]["hidden_sizes"]
        values |= {"algo": "bc", "algo_kwargs": {"hidden_sizes": sizes, "lr": 1e-3}}
    if by_return:
        values["algo_kwargs"] = {
            **values["algo_kwargs"], "return_temperature": RETURN_TEMPERATURE
        }  # fmt: skip
    del values["seed"], values["output_dir"]
    values |= {"device": "cpu", "threads": 1, "tensorboard": False}
    if options.quick:
        values |= {"total_updates": 100, "eval_interval": 100, "eval_episodes": 2}
    spec = {"config": values, **evaluation(options)}
    name = f"cartpole-{algo}-by-return" if by_return else f"cartpole-{algo}"
    return Job(NAME, name, seed, TRAIN, spec, cost=60)


# --- report ----------------------------------------------------------------------------------


def discrete_report(records: Records, figures: Path) -> Section:
    icu, cartpole = _icu(records), _cartpole(records)
    clinicians = mean(records.values("icu-bc", "clinicians"), 4)
    parts = [
        "### ICU-Sepsis, a log of clinicians\n\n"
        f"{EPISODES:,} episodes of the clinicians' policy, 47 features of a patient, 25 actions, 1 "
        f"for survival; {UPDATES:,} updates, standardised observations; the knobs were chosen by "
        f"some fifteen trial runs on these data. *longer*: {LONG:,} updates of larger batches with "
        "gamma 1, cosine rates and averaged policies. The exact value of the "
        f"policy's likeliest actions in the known process: the clinicians are worth {clinicians}, "
        f"the best policy {OPTIMUM:g}. *shuffled*: rewards of all rows permuted. d3rlpy's discrete "
        f"CQL has its defaults and standardised observations, for as many updates. *Table*: counts "
        "instead of networks, planned with pessimism, on this log (the first value) and four "
        "others; its two constants are the best of 36 by the exact value, which no learner sees."
        "\n\n" + icu.markdown,
        "### CartPole, mixed data\n\n"
        "50 balanced and 1,000 random episodes (`cartpole-mixed`), packaged configs "
        "`<algorithm>/cartpole`, whose knobs were chosen by trial runs on these data; mean return "
        f"of the last policy over the same {FINAL_EPISODES} "
        f"start states. *By return*: `return_temperature` {RETURN_TEMPERATURE:g}, so that "
        "rows of better episodes are drawn more often; cloning shows what that does without a "
        "critic.\n\n" + cartpole.markdown,
    ]
    return Section("\n\n".join(parts), (*icu.verdicts, *cartpole.verdicts))


def _icu(records: Records) -> Section:
    rows, verdicts = [], []

    def row(job: str, label: str, verdict: gates.Verdict | None) -> None:
        values = records.values(job, "value")
        seconds = mean(records.values(job, "train_seconds"))
        gate = verdict.gate.removeprefix(f"{job} ") if verdict else NO_VALUE
        rows.append(
            [label, *seed_columns(values, 4), seconds, gate, verdict.text if verdict else NO_VALUE]
        )
        if verdict:
            verdicts.append(verdict)

    row("icu-bc", "BC", gates.at_most("icu-bc", records.values("icu-bc", "value"), CLONES))
    means = []
    for form in ("", "longer"):
        for algo in CRITICS:
            job = f"icu-{algo}-{form}" if form else f"icu-{algo}"
            values = records.values(job, "value")
            means += [float(np.mean(values))] if values else []
            row(job, f"{algo.upper()} {form}".strip(), gates.at_least(job, values, HOLDS))
    for algo in CRITICS:
        job = f"icu-{algo}-shuffled"
        values = records.values(job, "value")
        row(job, f"{algo.upper()} shuffled", gates.at_most(job, values, SHUFFLED))
    row("icu-d3rlpy-cql", f"d3rlpy {D3RLPY_VERSION}, discrete CQL", None)
    row("icu-table", "Table", None)
    best = gates.at_least("best of the critics", [max(means)] if means else [], LEARNS)
    verdicts.append(best)
    header = ("algorithm", *SEED_HEADER, "seconds", "gate", "")
    text = f"{table(header, rows)}\n\nThe best of the critics: {number(max(means, default=0.0), 4)}"
    return Section(f"{text}; gate at least {LEARNS:g}: {best.text}.", tuple(verdicts))


def _cartpole(records: Records) -> Section:
    rows, verdicts = [], []
    shown = {f"cartpole-{algo}": algo.upper() for algo in (*CRITICS, "bc")}
    shown |= {f"cartpole-{algo}-by-return": f"{x}, by return" for algo, x in BY_RETURN.items()}
    for job, label in shown.items():
        values = returns(records, job)
        verdict = gates.at_least(job, values, BALANCES)
        cloned = label.startswith("BC")
        if not cloned:
            verdicts.append(verdict)
        cells = [*seed_columns(values), *details(records, job)]
        rows.append([label, *cells, NO_VALUE if cloned else verdict.text])
    header = ("algorithm", *SEED_HEADER, "best", "updates", "seconds", f"at least {BALANCES:g}")
    return Section(table(header, rows), tuple(verdicts))


SUITE = Suite(NAME, "Critics on Discrete actions", discrete_jobs, discrete_report)
