"""Rows of a log that count, and what policies make of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from rl_training.algorithms.base import Algorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.models import CategoricalPolicy
from rl_training.ope.episodes import Floats

ROWS_AT_ONCE = 8_192


@dataclass(frozen=True, eq=False)
class CountedSteps:
    """The rows that a horizon counts, episode after episode."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Place of each episode's first row among `rows`."""
    step: NDArray[np.int64]
    """Number of each row within its episode."""
    lengths: NDArray[np.int64]
    ended: NDArray[np.bool_]
    """(episodes,) whether nothing counts after the last row: the end, or the horizon."""
    groups: NDArray[np.int64] | None

    @property
    def count(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, dataset: TransitionDataset, horizon: int | None) -> CountedSteps:
        lengths = dataset.episode_lengths()
        step = np.arange(len(dataset)) - np.repeat(dataset.episode_starts, lengths)
        kept = step < (horizon or np.inf)
        counted = np.minimum(lengths, horizon or lengths.max())
        ended = dataset.terminations[dataset.episode_ends]
        if horizon is not None:
            ended = ended | (lengths >= horizon)
        groups = None
        if dataset.groups is not None:
            groups = np.unique(dataset.episode_groups(), return_inverse=True)[1].reshape(-1)
        starts = np.concatenate([[0], counted.cumsum()[:-1]])
        return cls(np.flatnonzero(kept), starts, step[kept], counted, ended, groups)


def discounted_returns(dataset: TransitionDataset, steps: CountedSteps, gamma: float) -> Floats:
    worth = dataset.rewards[steps.rows].astype(np.float64) * gamma**steps.step
    return np.asarray(np.add.reduceat(worth, steps.starts))


def network_inputs(algorithm: Algorithm, observations: NDArray[np.float32]) -> list[torch.Tensor]:
    """Observations as the networks see them, some at a time."""
    device = algorithm.update_count.device
    whole = torch.from_numpy(np.ascontiguousarray(observations))
    return [algorithm.network_input(part.to(device)) for part in torch.split(whole, ROWS_AT_ONCE)]


@torch.no_grad()
def log_probabilities(
    algorithm: Algorithm, dataset: TransitionDataset, stochastic: bool
) -> Floats | None:
    """(N,) of the logged actions under the policy; None where it has no density."""
    inner = np.asarray(dataset.spaces.from_env(dataset.actions))
    given = torch.from_numpy(inner).to(algorithm.update_count.device)
    actions = torch.split(given, ROWS_AT_ONCE)
    found: list[Floats] = []
    for obs, action in zip(network_inputs(algorithm, dataset.observations), actions, strict=True):
        if stochastic and algorithm.acting_policy.has_density:
            log_probs = algorithm.log_probs(obs, action)
            assert log_probs is not None
            found.append(log_probs.double().cpu().numpy())
        elif dataset.spaces.is_discrete:
            same = (algorithm.acting_policy.mode(obs) == action).cpu().numpy()
            found.append(np.where(same, 0.0, -np.inf))
        else:
            return None
    return np.concatenate(found)


@torch.no_grad()
def action_chances(
    algorithm: Algorithm, observations: NDArray[np.float32], stochastic: bool
) -> Floats:
    """(N, actions) probabilities of Discrete actions; 0 and 1 where the likeliest one is taken."""
    policy, found = algorithm.acting_policy, []
    for obs in network_inputs(algorithm, observations):
        if stochastic and isinstance(policy, CategoricalPolicy):
            found.append(policy(obs).exp())
        else:
            found.append(F.one_hot(policy.mode(obs), algorithm.spaces.action_dim))
    return np.asarray(torch.cat(found).double().cpu().numpy())
