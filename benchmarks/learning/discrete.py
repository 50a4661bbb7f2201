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
PEER = "benchmarks.peers.d3rlpy_discrete_job"
SEEDS = (0, 1, 2, 3, 4)
EPISODES, DATA_SEED, UPDATES = 10_000, 0, 1_500
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


def discrete_jobs(options: Options) -> list[Job]:
    jobs = [
        _cartpole_job(options, seed, algo)
        for algo in (*CRITICS, "bc")
        for seed in (SEEDS if not options.quick else options.seeds)
    ]
    if find_spec("icu_sepsis") is None:
        return jobs
    for seed in SEEDS if not options.quick else options.seeds:
        jobs += [_icu_job(options, seed, algo) for algo in ALGORITHMS]
        jobs += [_icu_job(options, seed, algo, "shuffled") for algo in CRITICS]
        jobs.append(_peer_job(options, seed))
    return jobs


def _icu_job(options: Options, seed: int, algo: str, twin: str = "") -> Job:
    rewards = {} if algo == "bc" else {"rewards": {"scale": SCALE}}
    config = {
        "algo": algo,
        "dataset": {"kind": "npz", "normalize_observations": True, **rewards},
        "total_updates": 100 if options.quick else UPDATES,
        "algo_kwargs": KNOBS[algo],
        "tensorboard": False,
        "device": "cpu",
        "threads": 1,
    }
    spec = {
        "config": config,
        "shuffle_rewards": twin == "shuffled",
        "episodes": 100 if options.quick else EPISODES,
        "data_seed": DATA_SEED,
    }
    return Job(NAME, f"icu-{algo}-{twin}" if twin else f"icu-{algo}", seed, ICU, spec, cost=90)


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


def _cartpole_job(options: Options, seed: int, algo: str) -> Job:
    from rl_training.experiment.config import load_config

    # cloning has no config of its own here: it takes CRR's budget and sizes
    values = load_config(f"{algo if algo in CRITICS else 'crr'}/cartpole").to_dict()
    if algo == "bc":
        sizes = values["algo_kwargs"]["hidden_sizes"]
        values |= {"algo": "bc", "algo_kwargs": {"hidden_sizes": sizes, "lr": 1e-3}}
    del values["seed"], values["output_dir"]
    values |= {"device": "cpu", "threads": 1, "tensorboard": False}
    if options.quick:
        values |= {"total_updates": 100, "eval_interval": 100, "eval_episodes": 2}
    spec = {"config": values, **evaluation(options)}
    return Job(NAME, f"cartpole-{algo}", seed, TRAIN, spec, cost=60)


# --- report ----------------------------------------------------------------------------------


def discrete_report(records: Records, figures: Path) -> Section:
    icu, cartpole = _icu(records), _cartpole(records)
    clinicians = mean(records.values("icu-bc", "clinicians"), 4)
    parts = [
        "### ICU-Sepsis, a log of clinicians\n\n"
        f"{EPISODES:,} episodes of the clinicians' policy, 47 features of a patient, 25 actions, 1 "
        f"for survival; {UPDATES:,} updates, standardised observations; the knobs were chosen by "
        "some fifteen trial runs on these data. The exact value of the "
        f"policy's likeliest actions in the known process: the clinicians are worth {clinicians}, "
        f"the best policy {OPTIMUM:g}. *shuffled*: rewards of all rows permuted. d3rlpy's discrete "
        f"CQL has its defaults and standardised observations, for as many updates.\n\n"
        + icu.markdown,
        "### CartPole, mixed data\n\n"
        "50 balanced and 1,000 random episodes (`cartpole-mixed`), packaged configs "
        f"`<algorithm>/cartpole`; mean return of the last policy over the same {FINAL_EPISODES} "
        "start states.\n\n" + cartpole.markdown,
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
    means = {}
    for algo in CRITICS:
        job = f"icu-{algo}"
        values = records.values(job, "value")
        means[algo] = float(np.mean(values)) if values else None
        row(job, algo.upper(), gates.at_least(job, values, HOLDS))
    for algo in CRITICS:
        job = f"icu-{algo}-shuffled"
        values = records.values(job, "value")
        row(job, f"{algo.upper()} shuffled", gates.at_most(job, values, SHUFFLED))
    row("icu-d3rlpy-cql", f"d3rlpy {D3RLPY_VERSION}, discrete CQL", None)
    found = [value for value in means.values() if value is not None]
    best = gates.at_least("best of the critics", [max(found)] if found else [], LEARNS)
    verdicts.append(best)
    header = ("algorithm", *SEED_HEADER, "seconds", "gate", "")
    text = f"{table(header, rows)}\n\nThe best of the critics: {number(max(found, default=0.0), 4)}"
    return Section(f"{text}; gate at least {LEARNS:g}: {best.text}.", tuple(verdicts))


def _cartpole(records: Records) -> Section:
    rows, verdicts = [], []
    for algo in (*CRITICS, "bc"):
        job = f"cartpole-{algo}"
        values = returns(records, job)
        verdict = gates.at_least(job, values, BALANCES)
        if algo != "bc":
            verdicts.append(verdict)
        cells = [*seed_columns(values), *details(records, job)]
        rows.append([algo.upper(), *cells, verdict.text if algo != "bc" else NO_VALUE])
    header = ("algorithm", *SEED_HEADER, "best", "updates", "seconds", f"at least {BALANCES:g}")
    return Section(table(header, rows), tuple(verdicts))


SUITE = Suite(NAME, "Critics on Discrete actions", discrete_jobs, discrete_report)
