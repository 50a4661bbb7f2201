"""MBPO on Hopper in the paper's setting. Needs a GPU; where there is none its jobs are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.shared import (
    TRAIN,
    details,
    evaluation,
    figure,
    on_gpu,
    returns,
    seeded,
)
from benchmarks.markdown import SEED_HEADER, seed_columns, table
from benchmarks.suites import Options, Section, Suite

NAME = "model_based_gpu"
JOB, CONFIG = "mbpo", "mbpo/hopper"
STEPS, LEARNS, PUBLISHED = 75_000, 2_500.0, 3_100.0


def gpu_jobs(options: Options) -> list[Job]:
    return seeded(options, _job, JOB)


def _job(options: Options, seed: int, name: str) -> Job:
    quick = {"total_timesteps": 500, "eval_interval": 250, "eval_episodes": 2}
    knobs = {"learning_starts": 200, "model_max_epochs": 2, "rollout_batch_size": 500}
    config = on_gpu(CONFIG, options, {"total_timesteps": STEPS}, quick, knobs)
    spec: dict[str, Any] = {"config": config, **evaluation(options)}
    return Job(NAME, name, seed, TRAIN, spec, cost=900, timeout=7200.0, gpu=True)


def gpu_report(records: Records, figures: Path) -> Section:
    found = returns(records, JOB)
    verdict = gates.at_least(f"{CONFIG} at {STEPS:,} real steps", found, LEARNS)
    row = [f"`{CONFIG}`", *seed_columns(found), *details(records, JOB, "env_steps"), verdict.text]
    header = (
        "run",
        *SEED_HEADER,
        "best evaluation",
        "env steps",
        "seconds",
        f"gate: {LEARNS:,.0f}",
    )
    text = (
        f"`{CONFIG}` for {STEPS:,} environment steps, twenty updates for each, the model fitted "
        f"anew every 250; the paper's curve is at about {PUBLISHED:,.0f} there (Hopper-v2). Mean "
        "return of the last policy over 50 start states; on the way evaluations fall back to about "
        "1,000 and rise again, as the curve shows. Runs may share the card."
    )
    picture = figure(figures / f"{NAME}.png", records, {JOB: "MBPO"}, "MBPO on Hopper-v5")
    parts = (text, picture, table(header, [row]))
    return Section("\n\n".join(part for part in parts if part), (verdict,))


SUITE = Suite(NAME, "Learned models on a GPU", gpu_jobs, gpu_report)
