"""Learn from 1,000 clinicians' episodes; what abstaining does to the policy's exact value."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.learning.icu_sepsis_mdp import clinicians_log, exact_value, greedy, load_process
from benchmarks.process import Request, answer_job
from rl_training import ManagedAlgorithm, TrainConfig


def work(request: Request) -> dict[str, Any]:
    spec, process = request.spec, load_process()
    log: dict[str, Any] = clinicians_log(process, spec["episodes"], request.seed)
    path = request.scratch / "log.npz"
    np.savez(path, **log)
    spec["config"]["dataset"]["path"] = str(path)
    config = TrainConfig(**spec["config"], seed=request.seed, output_dir=str(request.scratch))
    agent = ManagedAlgorithm(config)
    agent.learn(progress=False)
    agent.fit_support(path)
    careful = agent.abstaining(below=spec["below"])
    features, actions = process.features.astype(np.float32), process.clinicians.shape[1]
    found = {}
    for name, policy in (("plain", agent), ("abstaining", careful)):
        chosen = np.asarray(policy.predict(features)[0])
        found[name] = exact_value(process, greedy(chosen, actions))
    found["clinicians"] = exact_value(process, process.clinicians)
    found["fallbacks"] = careful.fallbacks / careful.decisions
    print(f"plain {found['plain']:.4f}, abstaining {found['abstaining']:.4f}")
    return found


if __name__ == "__main__":
    answer_job(work, ("rl-training", "icu-sepsis", "torch", "numpy"))
