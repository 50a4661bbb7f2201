"""d3rlpy's discrete CQL with its defaults, on given data; it answers with its greedy actions.

Run by the peers' Python.
"""

from __future__ import annotations

import time
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.algos import DiscreteCQLConfig
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import MDPDataset

from benchmarks.learning.icu_sepsis_mdp import exact_value, greedy, load_process
from benchmarks.peers.d3rlpy_build import fitted_scaler, update
from benchmarks.process import Request, answer_job


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    spec, process = request.spec, load_process(request.inputs["assets"])
    with np.load(request.inputs["data"]) as stored:
        dataset = MDPDataset(
            observations=np.asarray(stored["observations"], np.float32),
            actions=np.asarray(stored["actions"]).reshape(-1, 1),
            rewards=np.asarray(stored["rewards"], np.float32),
            terminals=np.asarray(stored["terminations"], np.float32),
            timeouts=np.asarray(stored["truncations"], np.float32),
            action_space=ActionSpace.DISCRETE,
            action_size=process.clinicians.shape[1],
        )
    d3rlpy.seed(request.seed)
    config = DiscreteCQLConfig(observation_scaler=fitted_scaler(dataset))
    algorithm = config.create(device=False)
    algorithm.build_with_dataset(dataset)
    began = time.perf_counter()
    update(algorithm, dataset, spec["updates"])
    seconds = time.perf_counter() - began
    actions = algorithm.predict(process.features.astype(np.float32))
    value = exact_value(process, greedy(actions, process.clinicians.shape[1]))
    print(f"value {value:.4f}, {seconds:.0f} s of training")
    return {"value": value, "updates": spec["updates"], "train_seconds": round(seconds, 1)}


if __name__ == "__main__":
    answer_job(work, ("d3rlpy", "torch", "numpy"))
