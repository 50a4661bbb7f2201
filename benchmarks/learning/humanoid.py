"""SAC with CrossQ's, SimBa's and SimbaV2's networks on Humanoid.

Needs a GPU; where there is none its jobs are left out.
"""

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
from benchmarks.markdown import NO_VALUE, SEED_HEADER, seed_columns, table
from benchmarks.suites import Options, Section, Suite

NAME = "humanoid"
STEPS, LEARNS = 200_000, 4_000.0
CONFIGS = {
    "crossq": ("sac/humanoid_crossq", 4_864.0),
    "simbav2": ("sac/humanoid_simbav2", 5_980.0),
    "simba": ("sac/humanoid_simba", None),
}
"""Configs and what is published for them at as many steps of Humanoid-v4, ten seeds."""
GATED = ("crossq", "simbav2")


def humanoid_jobs(options: Options) -> list[Job]:
    return [job for name in CONFIGS for job in seeded(options, _job, name)]


def _job(options: Options, seed: int, name: str) -> Job:
    quick = {"total_timesteps": 300, "eval_interval": 300, "eval_episodes": 1}
    small = {"learning_starts": 100, "buffer_capacity": 1_000}
    config = on_gpu(CONFIGS[name][0], options, {"eval_episodes": 5}, quick, small)
    spec: dict[str, Any] = {"config": config, **evaluation(options)}
    return Job(NAME, name, seed, TRAIN, spec, cost=500, timeout=3600.0, gpu=True)


def humanoid_report(records: Records, figures: Path) -> Section:
    rows, verdicts = [], []
    for name, (config, published) in CONFIGS.items():
        found = returns(records, name)
        gate = NO_VALUE
        if name in GATED:
            verdict = gates.at_least(f"{config} at {STEPS:,} steps", found, LEARNS)
            verdicts.append(verdict)
            gate = verdict.text
        known = NO_VALUE if published is None else f"{published:,.0f}"
        shown = details(records, name, "updates")
        rows.append([f"`{config}`", *seed_columns(found), *shown, known, gate])
    header = (
        "run",
        *SEED_HEADER,
        "best evaluation",
        "updates",
        "seconds",
        "published",
        f"gate: {LEARNS:,.0f}",
    )
    text = (
        f"Humanoid-v5 for {STEPS:,} environment steps, the packaged configs with their authors' "
        "knobs; mean return of the last policy over 50 start states. Published: SimbaV2's "
        "repository, ten seeds of Humanoid-v4; SAC with an MLP is at 994. Runs share the card."
    )
    labels = {name: config for name, (config, _) in CONFIGS.items()}
    picture = figure(figures / f"{NAME}.png", records, labels, "SAC on Humanoid-v5")
    parts = (text, picture, table(header, rows))
    return Section("\n\n".join(part for part in parts if part), tuple(verdicts))


SUITE = Suite(NAME, "Networks of SAC on Humanoid", humanoid_jobs, humanoid_report)
