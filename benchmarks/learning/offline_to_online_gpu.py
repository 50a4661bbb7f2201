"""Hopper from the data of our own half-trained SAC, in the paper's setting. Needs a GPU.

Where there is none its jobs are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.offline_to_online import Q_MEAN
from benchmarks.learning.shared import (
    TRAIN,
    details,
    evaluation,
    figure,
    on_gpu,
    returns,
    seeded,
)
from benchmarks.markdown import SEED_HEADER, number, seed_columns, table
from benchmarks.suites import Options, Section, Suite

NAME = "offline_to_online_gpu"
CONFIG = "rlpd/hopper"
LEARNS, TIMES_SAC, EARLY, LARGEST_Q = 2_500.0, 2.0, 20_000, 1_000.0
HALF_TRAINED = 1_500.0
"""Return at which the SAC that makes the data is stopped."""

PRIOR: dict[str, Any] = {
    "config": {
        "algo": "sac",
        "env_id": "Hopper-v5",
        "device": "cuda",
        "total_timesteps": 400_000,
        "eval_interval": 5_000,
        "early_stopping": {"target": HALF_TRAINED},
        "final_eval": False,
        "tensorboard": False,
        "algo_kwargs": {"learning_starts": 5_000, "buffer_capacity": 400_000},
    },
    "env_id": "Hopper-v5",
    "steps": 100_000,
}
SECONDS = {"rlpd": 300, "sac": 300}


def gpu_jobs(options: Options) -> list[Job]:
    return [job for name in SECONDS for job in seeded(options, _job, name)]


def _job(options: Options, seed: int, name: str) -> Job:
    spec: dict[str, Any] = {"config": _config(options, name), **evaluation(options)}
    spec["peaks"] = [Q_MEAN]
    if name == "rlpd":
        spec["prior"] = _quick_prior() if options.quick else PRIOR
    cost = SECONDS[name]
    return Job(NAME, name, seed, TRAIN, spec, cost=cost, timeout=7200.0, gpu=True)


def _quick_prior() -> dict[str, Any]:
    config = {**PRIOR["config"], "total_timesteps": 5_500}
    return {**PRIOR, "config": config, "steps": 1_000}


def _config(options: Options, name: str) -> dict[str, Any]:
    from rl_training.experiment.config import load_config

    quick = {"total_timesteps": 500, "eval_interval": 250, "eval_episodes": 2}
    quick_knobs = {"learning_starts": 200}
    config = on_gpu(CONFIG, options, {}, quick, quick_knobs)
    if name == "sac":
        written = load_config(CONFIG).algo_kwargs
        kept = ("learning_starts", "gradient_updates_per_step")
        knobs = {key: written[key] for key in kept}
        config |= {"algo": "sac", "algo_kwargs": knobs | (quick_knobs if options.quick else {})}
        del config["dataset"]
    return config


# --- report ----------------------------------------------------------------------------------


def at_step(records: Records, job: str, step: int) -> list[float]:
    """The evaluation at an environment step, per seed."""
    found = []
    for record in records.of(job):
        curve = record.result["curve"]
        found += [y for x, y in zip(curve["env_steps"], curve["return"], strict=True) if x == step]
    return found


def gpu_report(records: Records, figures: Path) -> Section:
    early = {name: at_step(records, name, EARLY) for name in SECONDS}
    peaks = [float(record.result["peaks"][Q_MEAN]) for record in records.of("rlpd")]
    best = records.values("rlpd", "best_eval")
    verdicts = (
        gates.at_least("rlpd/hopper, best evaluation within the budget", best, LEARNS),
        gates.times(f"rlpd/hopper at {EARLY:,} steps", early["rlpd"], early["sac"], TIMES_SAC),
        gates.every_seed_at_most("rlpd/hopper mean Q throughout", peaks, LARGEST_Q),
    )
    rows = [
        [
            name,
            *seed_columns(returns(records, name)),
            *seed_columns(records.values(name, "best_eval"))[:2],
            *seed_columns(early[name])[:2],
            *details(records, name, "env_steps")[1:],
        ]
        for name in SECONDS
    ]
    compared = ("best evaluation", "seeds", f"at {EARLY:,}", "seeds")
    header = ("run", *SEED_HEADER, *compared, "env steps", "seconds")
    prior = next((r.result["prior"] for r in records.of("rlpd")), None)
    quality = f" (mean return {prior['return_mean']:,.0f})" if prior else ""
    largest = number(max(peaks)) if peaks else "–"
    text = (
        f"`rlpd/hopper` on {PRIOR['steps']:,} steps of a SAC that was stopped at a return of "
        f"{HALF_TRAINED:,.0f}{quality}, beside SAC with as many updates per step and no data. "
        f"The largest mean Q of any seed at any log was {largest}. The first columns are the last "
        "policies': on Hopper single evaluations fall back to a return of about 1,000 and recover, "
        "so what is gated is the best of the evaluations, every 2,500 steps. Results before "
        "November 17, 2026 do not have the lengths of episodes; docs/algorithms/rlpd.md says why "
        "these are probably falls after 300 steps and not hoppers that stand still."
    )
    labels = {"rlpd": "RLPD, from prior data", "sac": "SAC, from nothing"}
    marks = {"mean return of the prior data": prior["return_mean"]} if prior else {}
    parts = (
        text,
        figure(figures / f"{NAME}.png", records, labels, "Hopper-v5 from prior data", marks=marks),
        table(header, rows),
        gates.listing(verdicts),
    )
    return Section("\n\n".join(part for part in parts if part), verdicts)


SUITE = Suite(NAME, "From offline to online on a GPU", gpu_jobs, gpu_report)
