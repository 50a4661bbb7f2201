"""Train one of Stable-Baselines3's algorithms and evaluate it from given start states.

Run by the peers' Python.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.peers.episodes import Array, Evaluations
from benchmarks.peers.sb3_build import make_model
from benchmarks.process import Request, answer_job


class Evaluating(BaseCallback):
    """Evaluates between two rollouts, whenever a multiple of `every` steps lies behind."""

    def __init__(self, evaluations: Evaluations, every: int) -> None:
        super().__init__()
        self.evaluations, self.every, self.noted = evaluations, every, 0

    def _on_rollout_start(self) -> None:
        if self.every and self.num_timesteps // self.every > self.noted // self.every:
            self.evaluations.note(self.num_timesteps)
            self.noted = self.num_timesteps

    def _on_step(self) -> bool:
        return True


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    config, inputs = request.inputs["config"], request.inputs
    model = make_model(config, request.seed)

    def act(observations: Any) -> Array:
        actions: Array = model.predict(observations, deterministic=True)[0]
        return actions

    env = config["env_id"], inputs["curve_seeds"], "env_steps", config["env_kwargs"]
    evaluations = Evaluations(act, *env)
    began = time.perf_counter()
    callback = Evaluating(evaluations, config["eval_interval"])
    model.learn(config["total_timesteps"], callback=callback)
    evaluations.note(model.num_timesteps)
    seconds = time.perf_counter() - began
    result = evaluations.result(inputs["reset_seeds"], model.num_timesteps, seconds)
    print(f"return {result['return_mean']:,.1f}, {seconds:.0f} s of training")
    return result


if __name__ == "__main__":
    answer_job(work, ("stable-baselines3", "sb3-contrib", "torch", "numpy", "gymnasium"))
