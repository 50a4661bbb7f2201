"""GAIL of the `imitation` package with the sizes of ours, and rates as its own guide has them.

Run by the peers' Python. Sizes are those of networks, rollouts, minibatches and discriminator
batches, and how often each is passed over. Rates, discount and the standardised inputs of the
discriminator are those of the package's documentation of GAIL, or, with `rates` "ours", learning
rates and discount of our configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from imitation.algorithms.adversarial.gail import GAIL
from imitation.data.types import Transitions
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util import logger
from imitation.util.networks import RunningNorm

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


def _transitions(path: str) -> Transitions:
    with np.load(path) as arrays:
        return Transitions(
            obs=arrays["observations"],
            acts=arrays["actions"],
            infos=np.array([{}] * len(arrays["actions"])),
            next_obs=arrays["next_observations"],
            dones=arrays["terminations"],
        )
