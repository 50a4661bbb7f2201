"""Train Stable-Baselines3's PPO or SAC on the CPU for some minutes, and evaluate it.

The library's defaults, with its normalisation for PPO, which steps eight environments in
processes of their own.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from benchmarks.peers.episodes import Array, Evaluations
from benchmarks.process import Request, answer_job

ENVIRONMENTS, ENDLESS = 8, 10**9


class Until(BaseCallback):
    """Ends training after some minutes."""

    def __init__(self, minutes: float) -> None:
        super().__init__()
        self.end = time.monotonic() + 60 * minutes

    def _on_step(self) -> bool:
        return time.monotonic() < self.end


def work(request: Request) -> dict[str, Any]:
    torch.set_num_threads(1)
    spec, inputs = request.spec, request.inputs
    model: Any
    if spec["algo"] == "sac":
        model = SAC("MlpPolicy", spec["env_id"], seed=request.seed, device="cpu")
    else:
        together = make_vec_env(
            spec["env_id"], ENVIRONMENTS, request.seed, vec_env_cls=SubprocVecEnv
        )
        model = PPO("MlpPolicy", VecNormalize(together), seed=request.seed, device="cpu")

    def act(observations: Any) -> Array:
        env = model.get_env()
        seen = env.normalize_obs(observations) if isinstance(env, VecNormalize) else observations
        actions: Array = model.predict(seen, deterministic=True)[0]
        return actions

    evaluations = Evaluations(act, spec["env_id"], inputs["curve_seeds"], "env_steps")
    began = time.perf_counter()
    model.learn(ENDLESS, callback=Until(spec["minutes"]))
    seconds = time.perf_counter() - began
    evaluations.note(model.num_timesteps)
    result = evaluations.result(inputs["reset_seeds"], model.num_timesteps, seconds)
    model.get_env().close()
    print(f"return {result['return_mean']:,.0f} after {model.num_timesteps:,} steps")
    return result


if __name__ == "__main__":
    answer_job(work, ("stable-baselines3", "torch", "numpy", "gymnasium", "mujoco"))
