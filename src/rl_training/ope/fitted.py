"""Fitted Q evaluation on a log: one critic of all episodes, two of halves, and replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.fqe import FQEAlgorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import DataError
from rl_training.ope.behaviour import OnUpdate
from rl_training.ope.episodes import Floats, padded
from rl_training.ope.estimators import Values
from rl_training.ope.intervals import normal_quantile
from rl_training.ope.options import Options
from rl_training.ope.steps import ROWS_AT_ONCE, CountedSteps, network_inputs
from rl_training.runtime.fitted_critics import ResampledCritics
from rl_training.runtime.statistics import Interval


@dataclass(frozen=True, eq=False)
class FittedQ:
    """One critic of all episodes, two of halves, and bootstrap replicates."""

    agents: Sequence[FQEAlgorithm]
    counts: NDArray[np.int64]
    """(agents, episodes), how often each episode counted."""
    half: NDArray[np.bool_]
    """(episodes,), in which half; the second critic has learned from the first one."""

    def estimate(self, dataset: TransitionDataset, options: Options) -> Interval:
        """The value of all, with the spread of the replicates around it."""
        first = dataset.observations[dataset.episode_starts]
        values = np.stack([_state_values(agent, first, None) for agent in self.agents])
        means = (self.counts * values).sum(1) / self.counts.sum(1)
        spread = float(means[3:].std(ddof=1)) * normal_quantile(options.confidence)
        return Interval(float(means[0]), float(means[0] - spread), float(means[0] + spread))

    def drift(self, dataset: TransitionDataset, options: Options) -> float:
        """How far the value would still move: the mean error of the critic to its own targets over
        the log, times the steps of an episode. It is near 0 where the updates were enough."""
        agent, to_go, following = self.agents[0], None, None
        if options.horizon is not None:
            to_go = np.full(len(dataset), options.horizon)
            following = to_go - 1
        inner = np.asarray(dataset.spaces.from_env(dataset.actions))
        q = _action_values(agent, dataset.observations, inner, to_go)
        after = _state_values(agent, dataset.next_observations, following)
        target = dataset.rewards + options.gamma * np.where(dataset.terminations, 0.0, after)
        return float((target - q).mean() * dataset.episode_lengths().mean())

    def values(self, dataset: TransitionDataset, steps: CountedSteps, options: Options) -> Values:
        """Q and V of every row by the critic that has not learned from its episode."""
        in_half = np.repeat(self.half, steps.lengths)
        observations = dataset.observations[steps.rows]
        inner = np.asarray(dataset.spaces.from_env(dataset.actions))[steps.rows]
        to_go = None if options.horizon is None else (options.horizon - steps.step)
        q, v = np.zeros(len(steps.rows)), np.zeros(len(steps.rows))
        last = np.append(steps.starts[1:], len(steps.rows)) - 1
        after = np.zeros(steps.count)
        for agent, mine in ((self.agents[1], ~in_half), (self.agents[2], in_half)):
            own = None if to_go is None else to_go[mine]
            q[mine] = _action_values(agent, observations[mine], inner[mine], own)
            v[mine] = _state_values(agent, observations[mine], own)
            cut = mine[last] & ~steps.ended
            left = None if to_go is None else to_go[last][cut] - 1
            following = dataset.next_observations[steps.rows[last[cut]]]
            if len(following):
                after[cut] = _state_values(agent, following, left)
        wide = np.zeros((steps.count, int(steps.lengths.max()) + 1))
        wide[:, :-1] = padded(v, steps.starts, steps.lengths)
        wide[np.arange(steps.count), steps.lengths] = after
        return Values(padded(q, steps.starts, steps.lengths), wide)


def fit_critics(
    config: TrainConfig,
    algorithm: Algorithm,
    dataset: TransitionDataset,
    options: Options,
    on_update: OnUpdate | None,
) -> FittedQ:
    """Critics of all episodes, of halves and of resampled ones, in one batched update."""
    counts, half = _counts(dataset, options)
    critics = ResampledCritics(
        config,
        algorithm,
        dataset,
        counts,
        {
            "gamma": options.gamma,
            "horizon": options.horizon,
            "stochastic": options.stochastic,
            "value_range": options.value_range,
            "hidden_sizes": list(options.hidden_sizes),
            "critic_lr": options.critic_lr,
            "tau": options.tau,
        },
        updates=options.updates,
        seed=options.seed,
    )
    critics.fit(on_update)
    return FittedQ(critics.agents, counts, half)


def _counts(
    dataset: TransitionDataset, options: Options
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How often each episode counts for each critic, and which half an episode is in."""
    groups, owner = np.unique(dataset.episode_groups(), return_inverse=True)
    owner = owner.reshape(-1)
    if len(groups) < 2:
        raise DataError(
            f"data set '{dataset.name}' holds one episode, from which no interval can be made; "
            "give more of them"
        )
    rng = np.random.default_rng(options.seed)
    half = (rng.permutation(len(groups)) % 2 == 1)[owner]
    even = np.full(len(groups), 1.0 / len(groups))
    drawn = rng.multinomial(len(groups), even, size=options.replicates)[:, owner]
    whole = np.ones((1, len(owner)), np.int64)
    return np.concatenate([whole, half[None], ~half[None], drawn]).astype(np.int64), half


@torch.no_grad()
def _state_values(
    agent: FQEAlgorithm, observations: NDArray[np.float32], to_go: NDArray[np.int64] | None
) -> Floats:
    parts = network_inputs(agent, observations)
    left = _split(to_go, parts)
    found = [agent.state_values(obs, own) for obs, own in zip(parts, left, strict=True)]
    return np.asarray(torch.cat(found).double().cpu().numpy())


@torch.no_grad()
def _action_values(
    agent: FQEAlgorithm,
    observations: NDArray[np.float32],
    inner: NDArray[Any],
    to_go: NDArray[np.int64] | None,
) -> Floats:
    parts = network_inputs(agent, observations)
    actions = torch.split(torch.from_numpy(np.ascontiguousarray(inner)), ROWS_AT_ONCE)
    left = _split(to_go, parts)
    found = [
        agent.action_values(obs, action.to(obs.device), own)
        for obs, action, own in zip(parts, actions, left, strict=True)
    ]
    return np.asarray(torch.cat(found).double().cpu().numpy())


def _split(
    to_go: NDArray[np.int64] | None, parts: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    if to_go is None:
        return [None] * len(parts)
    whole = torch.split(torch.from_numpy(to_go.astype(np.float32)), ROWS_AT_ONCE)
    return [own.to(obs.device) for own, obs in zip(whole, parts, strict=True)]
