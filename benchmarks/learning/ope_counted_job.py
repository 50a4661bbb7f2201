"""What the counted model of `mb` and its intervals are worth: ICU-Sepsis, policies as tables.

It costs little, so that many logs can be drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.learning.icu_sepsis_mdp import Array, Process, exact_value, load_process
from benchmarks.learning.ope_job import HORIZON
from benchmarks.learning.ope_policies import mixed, optimal_policy
from benchmarks.learning.ope_weights_job import Rows
from benchmarks.process import Request, answer_job
from rl_training.ope.counted_model import CountedModel
from rl_training.ope.options import Options


def counted(process: Process, policy: Array, episodes: int, seed: int) -> dict[str, float]:
    rows = Rows(process, episodes, seed)
    model = CountedModel(
        state=rows.state,
        action=rows.action,
        following=rows.following,
        reward=rows.reward,
        goes_on=np.where(rows.ends, 0.0, 1.0),
        chances=policy,
        starts=rows.state[rows.starts],
        lengths=rows.lengths,
        steps=HORIZON,
    )
    found = model.interval(Options(gamma=1.0, horizon=HORIZON, resamples=100, seed=seed))
    return {"value": found.value, "low": found.low, "high": found.high}


def work(request: Request) -> dict[str, Any]:
    spec, process = request.spec, load_process()
    policy = mixed(process, optimal_policy(process), spec["share"])
    found = [
        counted(process, policy, spec["episodes"], request.seed + i) for i in range(spec["logs"])
    ]
    return {"truth": exact_value(process, policy), "logs": found}


if __name__ == "__main__":
    answer_job(work, ("rl-training", "icu-sepsis", "numpy"))
