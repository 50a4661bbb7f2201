"""Compares worlds of MuJoCo Warp with Gymnasium's environments on the CPU, step for step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.envs.device.locomotion import WarpTask
from rl_training.envs.device.register import device_task
from rl_training.experiment.errors import ConfigError


def differences(
    env_id: str,
    worlds: int,
    steps: int,
    device: torch.device,
    *,
    elliptic_cones: bool = False,
    seed: int = 0,
) -> list[tuple[float, float]]:
    """The largest differences of observations and rewards, for the first states and after each
    step, where both begin in the same states and take the same random actions, with the same solver
    and the same friction cones.

    A difference is relative where the number is above 1. Worlds whose episodes end are left out
    from then on; an end that only one side sees counts as an infinite difference.
    """
    task = device_task(env_id)
    made = None if task is None else task.maker()(worlds, device, elliptic_cones=elliptic_cones)
    if task is None or task.evaluated_in is None or not isinstance(made, WarpTask):
        raise ConfigError(f"env_id: '{env_id}' has no worlds of MuJoCo Warp; use one that has")
    begun = made.reset(torch.ones(worlds, dtype=torch.bool, device=device),
                       torch.arange(worlds, device=device) + seed)  # fmt: skip
    envs: list[Any] = [gym.make(task.evaluated_in).unwrapped for _ in range(worlds)]
    found = [(0.0, 0.0)]
    for i, env in enumerate(envs):
        env.reset(seed=0)
        for name, value in made.options.items():
            setattr(env.model.opt, name, value)
        env.set_state(*(x[i].double().cpu().numpy() for x in (made.qpos, made.qvel)))
        env.data.ctrl[:] = 0.0
        found[0] = (max(found[0][0], _apart(begun[i], env._get_obs())), 0.0)
    generator, running = np.random.default_rng(seed), set(range(worlds))
    low, high = envs[0].action_space.low, envs[0].action_space.high
    for _ in range(steps):
        actions = generator.uniform(low, high, (worlds, len(low))).astype(np.float32)
        obs, reward, terminated, _ = made.step(torch.as_tensor(actions, device=device))
        worst = [0.0, 0.0]
        for i in sorted(running):
            expected, gain, over, _, _ = envs[i].step(actions[i])
            worst[0] = max(worst[0], _apart(obs[i], expected))
            worst[1] = max(worst[1], _apart(reward[i], np.asarray(gain)))
            if bool(terminated[i]) != bool(over):
                worst = [float("inf")] * 2
            if over or terminated[i]:
                running.discard(i)
        found.append((worst[0], worst[1]))
    for env in envs:
        env.close()
    made.close()
    return found


def _apart(own: torch.Tensor, expected: Any) -> float:
    expected = np.asarray(expected, np.float64)
    error = np.abs(own.double().cpu().numpy() - expected) / np.maximum(np.abs(expected), 1.0)
    return float(error.max())
