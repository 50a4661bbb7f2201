"""How a policy acts: raw observations in, actions in environment units out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.envs.contract import all_finite
from rl_training.experiment.errors import ConfigError, TrainingDivergedError
from rl_training.models import Carry

Array = np.ndarray[Any, Any]


class ActingPolicy:
    """An algorithm's policy for everything outside training: evaluation, predictions, data, videos.

    Called with (B, ...) observations and what the call before returned as carry, None at the
    start of episodes; returns (B, ...) actions and the new carry. Actions are the mode of the
    policy, or samples where it is not `deterministic`. It acts through `Algorithm.act` and
    `Spaces.to_env` alone, so an algorithm that overrides `act` is honoured everywhere.
    """

    def __init__(
        self, algorithm: Algorithm, deterministic: bool = True, instead: str = "leave that out"
    ) -> None:
        if not deterministic:
            refuse_sampling(algorithm, instead)
        self.algorithm, self.explore = algorithm, not deterministic
        self.device = algorithm.update_count.device
        self.on_host = self.device.type == "cpu"
        spaces = algorithm.spaces
        self.obs_dtype = spaces.obs_dtype
        # The shape of single observations that are taken, and give actions, as they are.
        as_it_is = not (algorithm.recurrent or spaces.layout or spaces.action_labels)
        self.plain_shape = spaces.obs_shape if as_it_is and spaces.action_shape is None else None

    def __call__(self, obs: Array, carry: Carry | None = None) -> tuple[Array, Carry]:
        with torch._C._InferenceMode(True):  # `torch.inference_mode` without its wrapper
            tensor = torch.from_numpy(np.ascontiguousarray(obs, self.obs_dtype))
            if not self.on_host:
                tensor = tensor.to(self.device)
            action, carry = self.algorithm.act(tensor, explore=self.explore, carry=carry)
            inner: Array = (action if self.on_host else action.cpu()).numpy()
        return env_actions(self.algorithm, inner), carry


def env_actions(algorithm: Algorithm, inner: Array) -> Array:
    """Inner actions in the environment's units; NaN and infinity are refused."""
    if not all_finite(inner):
        raise TrainingDivergedError(
            f"the policy's actions became NaN by update {int(algorithm.update_count)}; "
            "go back to an earlier checkpoint, lower the learning rate or set "
            "algo_kwargs.grad_clip"
        )
    return algorithm.spaces.to_env(inner)


def refuse_sampling(algorithm: Algorithm, instead: str) -> None:
    """Refuse to sample actions of a policy that has only one for each observation."""
    if not algorithm.policy.has_density:
        raise ConfigError(
            "deterministic: this policy always takes its best action and has nothing to sample "
            f"(--stochastic); {instead}"
        )
