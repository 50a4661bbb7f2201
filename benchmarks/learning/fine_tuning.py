"""Offline algorithms that go on in the environment, beside themselves without what they try there.

The pendulum is paid only for standing; thirty clumsy episodes are the data. Every run first learns
from them alone. Its twin takes the same environment steps and makes the same updates, but all of
them on the data, so that the environment teaches it nothing.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import gates
from benchmarks.jobs import Job, Records
from benchmarks.learning.offline_to_online import CLUMSY
from benchmarks.learning.shared import (
    FINAL_EPISODES,
    TRAIN,
    details,
    evaluation,
    figure,
    returns,
    seeded,
)
from benchmarks.markdown import SEED_HEADER, number, seed_columns, table
from benchmarks.suites import Options, Section, Suite

NAME = "fine_tuning"
SECONDS = {"awac": 40, "iql": 40, "cql": 80}
TWIN = "data_alone"


# --- jobs ------------------------------------------------------------------------------------


def fine_tuning_jobs(options: Options) -> list[Job]:
    return [
        job
        for algo in SECONDS
        for name in (algo, f"{algo}_{TWIN}")
        for job in seeded(options, _job, algo, name)
    ]


def _job(options: Options, seed: int, algo: str, name: str) -> Job:
    spec = {"config": _config(options, algo, name), **evaluation(options)}
    return Job(NAME, name, seed, TRAIN, spec, cost=SECONDS[algo])


def _config(options: Options, algo: str, name: str) -> dict[str, Any]:
    """What a run's config says beyond the defaults."""
    from rl_training.experiment.config import TrainConfig, load_config

    config = load_config(f"{algo}/sparse_pendulum")
    knobs = config.params.model_dump(mode="json", exclude_defaults=True)
    values: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=True)
    values |= {"device": "cpu", "threads": 1, "tensorboard": False, "keep_best": False}
    values |= {"checkpoint_interval": 0, "engine": "eager"}
    if name != algo:
        knobs["offline_batch_ratio"] = 1.0
    if options.quick:
        knobs |= {"learning_starts": 50, "offline_pretrain_updates": 50}
        values |= {"total_timesteps": 100, "eval_interval": 50, "eval_episodes": 2}
    values["algo_kwargs"] = knobs
    TrainConfig(**values)  # refused here rather than in a process of its own
    return {key: value for key, value in values.items() if key not in ("seed", "output_dir")}


# --- report ----------------------------------------------------------------------------------


def offline_part(records: Records, job: str) -> list[float]:
    """Mean return at the end of the pretraining, per seed."""
    found = []
    for record in records.of(job):
        pretrained = record.spec["config"]["algo_kwargs"]["offline_pretrain_updates"]
        curve = record.result["curve"]
        found.append(float(curve["return"][curve["env_steps"].index(pretrained)]))
    return found


def fine_tuning_report(records: Records, figures: Path) -> Section:
    jobs = [name for algo in SECONDS for name in (algo, f"{algo}_{TWIN}")]
    rows = [
        [
            name,
            number(fmean(before), 0) if (before := offline_part(records, name)) else "–",
            *seed_columns(returns(records, name)),
            *details(records, name, "env_steps")[1:],
        ]
        for name in jobs
    ]
    header = ("run", "after the data", *SEED_HEADER, "env steps", "seconds")
    verdicts = tuple(
        verdict
        for algo in SECONDS
        for verdict in (
            gates.better(
                f"{algo} above its offline part",
                returns(records, algo),
                offline_part(records, algo),
            ),
            gates.better(
                f"{algo} above the same updates on the data alone",
                returns(records, algo),
                returns(records, f"{algo}_{TWIN}"),
            ),
        )
    )
    labels = {
        name: name.removesuffix(f"_{TWIN}").upper() + (", data alone" if TWIN in name else "")
        for name in jobs
    }
    clock = "pretraining updates, then environment steps"
    text = (
        "The packaged configs `awac/sparse_pendulum`, `iql/sparse_pendulum` and "
        "`cql/sparse_pendulum`: 2,000 updates on thirty clumsy episodes, which return 58 on "
        "average, then 5,000 environment steps with one update each, half of whose rows are data. "
        f"*{TWIN}* takes the same steps and makes the same updates, but all of them on the data "
        "(`offline_batch_ratio: 1`). *after the data* is the evaluation at the end of the "
        "pretraining, over 10 episodes; the others are those of the last policy, deterministic, "
        f"over the same {FINAL_EPISODES} start states for every run."
    )
    parts = (
        text,
        figure(
            figures / f"{NAME}.png",
            records,
            labels,
            "Sparse pendulum, from data to trying",
            marks=CLUMSY,
            axis=clock,
        ),
        table(header, rows),
        gates.listing(verdicts),
    )
    return Section("\n\n".join(part for part in parts if part), verdicts)


SUITE = Suite(
    NAME, "Offline algorithms that go on in the environment", fine_tuning_jobs, fine_tuning_report
)
