"""Stable-Baselines3's algorithms with the sizes, rates and schedules of ours, by meaning.

Run by the peers' Python. What has no knob in ours stays as the library has it: DQN clips
gradients at norm 10 where ours is told of no limit, QR-DQN's Adam has an epsilon of
0.01 / batch size, and PPO's layers are tanh, with one gradient norm for both networks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from stable_baselines3.common.env_util import make_vec_env

MASKED = "rl_training/MaskedDoors-v0"
Rate = Callable[[float], float]
"""A knob as a function of the share of the budget that is left."""


def make_model(config: Mapping[str, Any], seed: int) -> Any:
    """An untrained model on the CPU, from the resolved configuration of ours."""
    own = config["algo_kwargs"]
    policy, kind = "MlpPolicy", config["algo"]
    options: dict[str, Any] = {"env_kwargs": dict(config["env_kwargs"])}
    if config["env_id"].startswith("rl_training/"):
        importlib.import_module("rl_training.envs")  # registers it
    if own.get("memory", "none") != "none":
        policy, kind = "MlpLstmPolicy", f"{kind} {own['memory']}"
    elif config["env_id"] == MASKED:
        kind = f"{kind} masked"
        options["wrapper_class"] = masked_env
    module, name, knobs_of = _MODELS[kind]
    env = make_vec_env(config["env_id"], config["num_envs"], seed, **options)
    if isinstance(env.observation_space, gym.spaces.Dict):
        policy = "MultiInputPolicy"
    return getattr(importlib.import_module(module), name)(
        policy, env, seed=seed, device="cpu", **knobs_of(config, own)
    )


def masked_env(env: Any) -> Any:
    """An environment whose masks sb3-contrib finds."""
    from sb3_contrib.common.wrappers import ActionMasker

    doors: Any = env.unwrapped
    return ActionMasker(env, lambda _: doors.mask.astype(bool))


def scheduled(value: float, schedule: Mapping[str, Any]) -> float | Rate:
    """`value` under one of our schedules."""
    if schedule["warmup"] or schedule["over"] or schedule["kind"] == "cosine":
        raise ValueError(f"no counterpart for the schedule {dict(schedule)}")
    if schedule["kind"] == "constant":
        return value
    end = schedule["end"]
    return lambda left: value * (end + (1.0 - end) * left)


def _shared(config: Mapping[str, Any], knobs: Mapping[str, Any], rate: str) -> dict[str, Any]:
    return {
        "learning_rate": scheduled(knobs[rate], config["lr_schedule"]),
        "batch_size": knobs["batch_size"],
        "gamma": knobs["gamma"],
        "policy_kwargs": {"net_arch": list(knobs["hidden_sizes"])},
    }


def _off_policy(config: Mapping[str, Any], knobs: Mapping[str, Any], rate: str) -> dict[str, Any]:
    updates = knobs["train_frequency"] * knobs["gradient_updates_per_step"]
    if updates != int(updates):
        raise ValueError(f"{updates} updates per round: not a whole number")
    return _shared(config, knobs, rate) | {
        "buffer_size": knobs["buffer_capacity"],
        "learning_starts": knobs["learning_starts"],
        "train_freq": knobs["train_frequency"],
        "gradient_steps": int(updates),
    }


def _dqn(config: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, Any]:
    if knobs["double"] or knobs["dueling"] or knobs["prioritized"] or knobs["n_step"] > 1:
        raise ValueError("no counterpart for double, dueling, prioritized or n_step")
    clip = {"max_grad_norm": knobs["grad_clip"]} if knobs["grad_clip"] else {}
    return _off_policy(config, knobs, "lr") | {
        # theirs counts environment steps, ours updates
        "target_update_interval": round(
            knobs["target_update_interval"] / knobs["gradient_updates_per_step"]
        ),
        "exploration_initial_eps": knobs["epsilon_start"],
        "exploration_final_eps": knobs["epsilon_end"],
        "exploration_fraction": knobs["epsilon_fraction"],
        **clip,
    }


def _qr_dqn(config: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, Any]:
    values = _dqn(config, knobs)
    values["policy_kwargs"]["n_quantiles"] = knobs["num_quantiles"]
    return values


def _sac(config: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, Any]:
    if len({knobs[rate] for rate in ("policy_lr", "critic_lr", "temperature_lr")}) > 1:
        raise ValueError("no counterpart for learning rates of their own")
    if knobs["fixed_temperature"] or knobs["target_entropy"] or knobs["grad_clip"]:
        raise ValueError("no counterpart for fixed_temperature, target_entropy or grad_clip")
    return _off_policy(config, knobs, "policy_lr") | {"tau": knobs["tau"]}


def _ppo(config: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, Any]:
    if knobs["normalize_observations"] or knobs["normalize_rewards"] or not knobs["grad_clip"]:
        raise ValueError("no counterpart for running normalisation or unclipped gradients")
    if knobs["entropy_schedule"]["kind"] != "constant":
        raise ValueError("no counterpart for entropy_schedule")
    return _shared(config, knobs, "lr") | {
        "n_steps": knobs["rollout_length"],
        "n_epochs": knobs["epochs"],
        "gae_lambda": knobs["gae_lambda"],
        "clip_range": scheduled(knobs["clip"], knobs["clip_schedule"]),
        "clip_range_vf": knobs["value_clip"],
        "vf_coef": knobs["value_coef"],
        "ent_coef": knobs["entropy_coef"],
        "normalize_advantage": knobs["normalize_advantages"],
        "max_grad_norm": knobs["grad_clip"],
        "target_kl": knobs["target_kl"],
    }


def _recurrent(config: Mapping[str, Any], knobs: Mapping[str, Any]) -> dict[str, Any]:
    values = _ppo(config, knobs)
    values["policy_kwargs"]["lstm_hidden_size"] = knobs["memory_size"]
    return values


_MODELS: dict[str, tuple[str, str, Callable[..., dict[str, Any]]]] = {
    "dqn": ("stable_baselines3", "DQN", _dqn),
    "qr_dqn": ("sb3_contrib", "QRDQN", _qr_dqn),
    "sac": ("stable_baselines3", "SAC", _sac),
    "ppo": ("stable_baselines3", "PPO", _ppo),
    "ppo masked": ("sb3_contrib", "MaskablePPO", _ppo),
    "ppo lstm": ("sb3_contrib", "RecurrentPPO", _recurrent),
}
