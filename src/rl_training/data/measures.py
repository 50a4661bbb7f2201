"""What decides the first run on a data set: edges, rewards, scales, and how random the log is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import TransitionDataset

EDGE = 1e-3
"""Share of a component's range that counts as its edge, at either end."""
OFTEN_AT_EDGE = 0.05
"""Share of the actions at the edge from which the choice of a policy's density matters."""
UNEVEN_SCALES = 10.0
"""Ratio of the largest to the smallest standard deviation from which normalising is advised."""
FAR_FROM_ONE = 2.0
"""Factor of the suggested scaling below which none is suggested."""
QUERIES, MOST_REFERENCES, MOST_NUMBERS = 1_000, 50_000, 20_000_000
"""Rows whose nearest neighbour is looked for, and rows and numbers among which it is."""
SAME = 0.01
"""Share of the actions' variance below which two actions count as the same."""
DETERMINISTIC, RANDOM = 0.15, 0.6
"""Shares of the actions' variance, between like states, that are called so."""


@dataclass(frozen=True)
class ActionNoise:
    """How much actions differ where observations are nearly the same.

    A row is compared with its nearest neighbour. Half of their actions' mean squared difference
    estimates the variance that the observation does not explain; distance between neighbours
    adds to it, so a deterministic log of a rough policy is overrated, never underrated.
    """

    share: float  # of the actions' whole variance: 0 deterministic, 1 unrelated to the state
    repeated: float  # rows whose nearest neighbour took the same action

    @property
    def verdict(self) -> str:
        if self.share <= DETERMINISTIC:
            return "nearly deterministic"
        if self.share >= RANDOM:
            return "mostly random, or several policies that disagree"
        return "noisy, or several policies that disagree"


@dataclass(frozen=True)
class RewardScaling:
    """A section `dataset.rewards` to begin with, where knobs are in units of returns."""

    key: str  # return_range or scale
    value: float
    factor: float  # by which rewards are multiplied


def at_edge(dataset: TransitionDataset) -> tuple[float, ...]:
    """Share of the rows with each Box action component at an end of its range."""
    if not dataset.spaces.is_box:
        return ()
    low = np.asarray(dataset.spaces.action_low)
    width = np.asarray(dataset.spaces.action_high) - low
    place = (dataset.actions - low) / width
    return tuple(float(share) for share in ((place <= EDGE) | (place >= 1.0 - EDGE)).mean(0))


def suggested_scaling(dataset: TransitionDataset) -> RewardScaling | None:
    """Scaling with which a step is worth about 1: best and worst episode then differ by as much
    as a mean episode has steps, which is 1000 for the benchmarks that `return_range` is known
    from; where all return the same, rewards get a standard deviation of 1."""
    returns, length = dataset.episode_returns(), float(dataset.episode_lengths().mean())
    spread, std = float(np.ptp(returns)), float(dataset.rewards.std(dtype=np.float64))
    if spread > 0.0 and dataset.num_episodes > 1:
        target = _two_digits(length)
        scaling = RewardScaling("return_range", target, target / spread)
    elif std > 0.0:
        factor = _two_digits(1.0 / std)
        scaling = RewardScaling("scale", factor, factor)
    else:
        return None
    usual = 1.0 / FAR_FROM_ONE < scaling.factor < FAR_FROM_ONE
    return None if usual or not np.isfinite(scaling.factor) else scaling


def observation_spread(observations: NDArray[np.float32]) -> float:
    """Largest over smallest standard deviation of the components that change; 1 if none does."""
    stds = observations.std(0, dtype=np.float64)
    changing = stds[stds > 0.0]
    return float(changing.max() / changing.min()) if len(changing) else 1.0


def action_noise(
    dataset: TransitionDataset, queries: int = QUERIES, most_numbers: int = MOST_NUMBERS
) -> ActionNoise | None:
    """How random the log is; None if it has too few rows or only one action, or an image beside
    other parts, between which there is no distance.

    The nearest neighbours of at most `queries` rows are looked for, among rows that hold at most
    `most_numbers` numbers.
    """
    actions, variance = _actions(dataset)
    if len(dataset) < 10 or not variance > 0.0 or dataset.spaces.packing is not None:
        return None
    generator = np.random.default_rng(0)
    width = dataset.spaces.obs_dim
    most = min(len(dataset), MOST_REFERENCES, max(most_numbers // width, 10))
    rows = np.sort(generator.permutation(len(dataset))[:most])
    scaled = _standardised(dataset.observations[rows].reshape(len(rows), -1))
    actions = actions[rows]
    chosen = generator.permutation(most)[:queries]
    squares = np.square(scaled).sum(1)
    differences = []
    for part in np.array_split(chosen, -(-len(chosen) // 50)):
        distance = squares - 2.0 * (scaled[part] @ scaled.T)  # less a constant of the row
        distance[np.arange(len(part)), part] = np.inf
        nearest = actions[distance.argmin(1)]
        if not dataset.spaces.is_box:
            differences.append(2.0 * (actions[part] != nearest).sum(1))
        else:
            differences.append(np.square(actions[part] - nearest).sum(1))
    share = np.concatenate(differences) / (2.0 * variance)
    return ActionNoise(min(float(share.mean()), 1.0), float((share < SAME).mean()))


def hints(dataset: TransitionDataset, noise: ActionNoise | None) -> tuple[str, ...]:
    """The settings to choose first, one sentence each."""
    found = []
    edge = at_edge(dataset)
    if edge and max(edge) >= OFTEN_AT_EDGE:
        found.append(
            f"{max(edge):.0%} of the actions are at the edge of the box in one component: compare "
            "algo_kwargs.action_distribution gaussian and tanh_gaussian, because a squashed "
            "policy is drawn to the edges"
        )
    scaling = suggested_scaling(dataset) if dataset.has_rewards else None
    if scaling:
        found.append(
            "for algorithms whose knobs are in units of returns, begin with "
            f"dataset.rewards.{scaling.key}: {scaling.value:g}, which multiplies rewards by "
            f"{scaling.factor:.3g}"
        )
    spread = 1.0 if dataset.spaces.is_image else observation_spread(dataset.observations)
    if spread >= UNEVEN_SCALES:
        found.append(
            f"observation components differ in scale by a factor of {spread:,.0f}: set "
            "dataset.normalize_observations: true"
        )
    if noise and noise.share <= DETERMINISTIC:
        found.append(
            "the log is nearly deterministic, so similar states rarely show a second "
            "action to compare: begin with behaviour cloning, plain and weighted by returns"
        )
    return tuple(found)


def _actions(dataset: TransitionDataset) -> tuple[NDArray[Any], float]:
    """(N, A) actions in inner units, and their variance; of choices as if they were one-hot."""
    inner = dataset.spaces.from_env(dataset.actions).reshape(len(dataset), -1)
    if not dataset.spaces.is_box:
        shares = [np.unique(part, return_counts=True)[1] / len(inner) for part in inner.T]
        return inner, sum(1.0 - float(np.square(share).sum()) for share in shares)
    return inner, float(inner.var(0, dtype=np.float64).sum())


def _standardised(observations: NDArray[np.float32]) -> NDArray[np.float32]:
    values = observations.astype(np.float64)
    std = values.std(0)
    scaled: NDArray[Any] = (values - values.mean(0)) / np.where(std > 0.0, std, 1.0)
    return scaled.astype(np.float32)


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
