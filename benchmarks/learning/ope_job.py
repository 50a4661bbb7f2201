"""Off-policy evaluation on the ICU-Sepsis process, beside exact values."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.learning.icu_sepsis_mdp import Process, clinicians_log, exact_value, load_process
from benchmarks.learning.ope_policies import as_network, mixed, optimal_policy, probabilities
from benchmarks.process import Request, answer_job
from rl_training.data.sources import load_transition_dataset
from rl_training.ope.behaviour import recorded_behaviour
from rl_training.ope.evaluate import Log, evaluate, prepare_log
from rl_training.ope.options import Options

HORIZON = 100
RETURNS = (0.0, 1.0)


def states_of(process: Process, observations: Any) -> Any:
    """Numbers of the states that observations are the features of."""
    known = {row.tobytes(): i for i, row in enumerate(process.features.astype(np.float32))}
    return np.array([known[row.tobytes()] for row in observations])


def work(request: Request) -> dict[str, Any]:
    spec, process = request.spec, load_process()
    optimal = optimal_policy(process)
    data = clinicians_log(process, spec["episodes"], request.seed)
    agents = [
        as_network(process, mixed(process, optimal, share), data, i)
        for i, share in enumerate(spec["shares"])
    ]
    dataset = load_transition_dataset(data, spaces=agents[0].algorithm.spaces)
    log = prepare_log(dataset)
    known = process.clinicians[states_of(process, dataset.observations)]
    if spec["recorded"]:
        log = Log(dataset, recorded_behaviour(dataset, known), log.support)
    options = Options(
        gamma=1.0,
        horizon=HORIZON,
        stochastic=True,
        value_range=RETURNS,
        updates=spec["updates"],
        replicates=spec["replicates"],
        estimators=tuple(spec["estimators"]),
        seed=request.seed,
    )
    found = []
    for share, agent in zip(spec["shares"], agents, strict=True):
        began = time.monotonic()
        one = evaluate(agent.config, agent.algorithm, log, options)
        truth = exact_value(process, probabilities(process, agent))
        estimates = {
            name: {"value": e.value, "low": e.low, "high": e.high}
            for name, e in one.estimates.items()
        }
        found.append(
            {
                "share": share,
                "truth": truth,
                "estimates": estimates,
                "effective_size": one.effective_size,
                "unusual": one.unusual,
                "verdict": one.verdict,
                "seconds": round(time.monotonic() - began, 1),
            }
        )
        print(f"share {share:g}: {truth:.4f}, {one.value}")
    return {"policies": found}


if __name__ == "__main__":
    answer_job(work, ("rl-training", "icu-sepsis", "torch", "numpy"))
