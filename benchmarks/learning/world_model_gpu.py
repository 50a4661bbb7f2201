"""Dreamer on Atari Boxing within 100,000 frames. Needs a GPU; where there is none its jobs are
left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.shared import (
    TRAIN,
    details,
    figure,
    on_gpu,
    returns,
    seeded,
)
from benchmarks.markdown import SEED_HEADER, mean, seed_columns, table
from benchmarks.suites import Options, Section, Suite

NAME = "world_model_gpu"
CONFIG = "dreamer/boxing_atari"
JOBS: dict[str, dict[str, Any]] = {"boxing": {}, "boxing_bf16": {"precision": "bfloat16"}}
"""Knobs that differ from the packaged config."""
FRAMES, FRAMES_PER_STEP = 100_000, 4
BOXES, AUTHORS = 20.0, 34
EPISODES, EVAL_SEED = 10, 1000
ROLLOUT = "rollout/return_mean"


def gpu_jobs(options: Options) -> list[Job]:
    """Two seeds are enough of an hour's run."""
    fewer = options if len(options.seeds) <= 2 else _two_seeds(options)
    return [job for name in JOBS for job in seeded(fewer, _job, name)]


def _two_seeds(options: Options) -> Options:
    return Options(options.seeds[:2], options.quick, options.scratch)


def _job(options: Options, seed: int, name: str) -> Job:
    budget = {"total_timesteps": FRAMES // FRAMES_PER_STEP, "log_interval": 1_000}
    evaluations = {"eval_interval": 6_250, "eval_episodes": EPISODES}
    quick = {"total_timesteps": 1_100, "eval_interval": 0, "eval_episodes": 1}
    config = on_gpu(CONFIG, options, budget | evaluations, quick)
    config["algo_kwargs"] |= JOBS[name]
    spec: dict[str, Any] = {"config": config, "eval_seed": EVAL_SEED, "peaks": [ROLLOUT]}
    spec |= {"final_episodes": 1 if options.quick else EPISODES, "also_drawn": True}
    return Job(NAME, name, seed, TRAIN, spec, cost=1800, timeout=7200.0, gpu=True)


def gpu_report(records: Records, figures: Path) -> Section:
    verdicts, rows = [], []
    for job in JOBS:
        drawn = records.values(job, "drawn_return")
        verdicts.append(
            gates.every_seed_at_least(f"Dreamer on {job} by {FRAMES:,} frames", drawn, BOXES)
        )
        peaks = [float(record.result["peaks"][ROLLOUT]) for record in records.of(job)]
        rows.append(
            [
                job,
                *seed_columns(drawn, 1),
                *seed_columns(returns(records, job), 1)[:2],
                mean(peaks, 1),
                *details(records, job, "env_steps"),
            ]
        )
    likeliest = ("likeliest actions", "seeds")
    header = (
        "run",
        *SEED_HEADER,
        *likeliest,
        "best while learning",
        "best",
        "env steps",
        "seconds",
    )
    text = (
        f"`{CONFIG}` (size `12m`) for {FRAMES:,} frames of the emulator, a quarter of the Atari "
        f"100k budget. Mean return of the last policy over {EPISODES} games with drawn actions, "
        "which is how the authors play; beside it the same with the likeliest actions, as in the "
        f"curve, and the best mean of games while learning. The authors report {AUTHORS} over five "
        "seeds at this point, with a model of 200M parameters. Chance returns about 0. "
        "`boxing_bf16` is the same with `precision: bfloat16`. Runs may share the card."
    )
    parts = (
        text,
        figure(
            figures / f"{NAME}.png",
            records,
            {"boxing": "Dreamer", "boxing_bf16": "Dreamer in bfloat16"},
            "Atari Boxing",
            marks={"authors, 200m, at the end": AUTHORS},
        ),
        table(header, rows),
        gates.listing(verdicts),
    )
    return Section("\n\n".join(part for part in parts if part), tuple(verdicts))


SUITE = Suite(NAME, "World models on a GPU", gpu_jobs, gpu_report)
