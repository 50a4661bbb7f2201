"""Learn from clinicians' episodes, and work out exactly what the greedy policy is worth."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.learning.icu_sepsis_mdp import clinicians_log, exact_value, greedy, load_process
from benchmarks.process import Request, answer_job
from rl_training import ManagedAlgorithm, TrainConfig


def work(request: Request) -> dict[str, Any]:
    spec, process = request.spec, load_process()
    log = clinicians_log(process, spec["episodes"], spec["data_seed"])
    if spec["shuffle_rewards"]:
        rng = np.random.default_rng(request.seed)
        log["rewards"] = log["rewards"][rng.permutation(len(log["rewards"]))]
    path = request.scratch / "log.npz"
    arrays: dict[str, Any] = log
    np.savez(path, **arrays)
    spec["config"]["dataset"]["path"] = str(path)
    config = TrainConfig(**spec["config"], seed=request.seed, output_dir=str(request.scratch))
    agent = ManagedAlgorithm(config)
    trained = agent.learn(progress=False)
    actions = np.asarray(agent.predict(process.features.astype(np.float32))[0])
    value = exact_value(process, greedy(actions, process.clinicians.shape[1]))
    print(f"value {value:.4f}, {trained.wall_seconds:.0f} s of training")
    return {
        "value": value,
        "clinicians": exact_value(process, process.clinicians),
        "rows": len(log["rewards"]),
        "updates": trained.updates,
        "train_seconds": round(trained.wall_seconds, 1),
    }


if __name__ == "__main__":
    answer_job(work, ("rl-training", "icu-sepsis", "torch", "numpy"))
