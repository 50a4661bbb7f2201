"""What an export may tell beside the action: values, action values, densities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.errors import ConfigError, did_you_mean
from rl_training.models.actor_critic import EnsembleCritic, ValueNetwork
from rl_training.models.policies import (
    BoxPolicy,
    CategoricalPolicy,
    GaussianPolicy,
    TanhGaussianPolicy,
)
from rl_training.models.value_networks import GreedyPolicy

KNOWN = ("value", "q", "density")


@dataclass(frozen=True)
class FurtherOutput:
    """An output beside the action."""

    name: str
    shape: tuple[int, ...]
    """Of one row."""
    meaning: str
    read: Callable[[Algorithm, Tensor, Tensor], Tensor]
    """From the algorithm, raw observations and inner actions."""


def further_outputs(algorithm: Algorithm, names: Sequence[str]) -> list[FurtherOutput]:
    """The outputs of these names; refused where the algorithm has learned nothing of the kind."""
    makers = {"value": _value, "q": _q, "density": _density}
    found: list[FurtherOutput] = []
    for name in dict.fromkeys(names):
        if name not in makers:
            raise ConfigError(
                f"--with: unknown output '{name}'{did_you_mean(name, KNOWN)}; known are "
                f"{', '.join(KNOWN)}"
            )
        outputs = makers[name](algorithm)
        if not outputs:
            raise ConfigError(f"--with: {algorithm.name()} has no '{name}' to export; leave it out")
        found += outputs
    return found


def _value(algorithm: Algorithm) -> list[FurtherOutput]:
    if not isinstance(algorithm.other_networks().get("value"), ValueNetwork):
        return []

    def read(algorithm: Algorithm, obs: Tensor, action: Tensor) -> Tensor:
        value: Tensor = algorithm.other_networks()["value"](algorithm.normalizer(obs))  # type: ignore[operator]
        return value

    return [FurtherOutput("value", (), "return expected from the observation on", read)]


def _q(algorithm: Algorithm) -> list[FurtherOutput]:
    actions = algorithm.spaces.action_dim
    if isinstance(algorithm.policy, GreedyPolicy):

        def greedy(algorithm: Algorithm, obs: Tensor, action: Tensor) -> Tensor:
            assert isinstance(algorithm.policy, GreedyPolicy)
            return algorithm.policy.q_values(algorithm.normalizer(obs))

        return [FurtherOutput("q", (actions,), "return expected from each action", greedy)]
    critics = algorithm.other_networks().get("critics")
    if not isinstance(critics, EnsembleCritic) or algorithm.spaces.is_discrete:
        return []

    def read(algorithm: Algorithm, obs: Tensor, action: Tensor) -> Tensor:
        values: Tensor = algorithm.other_networks()["critics"](  # type: ignore[operator]
            algorithm.normalizer(obs), action
        )
        return values.movedim(0, -1)

    members = int(critics.net.weights[0].shape[0])
    return [FurtherOutput("q", (members,), "return of the action, by each critic", read)]


def _density(algorithm: Algorithm) -> list[FurtherOutput]:
    policy, actions = algorithm.policy, algorithm.spaces.action_dim
    if algorithm.recurrent:
        return []
    if isinstance(policy, CategoricalPolicy):

        def log_probs(algorithm: Algorithm, obs: Tensor, action: Tensor) -> Tensor:
            out: Tensor = algorithm.policy(algorithm.normalizer(obs))
            return out

        return [
            FurtherOutput(
                "log_probabilities", (actions,), "logarithm of each action's probability", log_probs
            )
        ]
    if not isinstance(policy, (BoxPolicy, GaussianPolicy)):
        return []
    kind = "tanh of a Gaussian" if isinstance(policy, TanhGaussianPolicy) else "clipped Gaussian"
    units = f"{kind} in units where actions are in [-1, 1]"
    return [
        FurtherOutput("density_mean", (actions,), f"mean, {units}", lambda *x: _gaussian(*x)[0]),
        FurtherOutput(
            "density_log_std",
            (actions,),
            f"logarithm of the standard deviation, {units}",
            lambda *x: _gaussian(*x)[1],
        ),
    ]


def _gaussian(algorithm: Algorithm, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and logarithm of the standard deviation, (B, A) each, in inner units."""
    policy, seen = algorithm.policy, algorithm.normalizer(obs)
    if isinstance(policy, GaussianPolicy):
        mean = policy.mean(seen)
        return mean, policy.log_std.expand_as(mean) + torch.zeros_like(mean)
    assert isinstance(policy, BoxPolicy)
    mean, log_std = policy(seen)
    return mean, log_std + torch.zeros_like(mean)
