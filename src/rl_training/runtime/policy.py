"""How a policy acts: raw observations in, actions in environment units out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.envs.contract import FEW, all_finite
from rl_training.execution import without_gradients
from rl_training.experiment.errors import ConfigError, TrainingDivergedError
from rl_training.models import Carry
from rl_training.runtime.acting import RepeatedActing

Array = np.ndarray[Any, Any]

PATIENCE = 50
"""Calls of an evaluation before it acts in a graph; capturing one takes as long as a dozen."""


class ActingPolicy:
    """An algorithm's policy for everything outside training: evaluation, predictions, data, videos.

    Called with (B, ...) observations and what the call before returned as carry, None at the
    start of episodes; returns (B, ...) actions and the new carry. Actions are the mode of the
    policy, or samples where it is not `deterministic`. It acts through `Algorithm.act` and
    `Spaces.to_env` alone, so an algorithm that overrides `act` is honoured everywhere.
    """

    def __init__(
        self, algorithm: Algorithm, deterministic: bool = True, repeats: bool = False
    ) -> None:
        """`repeats` says that one thread makes many calls, as an evaluation does."""
        if not deterministic:
            refuse_sampling(algorithm)
        self.algorithm, self.explore = algorithm, not deterministic
        self._repeated = None
        if repeats:
            self._repeated = RepeatedActing(algorithm, explore=self.explore, patience=PATIENCE)
        # found when an agent is built, so that a run leaves nothing behind on the algorithm
        self.policy, *_ = algorithm.acting_parts
        self.device = algorithm.update_count.device
        self.on_host = self.device.type == "cpu"
        spaces = algorithm.spaces
        self.obs_dtype = np.dtype(spaces.obs_dtype)
        self._to_env = spaces.to_env
        self._are_few = len(spaces.obs_shape) == 1 and spaces.obs_dim <= FEW
        self._places: list[tuple[Tensor, Array]] = []
        """For one observation each, and in use by no thread."""
        # The shape of single observations that are taken, and give actions, as they are.
        as_it_is = not (algorithm.recurrent or spaces.layout or spaces.action_labels)
        self.plain_shape = spaces.obs_shape if as_it_is and spaces.action_shape is None else None

    @without_gradients
    def __call__(self, obs: Array, carry: Carry | None = None) -> tuple[Array, Carry]:
        tensor = torch.from_numpy(np.ascontiguousarray(obs, self.obs_dtype))
        if self._repeated is not None:
            action, carry = self._repeated(tensor, carry)
        else:
            seen = tensor.to(self.device)
            action, carry = self.algorithm.act(seen, explore=self.explore, carry=carry)
        return env_actions(self.algorithm, action.cpu().numpy()), carry

    def one(self, observation: Array) -> Array | None:
        """The action for one observation of `plain_shape` and `obs_dtype`: what a call with a
        batch of one returns, in fewer steps of Python. None if it is not finite."""
        if not (
            math.isfinite(sum(observation.tolist())) if self._are_few else all_finite(observation)
        ):
            return None
        try:
            obs, numbers = self._places.pop()
        except IndexError:
            obs = torch.from_numpy(np.empty((1, *observation.shape), self.obs_dtype))
            numbers = obs.numpy()[0]
        numbers[:] = observation
        graded = torch.is_grad_enabled()
        if graded:
            torch._C._set_grad_enabled(False)
        try:
            seen = obs if self.on_host else obs.to(self.device)
            action = self.algorithm.act(seen, explore=self.explore)[0]
            inner = (action if self.on_host else action.cpu()).numpy()
        finally:
            if graded:
                torch._C._set_grad_enabled(True)
        self._places.append((obs, numbers))
        # a sum that is not finite may be an overflow, which `env_actions` decides
        is_finite = math.isfinite(sum(inner.ravel().tolist()))
        actions = self._to_env(inner) if is_finite else env_actions(self.algorithm, inner)
        only: Array = actions[0]
        return only


def env_actions(algorithm: Algorithm, inner: Array) -> Array:
    """Inner actions in the environment's units; NaN and infinity are refused."""
    if not all_finite(inner):
        raise TrainingDivergedError(
            f"the policy's actions became NaN by update {int(algorithm.update_count)}; "
            "go back to an earlier checkpoint, lower the learning rate or set "
            "algo_kwargs.grad_clip"
        )
    return algorithm.spaces.to_env(inner)


def refuse_sampling(algorithm: Algorithm) -> None:
    """Refuse to sample actions of a policy that has only one for each observation."""
    if not algorithm.policy.has_density:
        raise ConfigError(
            "deterministic: this policy always takes its best action, so there is nothing to "
            "sample; leave out deterministic=False or --stochastic, and use epsilon where data "
            "should vary"
        )
