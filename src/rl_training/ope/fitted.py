"""Fitted Q evaluation on a log: one critic of all episodes, two of halves, and replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import DataError
from rl_training.ope.behaviour import OnUpdate
from rl_training.ope.episodes import padded
from rl_training.ope.estimators import Values
from rl_training.ope.intervals import normal_quantile
from rl_training.ope.last_layer import SolvedCritic, solved_critic
from rl_training.ope.options import Options
from rl_training.ope.steps import CountedSteps
from rl_training.runtime.fitted_critics import ResampledCritics
from rl_training.runtime.statistics import Interval

FIXED = 3
"""Critics before the replicates: of all episodes, and of two halves."""


@dataclass(frozen=True, eq=False)
class FittedQ:
    """One critic of all episodes, two of halves, and bootstrap replicates."""

    critics: Sequence[SolvedCritic]
    counts: NDArray[np.int64]
    """(critics, episodes), how often each episode counted."""
    half: NDArray[np.bool_]
    """(episodes,), in which half; the second critic has learned from the first one."""

    def estimate(self, dataset: TransitionDataset, options: Options) -> Interval:
        """The value of all, with the spread of the replicates around it."""
        first = dataset.observations[dataset.episode_starts]
        values = np.stack([critic.state_values(first) for critic in self.critics])
        means = (self.counts * values).sum(1) / self.counts.sum(1)
        spread = float(means[FIXED:].std(ddof=1)) * normal_quantile(options.confidence)
        return Interval(float(means[0]), float(means[0] - spread), float(means[0] + spread))

    def drift(self, dataset: TransitionDataset, options: Options) -> float:
        """How far the value would still move: the mean error of the critic to its own targets over
        the log, times the steps of an episode. It is near 0 where the updates were enough."""
        critic, to_go, following = self.critics[0], None, None
        if options.horizon is not None:
            to_go = np.full(len(dataset), options.horizon)
            following = to_go - 1
        inner = np.asarray(dataset.spaces.from_env(dataset.actions))
        q = critic.action_values(dataset.observations, inner, to_go)
        after = critic.state_values(dataset.next_observations, following)
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
        for critic, mine in ((self.critics[1], ~in_half), (self.critics[2], in_half)):
            own = None if to_go is None else to_go[mine]
            q[mine] = critic.action_values(observations[mine], inner[mine], own)
            v[mine] = critic.state_values(observations[mine], own)
            cut = mine[last] & ~steps.ended
            left = None if to_go is None else to_go[last][cut] - 1
            following = dataset.next_observations[steps.rows[last[cut]]]
            if len(following):
                after[cut] = critic.state_values(following, left)
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
    critics = untrained_critics(config, algorithm, dataset, counts, options)
    critics.fit(on_update)
    solved = []
    for i, (agent, own) in enumerate(zip(critics.agents, counts, strict=True)):
        draw = options.seed + i if i >= FIXED else None
        solved.append(solved_critic(agent, dataset, own, options, draw))
    return FittedQ(solved, counts, half)


def untrained_critics(
    config: TrainConfig,
    algorithm: Algorithm,
    dataset: TransitionDataset,
    counts: NDArray[np.int64],
    options: Options,
) -> ResampledCritics:
    """One for each row of the (critics, episodes) counts."""
    gamma = options.gamma
    if options.horizon is not None:  # features need no count of steps; the last layer counts them
        gamma = min(gamma, 1.0 - 1.0 / max(2, options.horizon))
    knobs = {
        "gamma": gamma,
        "stochastic": options.stochastic,
        "value_range": options.value_range,
        "hidden_sizes": list(options.hidden_sizes),
        "critic_lr": options.critic_lr,
        "tau": options.tau,
    }
    return ResampledCritics(
        config, algorithm, dataset, counts, knobs, updates=options.updates, seed=options.seed
    )


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
