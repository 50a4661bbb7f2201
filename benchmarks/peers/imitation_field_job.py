"""Train the `imitation` package's GAIL on a walking task, from the demonstrations of ours.

In one piece, in the environment of the benchmark: the one that this package pins has no v5 tasks.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.learning.prior import prior_file
from benchmarks.peers.imitation_build import make_walker
from benchmarks.peers.imitation_run import PACKAGES, trained
from benchmarks.process import Request, answer_job


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(request.seed)
    spec = request.spec
    shown = str(prior_file(spec["prior"]))
    trainer = make_walker(spec["env_id"], spec["settings"], shown, request.seed)
    budget = spec["total_timesteps"], spec["eval_interval"]
    return trained(trainer, spec["env_id"], *budget, request.inputs)


if __name__ == "__main__":
    answer_job(work, ("rl-training", *PACKAGES, "mujoco"))
