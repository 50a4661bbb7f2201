"""The last layer of a critic of fitted Q evaluation, solved to its end by least squares.

Minibatches leave a small error at each step, and a value adds up the errors of all steps of an
episode. So the hidden layers of a trained critic are kept as features, and each step of fitted Q
evaluation is made once over all rows: the least-squares fit of r + gamma E Q(s', a'), backwards
over a horizon, or until values stand still.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.fqe import FQEAlgorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.models.mlp import EnsembleMLP
from rl_training.ope.episodes import Floats
from rl_training.ope.options import Options
from rl_training.ope.pooling import PooledHeads
from rl_training.ope.steps import ROWS_AT_ONCE, network_inputs

MOST_ROWS = 100_000
"""Rows that are solved over; of a larger log a random part is taken."""
RIDGE = 0.5
"""Rows of the size of the mean one that speak for the weights of the trained network: of a single
head for itself, of several for their mean."""
STILL = 1e-5
"""Share of the spread of values below which a change of them is none."""
MOST_UNKNOWNS = 3_000
"""Weights of all heads up to which, without a horizon, the end is solved for at once."""
FEW = 0.01
"""Share of targets that may lie out of reach at that end; else steps with clipped targets lead."""
LEFT = 0.003
"""Share of the first values that is left, without a horizon, when solving ends at the latest."""


@dataclass(frozen=True, eq=False)
class SolvedCritic:
    """Linear values on the hidden layers of a trained critic.

    Discrete actions have one head each, Box actions are inputs of the features and have one.
    """

    agent: FQEAlgorithm
    body: EnsembleMLP
    """The critic's network, of which the hidden layers count."""
    heads: Tensor
    """(steps to go, heads, features), a single one without a horizon."""

    def state_values(
        self, observations: NDArray[np.float32], to_go: NDArray[np.int64] | None = None
    ) -> Floats:
        """Expected Q of the policy's actions, by default over the whole horizon."""
        features, chances = policy_features(self.agent, self.body, observations)
        return self._worth(features, chances, to_go)

    def action_values(
        self,
        observations: NDArray[np.float32],
        actions: NDArray[np.generic],
        to_go: NDArray[np.int64] | None = None,
    ) -> Floats:
        """Q of given actions, as the spaces' `from_env` gives them."""
        features, head = logged_features(self.agent, self.body, observations, actions)
        chances = torch.nn.functional.one_hot(head, self.heads.shape[1]).float()
        return self._worth(features, chances, to_go)

    def _worth(self, features: Tensor, chances: Tensor, to_go: NDArray[np.int64] | None) -> Floats:
        if to_go is None or len(self.heads) == 1:
            found = expected(features, chances, self.heads[-1])
        else:
            found = features.new_zeros(len(features))  # nothing is counted after the last step
            for left in np.unique(to_go[to_go > 0]):
                rows = torch.from_numpy(np.flatnonzero(to_go == left)).to(features.device)
                head = self.heads[min(int(left), len(self.heads)) - 1]
                found[rows] = expected(features[rows], chances[rows], head)
        return np.asarray(found.double().cpu().numpy())


def expected(features: Tensor, chances: Tensor, heads: Tensor) -> Tensor:
    """(N,) values of (N, F) features under (N, K) chances of the (K, F) heads."""
    return (chances * (features @ heads.T)).sum(-1)


@torch.no_grad()
def solved_critic(
    agent: FQEAlgorithm,
    dataset: TransitionDataset,
    counts: NDArray[np.int64],
    options: Options,
    draw: int | None = None,
) -> SolvedCritic:
    """From a trained critic; `counts` are (episodes,), how often each one counts. With `draw`, a
    seed, what rare actions lean on is drawn as well."""
    net = agent.critics.net
    assert isinstance(net, EnsembleMLP)
    body = copy.deepcopy(net).requires_grad_(False)
    first = torch.cat([net.weights[-1], net.biases[-1]], 1)[0].T.detach()
    weight = np.repeat(counts, dataset.episode_lengths())
    rows = np.flatnonzero(weight)
    if len(rows) > MOST_ROWS:
        rng = np.random.default_rng(options.seed)
        rows = np.sort(rng.choice(rows, MOST_ROWS, replace=False))
    inner = np.asarray(dataset.spaces.from_env(dataset.actions))
    if dataset.spaces.is_discrete:
        rows = rows[np.argsort(inner[rows], kind="stable")]
    features, head = logged_features(agent, body, dataset.observations[rows], inner[rows])
    following, chances = policy_features(agent, body, dataset.next_observations[rows])
    device = features.device
    paid = torch.from_numpy(dataset.rewards[rows]).to(device)
    goes_on = torch.from_numpy(~dataset.terminations[rows]).to(device).float()
    often = torch.from_numpy(weight[rows]).to(device).float()
    weighted = features * often[:, None]
    parts = np.append(0, torch.bincount(head, minlength=len(first)).cumsum(0).cpu().numpy())
    segments = [slice(low, high) for low, high in itertools.pairwise(parts)]
    grams = torch.stack([_gram(weighted[own], features[own]) for own in segments])
    counted = torch.stack([often[own].sum() for own in segments])
    heads_of = PooledHeads(grams, counted, RIDGE * float((features**2).mean()), first, draw)
    if options.horizon is None and first.numel() <= MOST_UNKNOWNS:
        ahead = (options.gamma * goes_on)[:, None] * following
        solved = _fixed_point(heads_of, segments, weighted, often, paid, ahead, chances)
        target = paid + expected(ahead, chances, solved)
        low, high = _reachable(agent, options, 1)
        if float(((target < low) | (target > high)).float().mean()) <= FEW:
            return SolvedCritic(agent, body, solved[None])
    steps = options.horizon or math.ceil(math.log(LEFT) / math.log(options.gamma))
    value = paid.new_zeros(len(paid))
    if options.horizon is None:
        value = expected(following, chances, first)
    heads: list[Tensor] = []
    for step in range(1, steps + 1):
        low, high = _reachable(agent, options, step)
        target = (paid + options.gamma * goes_on * value).clamp(low, high)
        right = torch.stack([weighted[own].T @ target[own] for own in segments]).double()
        found = heads_of.solve(right)
        if heads_of.noise is not None:
            squares = float((often * target**2).sum())
            found = found + heads_of.scatter(found, right, squares) * heads_of.noise
        solved = found.float()
        before, value = value, expected(following, chances, solved)
        heads = [*heads, solved] if options.horizon else [solved]
        if float((value - before).abs().mean()) <= STILL * float(value.std()):
            break
    return SolvedCritic(agent, body, torch.stack(heads))


def _gram(weighted: Tensor, features: Tensor) -> Tensor:
    """(F, F) sums of products, rounded once per part: over all rows at once in float32 the error
    would come near the ridge, and the matrix would not be positive."""
    rows = torch.split(weighted, ROWS_AT_ONCE), torch.split(features, ROWS_AT_ONCE)
    width = features.shape[1]
    total = features.new_zeros(width, width, dtype=torch.float64)
    for own, plain in zip(*rows, strict=True):
        total += (own.T @ plain).double()
    return total


def _fixed_point(
    heads_of: PooledHeads,
    segments: Sequence[slice],
    weighted: Tensor,
    often: Tensor,
    paid: Tensor,
    ahead: Tensor,
    chances: Tensor,
) -> Tensor:
    """(heads, features) that fit their own targets: where the steps, unclipped, would end."""
    heads, width = len(segments), weighted.shape[1]
    right = torch.stack([weighted[own].T @ paid[own] for own in segments]).double()
    cross = right.new_zeros(heads * width, heads * width)
    for i, own in enumerate(segments):
        for j in range(heads):
            place = slice(i * width, (i + 1) * width), slice(j * width, (j + 1) * width)
            cross[place] = (weighted[own].T @ (chances[own, j : j + 1] * ahead[own])).double()
    found, noise = heads_of.solve_at_once(right, cross)
    if noise is not None:
        target = paid + expected(ahead, chances, found.float())
        sums = right + (cross @ found.flatten()).view_as(right)
        squares = float((often * target**2).sum())
        found = found + heads_of.scatter(found, sums, squares) * noise
    return found.float()


def _reachable(agent: FQEAlgorithm, options: Options, step: int) -> tuple[float, float]:
    """Smallest and largest return of so many steps."""
    if options.value_range is not None:
        return options.value_range
    gamma = options.gamma
    if options.horizon is None:
        worth = 1.0 / (1.0 - gamma)
    else:
        worth = float(step) if gamma == 1.0 else (1.0 - gamma**step) / (1.0 - gamma)
    low, high = float(agent.reward_low), float(agent.reward_high)
    return min(low, low * worth), max(high, high * worth)


@torch.no_grad()
def policy_features(
    agent: FQEAlgorithm, body: EnsembleMLP, observations: NDArray[np.float32]
) -> tuple[Tensor, Tensor]:
    """(N, F) features of what the policy does, and the (N, heads) chances of each head."""
    features, chances = [], []
    for obs in network_inputs(agent, observations):
        drawn = agent.drawn_actions(obs)
        if agent.spaces.is_discrete:
            features.append(_features(body, obs))
            chances.append(drawn[0])
        else:
            each = [_features(body, torch.cat([obs, action], -1)) for action in drawn]
            features.append(torch.stack(each).mean(0))
            chances.append(obs.new_ones(len(obs), 1))
    return torch.cat(features), torch.cat(chances)


@torch.no_grad()
def logged_features(
    agent: FQEAlgorithm,
    body: EnsembleMLP,
    observations: NDArray[np.float32],
    actions: NDArray[np.generic],
) -> tuple[Tensor, Tensor]:
    """(N, F) features of given actions, and the (N,) numbers of their heads."""
    features, heads = [], []
    split = torch.split(torch.from_numpy(np.ascontiguousarray(actions)), ROWS_AT_ONCE)
    for obs, part in zip(network_inputs(agent, observations), split, strict=True):
        action = part.to(obs.device)
        if agent.spaces.is_discrete:
            features.append(_features(body, obs))
            heads.append(action.long())
        else:
            features.append(_features(body, torch.cat([obs, action.float()], -1)))
            heads.append(action.new_zeros(len(action), dtype=torch.int64))
    return torch.cat(features), torch.cat(heads)


def _features(body: EnsembleMLP, inputs: Tensor) -> Tensor:
    """(N, F) outputs of the hidden layers, and a 1."""
    hidden = body(inputs, only_hidden=True)[0]
    return torch.cat([hidden, hidden.new_ones(len(hidden), 1)], -1)
