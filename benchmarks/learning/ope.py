"""What estimates of a policy's value are worth.

Where the value is exact (ICU-Sepsis; needs the extra `icu-sepsis`): errors at 10,000 episodes,
the ranking of twelve policies, how often intervals at 1,000 episodes hold the truth, and what
abstaining saves. In simulators: ten candidates each, beside d3rlpy's fitted Q evaluation. The
data of the zoo are named by `RL_TRAINING_BENCHMARK_DATA`; without them their jobs are left out.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Job
from benchmarks.learning.discrete import KNOBS, SCALE
from benchmarks.learning.ope_policies import FITTING
from benchmarks.learning.ope_report import NAME, SHARES, SOFT, TASKS, ope_report
from benchmarks.learning.zoo import data_file
from benchmarks.peers.environment import D3RLPY_VERSION, SHARED
from benchmarks.suites import Options, Suite

ICU, TASK, SUPPORT, ABSTAINING, COST, WEIGHTS, COUNTED = (
    f"benchmarks.learning.ope_{name}job"
    for name in ("", "task_", "support_", "abstaining_", "cost_", "weights_", "counted_")
)
SEEDS = (0, 1, 2, 3, 4)
REPLICATIONS, DRAWS = 100, 20
LOGS, FIRST_LOG = 40, 1_000
"""Of tables; none of them is one that networks were tried on."""
RANKED = tuple(round(float(x), 3) for x in np.linspace(0.0, 1.0, 12))
ESTIMATORS = ("fqe", "mb", "wdr", "wdr_full", "dr", "wis", "pdwis", "is", "pdis")
PEER_UPDATES = 10_000
CANDIDATES = {
    "pendulum": (
        ("bc", 50), ("bc", 200), ("bc", 2_000), ("marwil", 1_000), ("crr", 200), ("crr", 1_000),
        ("crr", 5_000), ("iql", 500), ("iql", 5_000), ("awac", 3_000),
    ),
    "hopper": (
        ("bc", 200), ("bc", 1_000), ("bc", 5_000), ("marwil", 3_000), ("crr", 1_000),
        ("crr", 10_000), ("iql", 2_000), ("iql", 10_000), ("awac", 10_000), ("td3_bc", 5_000),
    ),
}  # fmt: skip
"""Algorithm and updates."""
BELOW = 0.05


def _icu(options: Options, name: str, seed: int, cost: float, **values: Any) -> Job:
    spec: dict[str, Any] = {
        "episodes": 10_000, "updates": 2_000, "replicates": 4, "hidden_sizes": [128, 512],
        "estimators": list(ESTIMATORS), "peer": False, "fitting": FITTING, **values,
    }  # fmt: skip
    if options.quick:
        spec |= {"episodes": 60, "updates": 20, "replicates": 2, "fitting": 100}
    if not spec["peer"]:
        return Job(NAME, name, seed, ICU, spec, cost=cost)
    return Job(NAME, name, seed, ICU, {**spec, "d3rlpy": D3RLPY_VERSION}, peer=SHARED, cost=cost)


def icu_jobs(options: Options) -> list[Job]:
    seeds = options.seeds if options.quick else SEEDS
    jobs = []
    for seed in seeds:
        for share in SHARES:
            jobs.append(_icu(options, f"error-{share:g}", seed, 240, shares=[share]))
            peer = {"peer": True, "updates": PEER_UPDATES, "shares": [share]}
            jobs.append(_icu(options, f"peer-{share:g}", seed, 90, **peer))
    ranking: dict[str, Any] = {"estimators": ["fqe"], "replicates": 2}
    jobs += [_icu(options, f"rank-{x:g}", 0, 150, shares=[x], **ranking) for x in RANKED]
    coverage = {
        "episodes": 1_000, "shares": list(SOFT), "updates": 500, "replicates": 16,
        "hidden_sizes": [128, 256], "fitting": 600,
    }  # fmt: skip
    replications = options.seeds if options.quick else range(100, 100 + REPLICATIONS)
    jobs += [_icu(options, "coverage", seed, 100, **coverage) for seed in replications]
    for share in SOFT:
        for episodes in (1_000, 10_000):
            tables = {"share": share, "episodes": episodes, "logs": LOGS}
            if options.quick:
                tables |= {"episodes": 60, "logs": 2}
            name = f"tables-{share:g}-{episodes}"
            jobs.append(Job(NAME, name, FIRST_LOG, WEIGHTS, tables, cost=60))
    for share in SHARES:
        spec = {"share": share, "episodes": 1_000, "logs": REPLICATIONS}
        if options.quick:
            spec |= {"episodes": 60, "logs": 2}
        jobs.append(Job(NAME, f"counted-{share:g}", FIRST_LOG, COUNTED, spec, cost=90))
    draws = options.seeds if options.quick else range(200, 200 + DRAWS)
    return [*jobs, *(_abstaining(options, seed) for seed in draws)]


def _abstaining(options: Options, seed: int) -> Job:
    config = {
        "algo": "iql",
        "dataset": {
            "kind": "npz", "normalize_observations": True, "rewards": {"scale": SCALE},
        },
        "total_updates": 20 if options.quick else 1_500,
        "algo_kwargs": KNOBS["iql"],
        "tensorboard": False,
        "device": "cpu",
        "threads": 1,
    }  # fmt: skip
    episodes = 60 if options.quick else 1_000
    spec = {"config": config, "episodes": episodes, "below": BELOW}
    return Job(NAME, "abstaining", seed, ABSTAINING, spec, cost=60)


def task_jobs(options: Options) -> list[Job]:
    jobs = []
    for task, (env_id, data, gamma) in TASKS.items():
        inputs = data_file(task) if task == "hopper" else {}
        if task == "hopper" and not Path(inputs["path"]).is_file():
            continue
        for algo, training in CANDIDATES[task][: 1 if options.quick else None]:
            spec = {
                "env_id": env_id, "data": data, "algo": algo, "gamma": gamma,
                "training": 20 if options.quick else training,
                "updates": 20 if options.quick else 2_000,
                "peer_updates": 20 if options.quick else PEER_UPDATES,
                "truth_episodes": 2 if options.quick else 30,
                "replicates": 2, "estimators": ["fqe", "mb"], "d3rlpy": D3RLPY_VERSION,
            }  # fmt: skip
            name = f"{task}-{algo}-{training}"
            jobs.append(Job(NAME, name, 0, TASK, spec, inputs, cost=300))
    return jobs


def other_jobs(options: Options) -> list[Job]:
    jobs = []
    for task in ("hopper", "halfcheetah"):
        inputs = data_file(task)
        if Path(inputs["path"]).is_file():
            seeds = options.seeds if options.quick else SEEDS
            spec = {"task": task}
            jobs += [Job(NAME, f"support-{task}", s, SUPPORT, spec, inputs, cost=90) for s in seeds]
    for device in ("cpu", "cuda"):
        cost = {
            "device": device, "replicates": [1, 32], "updates": 10 if options.quick else 300,
        }  # fmt: skip
        gpu = device == "cuda"
        jobs.append(Job(NAME, f"cost-{device}", 0, COST, cost, gpu=gpu, cost=120))
    return jobs


def ope_jobs(options: Options) -> list[Job]:
    exact = [] if find_spec("icu_sepsis") is None else icu_jobs(options)
    return [*exact, *task_jobs(options), *other_jobs(options)]


SUITE = Suite(NAME, "Off-policy evaluation", ope_jobs, ope_report)
