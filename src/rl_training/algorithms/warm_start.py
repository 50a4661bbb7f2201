"""Starts a run from the policy of another run, and from its other networks if they fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, Networks
from rl_training.experiment.errors import ConfigError
from rl_training.models import (
    MLP,
    ActionValueCritic,
    ChoicePolicy,
    EnsembleCritic,
    EnsembleMLP,
    MeanPolicy,
    ObservationNormalizer,
    UnlikePolicyError,
    ValueNetwork,
    restate_inputs_,
)

READ_OBSERVATIONS = (
    MeanPolicy,
    ChoicePolicy,
    ValueNetwork,
    EnsembleCritic,
    ActionValueCritic,
)
"""Networks whose first layer takes normalised observations and can absorb other statistics."""

TARGETS = "target network"
"""Copy of a network for targets: nothing acts with it, so a run without one need not take it."""


def reads_observations(network: nn.Module) -> bool:
    """Whether the first layer of a network takes observations and is not the user's own."""
    return (
        isinstance(network, READ_OBSERVATIONS)
        and type(network.net) in (MLP, EnsembleMLP)
        and getattr(network, "encoder", None) is None
    )


def _refuse_own_networks(policy: nn.Module) -> None:
    if not reads_observations(policy):
        raise UnlikePolicyError(
            "normalises observations and this run does not, or the other way round, which "
            "networks of your own cannot make up for; normalise in both runs or in neither"
        )


class Change(NamedTuple):
    """Observations as a network took them: those it takes now times `scale` plus `shift`."""

    scale: Tensor
    shift: Tensor


def start_from(
    algorithm: Algorithm,
    source: Algorithm,
    path: str,
    *,
    same_rewards: bool,
    statistics: tuple[Tensor, Tensor] | None = None,
) -> str:
    """Let `algorithm` act as `source` does, and say in one sentence what it has taken over.

    Counts and optimisers start anew. Critics and their like are taken where both algorithms
    have them in the same shape and estimate the same returns: `same_rewards`, and the same
    discount. Observations are normalised with the source's statistics where this run
    normalises, else with `statistics`, the mean and standard deviation of its data; what
    differs is folded into the first layers. Refused, with nothing changed, where the two
    could not act alike.
    """
    what = f"init_from: the {source.name()} policy in '{path}'"
    source.spaces.refuse_other(algorithm.spaces, "the task", f"init_from: '{path}'")
    needed, given = algorithm.acting_networks(), source.acting_networks()
    try:
        if needed.keys() - given.keys() or given.keys() - needed.keys() - {TARGETS}:
            raise UnlikePolicyError(
                f"acts with {_listed(given)}, which {algorithm.name()} cannot act with"
            )
        for name in needed.keys() - {"policy"}:
            if not _same_shapes(needed[name], given[name]):
                raise UnlikePolicyError(
                    f"has another {name} than this run; give both runs the same knobs of the "
                    "network"
                )
        if algorithm.normalizer.active != source.normalizer.active:
            _refuse_own_networks(algorithm.policy)
        algorithm.policy.become(source.acting_policy)  # refuses what does not fit
    except UnlikePolicyError as error:
        raise ConfigError(f"{what} {algorithm.own_knobs(str(error))}") from None
    for name in needed.keys() - {"policy"}:
        needed[name].load_state_dict(given[name].state_dict())
    change = _take_statistics(algorithm.normalizer, source.normalizer, statistics)
    taken: Networks = {**needed}
    left: list[str] = []
    comparable = same_rewards and algorithm.gamma == source.gamma
    theirs = source.other_networks()
    for name, own in algorithm.other_networks().items():
        if comparable and _fits(own, theirs.get(name), change):
            _copy(own, theirs[name])
            taken[name] = own
        else:
            left.append(name)
    if change is not None:
        for network in taken.values():
            if isinstance(network, READ_OBSERVATIONS):
                net = network.net
                assert isinstance(net, (MLP, EnsembleMLP))
                restate_inputs_(net, *change)
    rest = f"; {_listed(left)} start{'s' if len(left) == 1 else ''} anew" if left else ""
    return f"starts from the {source.name()} in '{path}': {_listed(taken)}{rest}"


def _take_statistics(
    own: ObservationNormalizer,
    given: ObservationNormalizer,
    statistics: tuple[Tensor, Tensor] | None,
) -> Change | None:
    """Decide how this run normalises; what that changes for networks of the source."""
    if own.active and given.active:
        own.continue_from(given)
        return None
    if own.active:
        own.continue_from(given)  # which normalises with mean 0 and standard deviation 1
        if statistics is not None:
            own.set_statistics(*statistics)
    if not own.active and not given.active:
        return None
    mean, std = own.mean.double(), own.std.double()
    return Change(std / given.std.double(), (mean - given.mean.double()) / given.std.double())


def _fits(
    own: nn.Module | nn.Parameter, given: nn.Module | nn.Parameter | None, change: Change | None
) -> bool:
    if given is None or type(own) is not type(given):
        return False
    if isinstance(own, nn.Parameter) or isinstance(given, nn.Parameter):
        return own.shape == given.shape
    if change is not None and not reads_observations(own):
        return False
    return _same_shapes(own, given)


def _same_shapes(own: nn.Module, given: nn.Module) -> bool:
    mine, theirs = own.state_dict(), given.state_dict()
    return type(own) is type(given) and {name: x.shape for name, x in mine.items()} == {
        name: x.shape for name, x in theirs.items()
    }


@torch.no_grad()
def _copy(own: nn.Module | nn.Parameter, given: nn.Module | nn.Parameter) -> None:
    if isinstance(own, nn.Parameter):
        assert isinstance(given, nn.Parameter)
        own.copy_(given)
    else:
        assert isinstance(given, nn.Module)
        own.load_state_dict(given.state_dict())


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
