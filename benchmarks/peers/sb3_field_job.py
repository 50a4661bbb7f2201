"""Train Stable-Baselines3's PPO for a long run of ours, and evaluate it as ours is.

In one piece: the library does not resume exactly. It has its own defaults and its normalisation.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.peers.episodes import Array, Evaluations
from benchmarks.peers.sb3_job import Evaluating
from benchmarks.process import Request, answer_job

if TYPE_CHECKING:
    from rl_training import TrainConfig


def work(request: Request) -> dict[str, Any]:
    from rl_training import TrainConfig

    config = TrainConfig(**request.spec["config"], seed=request.seed)
    model = locomotion(config, request.seed)

    def act(observations: Any) -> Array:
        seen = model.get_env().normalize_obs(observations)
        actions: Array = model.predict(seen, deterministic=True)[0]
        return actions

    inputs = request.inputs
    env = config.environment, inputs["curve_seeds"], "env_steps", dict(config.env_kwargs)
    evaluations = Evaluations(act, *env)
    began = time.perf_counter()
    total = config.total_timesteps or 0
    model.learn(total, callback=Evaluating(evaluations, config.eval_interval))
    evaluations.note(model.num_timesteps)
    seconds = time.perf_counter() - began
    model.get_env().close()
    result = evaluations.result(inputs["reset_seeds"], model.num_timesteps, seconds)
    print(f"return {result['return_mean']:,.1f}, {seconds:.0f} s of training")
    return result


def locomotion(config: TrainConfig, seed: int) -> Any:
    """PPO with the defaults of the library, and its normalisation as ours has it."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make_vec_env(config.environment, 1, seed))
    return PPO("MlpPolicy", env, seed=seed)


if __name__ == "__main__":
    answer_job(work, ("rl-training", "stable-baselines3", "torch", "numpy", "gymnasium"))
