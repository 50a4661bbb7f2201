"""Train sb3-contrib's MaskablePPO or RecurrentPPO and evaluate it from given start states."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.peers.episodes import Evaluations
from benchmarks.peers.sb3_build import MASKED, make_model
from benchmarks.peers.sb3_job import Evaluating
from benchmarks.process import Request, answer_job


class OwnEvaluations(Evaluations):
    """With the state of a recurrent policy, or with the masks of the environment."""

    def __init__(self, model: Any, config: dict[str, Any], curve_seeds: Sequence[int]) -> None:
        super().__init__(model.predict, config["env_id"], curve_seeds, "env_steps")
        self.model, self.is_masked = model, config["env_id"] == MASKED

    def returns(self, reset_seeds: Sequence[int]) -> list[float]:
        return [self._episode(seed) for seed in reset_seeds]

    def _episode(self, seed: int) -> float:
        env = gym.make(self.env_id)
        obs, info = env.reset(seed=seed)
        total, state, ended = 0.0, None, False
        start = np.ones(1, bool)
        while not ended:
            known: dict[str, Any] = (
                {"action_masks": info["action_mask"].astype(bool)}
                if self.is_masked
                else {"state": state, "episode_start": start}
            )
            action, state = self.model.predict(obs, deterministic=True, **known)
            start = np.zeros(1, bool)
            obs, reward, terminated, truncated, info = env.step(int(action))
            total, ended = total + float(reward), terminated or truncated
        env.close()
        return total


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    config, inputs = request.inputs["config"], request.inputs
    model = make_model(config, request.seed)
    evaluations = OwnEvaluations(model, config, inputs["curve_seeds"])
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
