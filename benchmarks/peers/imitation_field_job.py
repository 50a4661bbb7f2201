"""Train the `imitation` package's GAIL on a walking task, from the demonstrations of ours.

In one piece, in the environment of the benchmark: the one that this package pins has no v5 tasks.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.learning.prior import prior_file
from benchmarks.peers.episodes import Array, Evaluations
from benchmarks.peers.imitation_build import make_walker
from benchmarks.process import Request, answer_job


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(request.seed)
    spec, inputs = request.spec, request.inputs
    shown = str(prior_file(spec["prior"]))
    trainer = make_walker(spec["env_id"], spec["settings"], shown, request.seed)

    def act(observations: Array) -> Array:
        actions: Array = trainer.policy.predict(observations, deterministic=True)[0]
        return actions

    evaluations = Evaluations(act, spec["env_id"], inputs["curve_seeds"], "env_steps")
    every, size = spec["eval_interval"], trainer.gen_train_timesteps

    def evaluate(done: int) -> None:
        if (done + 1) * size // every > done * size // every:
            evaluations.note((done + 1) * size)

    began = time.perf_counter()
    rounds = -(-spec["total_timesteps"] // size)  # no fewer steps than ours
    trainer.train(rounds * size, callback=evaluate)
    steps = trainer.gen_algo.num_timesteps
    evaluations.note(steps)
    seconds = time.perf_counter() - began
    result = evaluations.result(inputs["reset_seeds"], steps, seconds)
    print(f"return {result['return_mean']:,.1f}, {seconds:.0f} s of training")
    return result


if __name__ == "__main__":
    packages = ("imitation", "stable-baselines3", "torch", "numpy", "gymnasium")
    answer_job(work, ("rl-training", *packages, "mujoco"))
