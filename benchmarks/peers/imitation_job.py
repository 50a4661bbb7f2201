"""Train the `imitation` package's GAIL and evaluate it from given start states.

Run by the peers' Python.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.peers.imitation_build import make_trainer
from benchmarks.peers.imitation_run import PACKAGES, trained
from benchmarks.process import Request, answer_job


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(request.seed)
    config, inputs = request.inputs["config"], request.inputs
    knobs, rates = config["algo_kwargs"], request.spec["rates"]
    trainer = make_trainer(config, knobs, inputs["demonstrations"], rates, request.seed)
    budget = config["total_timesteps"], config["eval_interval"]
    return trained(trainer, config["env_id"], *budget, inputs)


if __name__ == "__main__":
    answer_job(work, PACKAGES)
