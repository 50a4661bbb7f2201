"""Starting a run from the policy of another."""

from __future__ import annotations

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.errors import ConfigError
from rl_training.models import BoxPolicy


def start_from(algorithm: Algorithm, source: Algorithm, path: str) -> None:
    """Give `algorithm` the policy of `source`, and all its networks where they are the same.

    Counts and optimisers start anew. Refused where the two policies could not act alike.
    """
    own, given = algorithm.policy, source.policy
    assert isinstance(own, BoxPolicy)
    what = f"init_from: the {source.name()} policy in '{path}'"
    source.spaces.refuse_other(algorithm.spaces, "the task", f"init_from: '{path}'")
    if not isinstance(given, BoxPolicy):
        raise ConfigError(
            f"{what} has no Gaussian, which {algorithm.name()} needs; start from a run of "
            "sac, rlpd, iql, awac, cql, crr, awr, marwil or bc (by likelihood)"
        )
    if own.sizes != given.sizes:
        hidden = given.sizes[1:-1]
        raise ConfigError(
            f"{what} has hidden layers {hidden}, but this run {own.sizes[1:-1]}; set "
            f"algo_kwargs.hidden_sizes='{hidden}'"
        )
    if source.normalizer.active or algorithm.normalizer.active:
        who = "it" if source.normalizer.active else "this run"
        raise ConfigError(
            f"{what} cannot be taken over, because {who} normalises observations; leave out "
            "dataset.normalize_observations in both runs"
        )
    state = source.state_dict()
    shapes = {key: value.shape for key, value in state.items()}
    if shapes == {key: value.shape for key, value in algorithm.state_dict().items()}:
        algorithm.load_state_dict(state)
        with torch.no_grad():
            algorithm.update_count.zero_()
    else:
        own.become(given)
