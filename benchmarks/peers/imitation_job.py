"""Train the `imitation` package's GAIL and evaluate it from given start states.

Run by the peers' Python.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.peers.episodes import Array, Evaluations
from benchmarks.peers.imitation_build import make_trainer
from benchmarks.process import Request, answer_job


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(request.seed)
    config, inputs = request.inputs["config"], request.inputs
    knobs, rates = config["algo_kwargs"], request.spec["rates"]
    trainer = make_trainer(config, knobs, inputs["demonstrations"], rates, request.seed)

    def act(observations: Array) -> Array:
        actions: Array = trainer.policy.predict(observations, deterministic=True)[0]
        return actions

    evaluations = Evaluations(act, config["env_id"], inputs["curve_seeds"], "env_steps")
    every, size = config["eval_interval"], trainer.gen_train_timesteps

    def evaluate(done: int) -> None:
        if (done + 1) * size // every > done * size // every:
            evaluations.note((done + 1) * size)

    began = time.perf_counter()
    trainer.train(config["total_timesteps"], callback=evaluate)
    steps = trainer.gen_algo.num_timesteps
    evaluations.note(steps)
    seconds = time.perf_counter() - began
    result = evaluations.result(inputs["reset_seeds"], steps, seconds)
    print(f"return {result['return_mean']:,.1f}, {seconds:.0f} s of training")
    return result


if __name__ == "__main__":
    answer_job(work, ("imitation", "stable-baselines3", "torch", "numpy", "gymnasium"))
