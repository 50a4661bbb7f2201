"""Frames per second on Atari: of our training, of Stable-Baselines3's, and of games alone."""

from __future__ import annotations

import importlib
import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks.process import Request, answer_job

if TYPE_CHECKING:
    from rl_training import TrainConfig

FRAME_SKIP = 4


def work(request: Request) -> dict[str, Any]:
    from rl_training.experiment.config import load_config

    spec = request.spec
    quiet = ["eval_interval=0", "final_eval=false", "tensorboard=false", "seed=0"]
    config = load_config(spec["config"], [*quiet, *spec["changes"]])
    if spec["what"] == "collect":
        return collected(config, spec)
    measure = ours if spec["side"] == "ours" else sb3
    steps, seconds, updates = measure(config, spec["seconds"], spec["warm_seconds"])
    speed = FRAME_SKIP * steps / seconds
    print(f"{speed:,.0f} frames/s, {updates:,} updates in {seconds:.1f} s")
    return {
        "frames_per_second": speed,
        "env_steps": steps,
        "seconds": seconds,
        "updates": updates,
        "num_envs": config.num_envs,
        "env_workers": config.env_workers if spec["side"] == "ours" else config.num_envs,
    }


def ours(config: TrainConfig, seconds: float, warm_seconds: float) -> tuple[int, float, int]:
    """Environment steps, seconds and updates of the loop that `learn` runs."""
    import torch

    from rl_training import ManagedAlgorithm
    from rl_training.runtime import build

    agent = ManagedAlgorithm(config)
    on_gpu = agent.algorithm.update_count.device.type == "cuda"
    with build.run_scope(agent.config, agent.algorithm.spaces):
        loop: Any = build.build_loop(agent.config, agent.algorithm, None)
        try:
            while loop.progress.updates == 0:
                loop.advance(config.num_envs)
            _run_for(loop, config.num_envs, warm_seconds)
            before, done = loop.tick, loop.progress.updates
            began = time.perf_counter()
            _run_for(loop, config.num_envs, seconds)
            if on_gpu:
                torch.cuda.synchronize()
            return (
                loop.tick - before,
                time.perf_counter() - began,
                loop.progress.updates - done,
            )
        finally:
            loop.close()


def _run_for(loop: Any, num_envs: int, seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        loop.advance(10 * num_envs)


def sb3(config: TrainConfig, seconds: float, warm_seconds: float) -> tuple[int, float, int]:
    """The same of Stable-Baselines3's `learn`, with the same games."""
    from stable_baselines3.common.callbacks import BaseCallback

    model = sb3_model(config)
    first = getattr(config.params, "learning_starts", 0)

    class Clock(BaseCallback):
        """Ends `learn` when it has been measured, between two rollouts with their updates."""

        warm: float | None = None
        began: tuple[int, float, int] | None = None
        taken: tuple[int, float, int] | None = None

        def _on_rollout_start(self) -> None:
            now = self.num_timesteps, time.perf_counter(), model._n_updates
            if now[0] <= first or model._n_updates == 0:
                return
            self.warm = self.warm or now[1]
            if self.began is None and now[1] >= self.warm + warm_seconds:
                self.began = now
            elif self.began is not None and now[1] >= self.began[1] + seconds:
                self.taken = tuple(a - b for a, b in zip(now, self.began, strict=True))

        def _on_step(self) -> bool:
            return self.taken is None

    clock = Clock()
    model.learn(10**9, callback=clock, log_interval=None)
    model.get_env().close()
    assert clock.taken is not None
    return clock.taken


def sb3_model(config: TrainConfig, seed: int = 0) -> Any:
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from rl_training.envs.atari_rules import for_training

    importlib.import_module("rl_training.envs")  # registers the games
    kwargs = {**config.env_kwargs, **for_training(config.environment, config.env_kwargs)}
    env = make_vec_env(
        config.environment,
        config.num_envs,
        seed=seed,
        env_kwargs=kwargs,
        vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"start_method": "fork"},
    )
    own = config.params.model_dump()
    shared = {"batch_size": own["batch_size"], "learning_rate": own["lr"], "seed": seed}
    if config.algo == "ppo":
        return PPO(
            "CnnPolicy",
            env,
            n_steps=own["rollout_length"],
            n_epochs=own["epochs"],
            clip_range=own["clip"],
            clip_range_vf=own["value_clip"],
            ent_coef=own["entropy_coef"],
            **shared,
        )
    ratio = own["gradient_updates_per_step"]
    return DQN(
        "CnnPolicy",
        env,
        buffer_size=own["buffer_capacity"],
        learning_starts=own["learning_starts"],
        train_freq=1,
        gradient_steps=max(1, round(ratio * config.num_envs)),
        target_update_interval=round(own["target_update_interval"] / ratio),
        exploration_final_eps=own["epsilon_end"],
        n_steps=own["n_step"],
        **shared,
    )


def collected(config: TrainConfig, spec: dict[str, Any]) -> dict[str, Any]:
    """Games alone, with random actions, in different numbers of processes."""
    import numpy as np

    from rl_training.envs.atari_rules import for_training
    from rl_training.envs.collector import Collector

    kwargs = {**config.env_kwargs, **for_training(config.environment, config.env_kwargs)}
    cores = os.cpu_count() or 1
    speeds = {}
    for workers in (0, *(count for count in spec["workers"] if count <= cores)):
        collector = Collector(config.environment, kwargs, config.num_envs, 0, workers=workers)
        try:
            generator = np.random.default_rng(0)
            actions = collector.spaces.action_dim
            for _ in range(5):
                collector.step(generator.integers(0, actions, config.num_envs))
            began, steps = time.perf_counter(), 0
            while time.perf_counter() < began + spec["seconds"]:
                collector.step(generator.integers(0, actions, config.num_envs))
                steps += config.num_envs
            speeds[str(workers)] = FRAME_SKIP * steps / (time.perf_counter() - began)
        finally:
            collector.close()
        print(f"{workers} processes: {speeds[str(workers)]:,.0f} frames/s")
    return {"frames_per_second": speeds, "num_envs": config.num_envs}


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy", "gymnasium", "ale-py", "stable-baselines3"))
