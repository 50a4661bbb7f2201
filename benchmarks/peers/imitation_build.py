"""GAIL of the `imitation` package: with the sizes of ours on a pole, with its own on walking tasks.

Run by the peers' Python. On the pole sizes are those of networks, rollouts, minibatches and
discriminator batches, and how often each is passed over. Rates, discount and the standardised
inputs of the discriminator are those of the package's documentation of GAIL, or, with `rates`
"ours", learning rates and discount of our configuration. Walking tasks have settings of their own,
see `make_walker`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from imitation.algorithms.adversarial.gail import GAIL, RewardNetFromDiscriminatorLogit
from imitation.data.types import Transitions
from imitation.policies.base import NormalizeFeaturesExtractor
from imitation.policies.replay_buffer_wrapper import ReplayBufferRewardWrapper
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util import logger
from imitation.util.networks import RunningNorm
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from benchmarks.peers.our_envs import register_fixed_cartpole
from benchmarks.peers.sb3_build import make_model

DOCUMENTED = {"lr": 4e-4, "gamma": 0.95, "entropy_coef": 0.0}
"""Of PPO, in the package's page on GAIL; the discriminator's Adam has its default of 1e-3."""


def make_trainer(
    config: Mapping[str, Any], knobs: Mapping[str, Any], demonstrations: str, rates: str, seed: int
) -> Any:
    """An untrained trainer on the CPU, from the resolved configuration of ours."""
    if knobs["generator"] != "ppo":
        raise ValueError("no counterpart for the generator sac")
    register_fixed_cartpole()
    ppo = {**knobs["ppo"], **(DOCUMENTED if rates == "documented" else {})}
    generator = make_model({**config, "algo": "ppo", "algo_kwargs": ppo}, seed)
    env = generator.get_env()
    rate = {} if rates == "documented" else {"lr": knobs["discriminator_lr"]}
    return GAIL(
        demonstrations=_transitions(demonstrations),
        demo_batch_size=knobs["batch_size"],
        venv=env,
        gen_algo=generator,
        reward_net=BasicRewardNet(
            env.observation_space,
            env.action_space,
            hid_sizes=tuple(knobs["hidden_sizes"]),
            normalize_input_layer=RunningNorm,
        ),
        n_disc_updates_per_round=knobs["discriminator_updates"] or 8,
        disc_opt_kwargs=rate,
        custom_logger=logger.configure(format_strs=[]),
    )


def make_walker(env_id: str, settings: Mapping[str, Any], demonstrations: str, seed: int) -> Any:
    """An untrained trainer on the CPU for a task whose episodes may end early.

    `settings`: `generator` (ppo or sac) with its `knobs`, `envs`, the `round` of environment steps
    before the discriminator learns, and the discriminator's `updates`, `batch` and `replay`. The
    rest is as in the package's tuned settings: standardised inputs, networks of the sizes there. A
    SAC's replay gets the rewards of the discriminator at the time of an update.
    """
    env = make_vec_env(env_id, settings["envs"], seed)
    judge = BasicRewardNet(
        env.observation_space, env.action_space, normalize_input_layer=RunningNorm
    )
    common: dict[str, Any] = {"seed": seed, "device": "cpu", **settings["knobs"]}
    if settings["generator"] == "ppo":
        policy = {
            "activation_fn": nn.ReLU,
            "features_extractor_class": NormalizeFeaturesExtractor,
            "features_extractor_kwargs": {"normalize_class": RunningNorm},
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
        }
        steps = settings["round"] // settings["envs"]
        generator: Any = PPO("MlpPolicy", env, n_steps=steps, policy_kwargs=policy, **common)
    else:
        relabel = {
            "replay_buffer_class": ReplayBuffer,
            "reward_fn": RewardNetFromDiscriminatorLogit(judge).predict_processed,
        }
        generator = SAC(
            "MlpPolicy",
            env,
            replay_buffer_class=ReplayBufferRewardWrapper,
            replay_buffer_kwargs=relabel,
            **common,
        )
    return GAIL(
        demonstrations=_transitions(demonstrations),
        demo_batch_size=settings["batch"],
        venv=env,
        gen_algo=generator,
        reward_net=judge,
        n_disc_updates_per_round=settings["updates"],
        gen_train_timesteps=settings["round"],
        gen_replay_buffer_capacity=settings["replay"],
        allow_variable_horizon=True,
        custom_logger=logger.configure(format_strs=[]),
    )


def _transitions(path: str) -> Transitions:
    with np.load(path) as arrays:
        return Transitions(
            obs=arrays["observations"],
            acts=arrays["actions"],
            infos=np.array([{}] * len(arrays["actions"])),
            next_obs=arrays["next_observations"],
            dones=arrays["terminations"],
        )
