"""Whether data support an action: a quantile that is uniform over what the data themselves did.

Discrete actions are judged by the estimated behaviour probability, Box actions by two distances: to
the nearest logged pair of observation and action, and how much further that is than the nearest
logged observation, which is what the action adds. The pair alone would excuse odd actions in usual
states, the addition alone any action in a state that the data never reach. Each is turned into a
quantile by what logged rows get from data of other episodes, and so is the smaller of the two: 0.05
means that of the log's own actions one in twenty is as unusual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.dataset import TransitionDataset
from rl_training.data.statistics import observation_statistics
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ConfigError, DataError
from rl_training.ope.behaviour import Behaviour, Clone, OnUpdate, estimated_behaviour
from rl_training.ope.episodes import Floats

REFERENCES, CALIBRATED = 20_000, 4_000
"""Logged rows that Box actions are compared with, and rows by which distances become quantiles."""
AT_ONCE = 1_024
UNUSUAL = 0.05
"""Quantile below which an action counts as one that the data do not support."""


class Scores(Protocol):
    """Larger where an action is more usual."""

    def __call__(self, observations: NDArray[np.float32], actions: NDArray[Any]) -> Floats: ...


class NearestPairs:
    """How usual pairs are by their distances to logged ones, in standardised units."""

    def __init__(self, dataset: TransitionDataset, seed: int = 0) -> None:
        self.mean, self.std = observation_statistics(dataset)
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(dataset))[:REFERENCES]
        inner = np.asarray(dataset.spaces.from_env(dataset.actions), np.float32)
        self.action_std = inner.std(0) + np.float32(1e-3)
        episode = np.repeat(
            np.searchsorted(np.unique(dataset.episode_groups()), dataset.episode_groups()),
            dataset.episode_lengths(),
        )
        if episode.max() < 1:
            raise DataError(
                f"data set '{dataset.name}' holds one episode, which cannot say how far apart "
                "episodes are; give more of them"
            )
        self.references = self._points(dataset.observations[rows], inner[rows])
        self.reference_episode = torch.from_numpy(episode[rows])
        rows = rng.permutation(len(dataset))[:CALIBRATED]
        own = self.closeness(dataset.observations[rows], inner[rows], episode[rows])
        self.usual = np.sort(own, axis=1)
        self.of_logged = self._smaller(own)
        """(logged rows,), what `__call__` says of them without their own episodes."""

    def _points(
        self, observations: NDArray[np.float32], inner: NDArray[np.float32]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """States and actions, each with its number of components divided out."""
        seen = (observations - self.mean) / self.std / np.sqrt(observations.shape[1])
        chosen = inner / self.action_std / np.sqrt(inner.shape[1])
        return torch.from_numpy(seen.astype(np.float32)), torch.from_numpy(
            chosen.astype(np.float32)
        )

    def __call__(self, observations: NDArray[np.float32], actions: NDArray[Any]) -> Floats:
        return self._smaller(self.closeness(observations, actions, None))

    def _smaller(self, closeness: Floats) -> Floats:
        ranks = [quantiles(*pair) for pair in zip(self.usual, closeness, strict=True)]
        return np.asarray(np.minimum(*ranks))

    def closeness(
        self,
        observations: NDArray[np.float32],
        inner: NDArray[Any],
        without: NDArray[np.int64] | None,
    ) -> Floats:
        """(2, B) minus the distance to the nearest pair, and minus what of it the action adds.

        `without` names an episode per row that is not compared with.
        """
        states, actions = self._points(observations, np.asarray(inner, np.float32))
        found = []
        for start in range(0, len(states), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            apart = torch.cdist(states[part], self.references[0])
            if without is not None:
                own = torch.from_numpy(without[part])
                apart = apart.masked_fill(own[:, None] == self.reference_episode, torch.inf)
            state = apart.amin(1)
            pair = torch.hypot(apart, torch.cdist(actions[part], self.references[1])).amin(1)
            found.append(-torch.stack([pair, pair - state]).double().numpy())
        return np.concatenate(found, axis=1)


def quantiles(ordered: Floats, scores: Floats) -> Floats:
    """(B,) shares of `ordered` scores that are at most as large, in (0, 1)."""
    low = np.searchsorted(ordered, scores, side="left")
    high = np.searchsorted(ordered, scores, side="right")
    return np.asarray((0.5 * (low + high) + 0.5) / (len(ordered) + 1.0))


@dataclass(frozen=True, eq=False)
class Support:
    """Quantiles of actions, and what the log would have done instead."""

    spaces: Spaces
    scores: Scores
    usual: Floats
    """Scores of logged rows, in order."""
    clone: Clone

    def quantile(self, observations: NDArray[np.float32], inner: NDArray[Any]) -> Floats:
        """(B,) shares of logged rows whose action is at most as usual, in (0, 1)."""
        return quantiles(self.usual, self.scores(observations, inner))

    def fallback(self, observations: NDArray[np.float32]) -> NDArray[Any]:
        """(B, ...) likeliest actions of the log, in inner units."""
        return self.clone.likeliest(observations)


def fit_support(
    dataset: TransitionDataset,
    behaviour: Behaviour | None = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    on_update: OnUpdate | None = None,
) -> Support:
    """From a log; the clones of `behaviour` are taken where it has some."""
    if behaviour is None or behaviour.clone is None:
        behaviour = estimated_behaviour(dataset, seed=seed, device=device, on_update=on_update)
    clone = behaviour.clone
    assert clone is not None
    if dataset.spaces.is_discrete:
        inner = np.asarray(dataset.spaces.from_env(dataset.actions))
        assert behaviour.probabilities is not None
        usual = behaviour.probabilities[np.arange(len(inner)), inner]
        return Support(dataset.spaces, _ClonedProbability(clone), np.sort(usual), clone)
    pairs = NearestPairs(dataset, seed)
    return Support(dataset.spaces, pairs, np.sort(pairs.of_logged), clone)


@dataclass(frozen=True, eq=False)
class _ClonedProbability:
    clone: Clone

    def __call__(self, observations: NDArray[np.float32], actions: NDArray[Any]) -> Floats:
        every = self.clone.probabilities(observations)
        return np.asarray(every[np.arange(len(actions)), np.asarray(actions, np.int64)])


class Abstaining:
    """A policy that does what the log would have done where data do not support its own action.

    `decide` is the policy: (B, ...) raw observations to inner actions. `decisions` and `fallbacks`
    count.
    """

    def __init__(
        self,
        decide: Callable[[NDArray[np.float32]], NDArray[Any]],
        support: Support,
        below: float = UNUSUAL,
    ) -> None:
        if not 0.0 < below < 1.0:
            raise ConfigError(
                f"below: expected a quantile between 0 and 1, got {below:g}; 0.05 falls back "
                "where one logged action in twenty is as unusual"
            )
        self.decide, self.support, self.below = decide, support, below
        self.decisions = self.fallbacks = 0

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[Any]:
        inner = self.decide(observations)
        unusual = self.support.quantile(observations, inner) < self.below
        self.decisions += len(unusual)
        self.fallbacks += int(unusual.sum())
        if not unusual.any():
            return inner
        instead = self.support.fallback(observations)
        wide = unusual if inner.ndim == 1 else unusual[:, None]
        return np.where(wide, instead, inner).astype(inner.dtype)
