"""GAIL on Hopper and Walker2d from ten episodes of an expert."""

from __future__ import annotations

from typing import Any

from benchmarks.learning.field import Field, Run
from benchmarks.learning.field_mujoco import prior

EXPERTS = {"Hopper": 3_000.0, "Walker2d": 4_000.0}
"""Returns at which the SAC that gives the demonstrations is stopped."""
STEPS, SHARE = 500_000, 0.8
KNOBS: dict[str, Any] = {
    "generator": "sac",
    "demo_episodes": 10,
    "demo_subsample": 1,
    "batch_size": 256,
    "sac": {},
}


def _runs() -> list[Run]:
    runs = []
    for task, target in EXPERTS.items():
        shown = prior(f"{task}-v5", target, 0)
        del shown["steps"]
        shown["episodes"] = 10
        changes = {
            "env_id": f"{task}-v5",
            "total_timesteps": STEPS,
            "eval_interval": 25_000,
            "eval_episodes": 10,
        }
        for job, title, penalty, share in (
            (f"gail-{task}", "GAIL", 10.0, SHARE),
            (f"gail-{task}-free", "GAIL without gradient penalty", 0.0, None),
        ):
            knobs = {**KNOBS, "gradient_penalty": penalty}
            config = "gail/pendulum"
            runs.append(Run(job, title, task, config, changes, knobs, prior=shown, share=share))
    return runs


TEXT = (
    f"{STEPS:,} steps with SAC as the generator, from ten episodes of a SAC that was stopped at a "
    "return of 3,000 (Hopper) or 4,000 (Walker2d). Mean return of the last policy over 50 start "
    "states; the gate asks for 80 % of the demonstrations' mean return. The package `imitation` "
    "has no job for these tasks yet; RESULTS.md compares with it on a pole."
)
SUITE = Field(
    "field_imitation",
    "Imitation of walking experts",
    TEXT,
    _runs(),
    seeds=3,
    episodes=50,
).suite()
