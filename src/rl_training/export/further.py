"""Outputs of an export beside the action: values, action values, densities, support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.errors import ConfigError, did_you_mean
from rl_training.export.support import Support
from rl_training.models.choices import CategoricalPolicy
from rl_training.models.policies import BoxPolicy, GaussianPolicy, TanhGaussianPolicy

KNOWN = ("value", "q", "density", "support")
Read = Callable[[Algorithm, Tensor, Tensor], Tensor | None]
"""From the algorithm, raw observations and inner actions."""


@dataclass(frozen=True)
class FurtherOutput:
    """An output beside the action."""

    name: str
    shape: tuple[int, ...]
    """Of one row."""
    meaning: str
    read: Read


def further_outputs(
    algorithm: Algorithm, names: Sequence[str], support: Support | None
) -> list[FurtherOutput]:
    """The outputs of these names; refused where the algorithm has learned nothing of the kind."""
    known = {} if algorithm.recurrent else _known(algorithm, support)
    found: list[FurtherOutput] = []
    for name in dict.fromkeys(names):
        if name not in KNOWN:
            raise ConfigError(
                f"--with: unknown output '{name}'{did_you_mean(name, KNOWN)}; known are "
                f"{', '.join(KNOWN)}"
            )
        outputs = [output for output in known.get(name, ()) if _has(algorithm, output)]
        if not outputs:
            why = "without the run's data there is none" if name == "support" else "leave it out"
            raise ConfigError(f"--with: {algorithm.name()} has no '{name}' to export; {why}")
        found += outputs
    return found


def _has(algorithm: Algorithm, output: FurtherOutput) -> bool:
    """Whether the algorithm has learned what an output says."""
    spaces = algorithm.spaces
    obs = torch.ones(  # a mask among them allows everything
        (2, *spaces.obs_shape), dtype=torch.uint8 if spaces.is_image else torch.float32
    )
    with torch.no_grad():
        return output.read(algorithm, obs, algorithm.act(obs, explore=False).action) is not None


def _known(algorithm: Algorithm, support: Support | None) -> dict[str, list[FurtherOutput]]:
    actions = algorithm.spaces.action_dim
    value = FurtherOutput(
        "value",
        (),
        "return expected from the observation on",
        lambda algorithm, obs, action: algorithm.state_values(algorithm.network_input(obs)),
    )
    if algorithm.spaces.is_discrete:
        q = FurtherOutput(
            "q",
            (actions,),
            "return expected from each action",
            lambda algorithm, obs, action: algorithm.every_action_value(
                algorithm.network_input(obs)
            ),
        )
    else:
        q = FurtherOutput(
            "q",
            (),
            "return expected from the action",
            lambda algorithm, obs, action: algorithm.action_values(
                algorithm.network_input(obs), action
            ),
        )
    known = {"value": [value], "q": [q], "density": _density(algorithm)}
    if support is not None:
        known["support"] = [
            FurtherOutput(
                "support", (), support.meaning, lambda _, obs, action: support.of(obs, action)
            )
        ]
    return known


def _density(algorithm: Algorithm) -> list[FurtherOutput]:
    policy, actions = algorithm.acting_policy, algorithm.spaces.action_dim
    if isinstance(policy, CategoricalPolicy) and algorithm.spaces.is_discrete:
        return [
            FurtherOutput(
                "log_probabilities",
                (actions,),
                "logarithm of each action's probability",
                lambda algorithm, obs, action: algorithm.acting_policy(
                    algorithm.network_input(obs)
                ),
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
    policy, seen = algorithm.acting_policy, algorithm.network_input(obs)
    if isinstance(policy, GaussianPolicy):
        mean, log_std = policy.mean(seen), policy.log_std
    else:
        assert isinstance(policy, BoxPolicy)
        mean, log_std = policy(seen)
    return mean, log_std + torch.zeros_like(mean)
