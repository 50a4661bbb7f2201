"""Off-policy evaluation on the ICU-Sepsis process, beside exact values."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.learning.icu_sepsis_mdp import Process, clinicians_log, exact_value, load_process
from benchmarks.learning.ope_peer import peers_estimate
from benchmarks.learning.ope_policies import as_network, mixed, optimal_policy, probabilities
from benchmarks.process import Request, answer_job
from rl_training import TransitionDataset, load_transition_dataset
from rl_training.ope.behaviour import estimated_behaviour, recorded_behaviour
from rl_training.ope.evaluate import Log, evaluate
from rl_training.ope.options import Options
from rl_training.ope.support import fit_support

HORIZON = 100
RETURNS = (0.0, 1.0)
CLONING = 1_000
"""Updates of the clones, which say what is unusual; the log's probabilities are known."""


def states_of(process: Process, observations: Any) -> Any:
    """Numbers of the states that observations are the features of."""
    known = {row.tobytes(): i for i, row in enumerate(process.features.astype(np.float32))}
    return np.array([known[row.tobytes()] for row in observations])


def known_log(process: Process, dataset: TransitionDataset, states: Any) -> Log:
    """With the probabilities of the clinicians' policy."""
    support = fit_support(dataset, estimated_behaviour(dataset, updates=CLONING))
    return Log(dataset, recorded_behaviour(dataset, process.clinicians[states]), support)


def work(request: Request) -> dict[str, Any]:
    spec, process = request.spec, load_process()
    optimal = optimal_policy(process)
    data = clinicians_log(process, spec["episodes"], request.seed)
    found, log = [], None
    for i, share in enumerate(spec["shares"]):
        agent = as_network(process, mixed(process, optimal, share), data, i, spec["fitting"])
        acts = probabilities(process, agent)
        one: dict[str, Any] = {"share": share, "truth": exact_value(process, acts)}
        dataset = load_transition_dataset(data, spaces=agent.algorithm.spaces)
        states = states_of(process, dataset.observations)
        began = time.monotonic()
        if spec["peer"]:
            one["value"] = peers_estimate(
                dataset, acts[states], gamma=1.0, updates=spec["updates"], seed=request.seed,
                scratch=request.scratch,
            )  # fmt: skip
        else:
            log = log or known_log(process, dataset, states)
            one |= _estimates(request, agent, log)
        one["seconds"] = round(time.monotonic() - began, 1)
        found.append(one)
        print(f"share {share:g}: {one['truth']:.4f}, {one['value']}")
    return {"policies": found}


def _estimates(request: Request, agent: Any, log: Log) -> dict[str, Any]:
    spec = request.spec
    options = Options(
        gamma=1.0,
        horizon=HORIZON,
        stochastic=True,
        value_range=RETURNS,
        updates=spec["updates"],
        replicates=spec["replicates"],
        hidden_sizes=tuple(spec["hidden_sizes"]),
        estimators=tuple(spec["estimators"]),
        seed=request.seed,
    )
    one = evaluate(agent.config, agent.algorithm, log, options)
    estimates = {
        name: {"value": e.value, "low": e.low, "high": e.high} for name, e in one.estimates.items()
    }
    return {
        "value": one.value.value,
        "estimates": estimates,
        "effective_size": one.effective_size,
        "lower_bound": one.lower_bound,
        "unusual": one.unusual,
        "verdict": one.verdict,
    }


if __name__ == "__main__":
    answer_job(work, ("rl-training", "icu-sepsis", "torch", "numpy"))
