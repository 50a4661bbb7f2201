"""A summary of a data set, and which algorithms can be trained on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import TransitionDataset
from rl_training.data.inference import describe_bounds
from rl_training.data.measures import ActionNoise, action_noise, at_edge, hints
from rl_training.data.readers import read_file_arrays
from rl_training.data.sources import load_transition_dataset
from rl_training.envs.spaces import ACTION_NAMES, Spaces
from rl_training.experiment.errors import RLTrainingError

QUANTILES = {"min": 0.0, "5%": 0.05, "25%": 0.25, "50%": 0.5, "75%": 0.75, "95%": 0.95, "max": 1.0}
COVERAGE_BINS = 20
HISTOGRAM_BINS = 12
MOST_ROWS_ON_DISK, MOST_BYTES_ON_DISK = 2_000_000, 4_000_000_000
"""Rows and bytes of data on disk that are described; more would not fit into every memory."""


@dataclass(frozen=True)
class ColumnSummary:
    """One component of an observation or action."""

    low: float
    high: float
    mean: float
    std: float


class Requirements(NamedTuple):
    """The requirements of an algorithm on data."""

    action_kinds: frozenset[str]  # of those of `Spaces`
    takes_images: bool
    needs_returns: bool
    needs_rewards: bool
    summary: str  # what it does, in one line


@dataclass(frozen=True)
class Trainability:
    """Whether an algorithm can be trained on the data; what it does with them, or why not."""

    algorithm: str
    possible: bool
    reason: str


@dataclass(frozen=True)
class DatasetSummary:
    """Plain values: `dataclasses.asdict` of it can be written as JSON."""

    name: str
    spaces: str
    steps: int
    episodes: int
    parts: tuple[tuple[int, float], ...]
    return_quantiles: dict[str, float]  # empty without rewards
    return_mean: float | None
    return_histogram: tuple[tuple[float, float, int], ...]  # (from, to, episodes)
    reward_quantiles: dict[str, float]  # of single steps
    reward_mean: float | None
    reward_std: float | None
    length_min: int
    length_mean: float
    length_max: int
    terminations: int
    truncations: int
    observations: tuple[ColumnSummary, ...]
    actions: tuple[ColumnSummary, ...]  # Box only
    action_coverage: tuple[float, ...]
    """Box: share of each component's range visited, in 20 bins; Discrete: share of each action."""
    action_kind: str
    actions_at_edge: tuple[float, ...]
    """Box: share of the rows with each component at an end of its range."""
    action_noise: ActionNoise | None
    duplicate_rows: int
    hints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trainable: tuple[Trainability, ...] = field(default=())


def summarize(
    dataset: TransitionDataset,
    requirements: Mapping[str, Requirements] | None = None,
) -> DatasetSummary:
    """Summary of `dataset`, and on which of the algorithms in `requirements` it can be used.

    Of data on disk that are large, some episodes are described, which a note says.
    """
    dataset = _some_episodes(dataset)
    lengths = dataset.episode_lengths()
    rewarded = dataset.has_rewards
    returns = dataset.episode_returns() if rewarded else np.zeros(0)
    rewards = dataset.rewards.astype(np.float64) if rewarded else np.zeros(0)
    discrete, noise = dataset.spaces.is_discrete, action_noise(dataset)
    return DatasetSummary(
        name=dataset.name,
        spaces=f"{dataset.spaces.named_observations()}, actions {describe_bounds(dataset.spaces)}",
        steps=len(dataset),
        episodes=dataset.num_episodes,
        parts=dataset.parts,
        return_quantiles=_quantiles(returns),
        return_mean=float(returns.mean()) if rewarded else None,
        return_histogram=histogram(returns) if rewarded else (),
        reward_quantiles=_quantiles(rewards),
        reward_mean=float(rewards.mean()) if rewarded else None,
        reward_std=float(rewards.std()) if rewarded else None,
        length_min=int(lengths.min()),
        length_mean=float(lengths.mean()),
        length_max=int(lengths.max()),
        terminations=int(dataset.terminations.sum()),
        truncations=int(dataset.truncations.sum()),
        observations=() if dataset.spaces.is_image else _columns(dataset.observations),
        actions=() if discrete else _columns(dataset.actions),
        action_coverage=action_coverage(dataset),
        action_kind=dataset.spaces.action_kind,
        actions_at_edge=at_edge(dataset),
        action_noise=noise,
        duplicate_rows=count_duplicate_rows(dataset),
        hints=hints(dataset, noise),
        notes=dataset.notes,
        trainable=tuple(
            trainability(dataset, name, needs) for name, needs in (requirements or {}).items()
        ),
    )


def _some_episodes(dataset: TransitionDataset) -> TransitionDataset:
    """The data set in memory; of a large one on disk, episodes that are evenly spaced."""
    row = 2 * dataset.observations.nbytes // len(dataset)
    most = max(min(MOST_ROWS_ON_DISK, MOST_BYTES_ON_DISK // row), 1)
    if dataset.on_disk and len(dataset) > most:
        every = -(-len(dataset) // most)
        chosen = np.arange(dataset.num_episodes) % every == 0
        note = (
            f"described are {int(chosen.sum()):,} of {dataset.num_episodes:,} episodes, of a data "
            f"set of {len(dataset):,} steps"
        )
        some = dataset.choose_episodes(chosen)
        dataset = replace(some, notes=(*dataset.notes, note))
    return dataset.in_memory()


def trainability(dataset: TransitionDataset, algorithm: str, needs: Requirements) -> Trainability:
    """Whether an algorithm with these requirements can be trained on `dataset`."""
    kind = dataset.spaces.action_kind
    if kind not in needs.action_kinds:
        kinds = " and ".join(ACTION_NAMES[known] for known in sorted(needs.action_kinds))
        return Trainability(
            algorithm, False, f"takes {kinds} actions, these are {ACTION_NAMES[kind]}"
        )
    if dataset.spaces.is_image and not needs.takes_images:
        return Trainability(algorithm, False, "takes vectors, these are images")
    if needs.needs_rewards and not dataset.has_rewards:
        return Trainability(algorithm, False, "needs rewards, there are none")
    if needs.needs_returns and not dataset.has_whole_episode:
        return Trainability(
            algorithm, False, "needs returns, but no row is marked as an episode's end"
        )
    return Trainability(algorithm, True, needs.summary)


def histogram(values: NDArray[np.float64]) -> tuple[tuple[float, float, int], ...]:
    """(from, to, count) of equal bins; one bin where the values are too close for more."""
    low, high = float(values.min()), float(values.max())
    edges = np.linspace(low, high, HISTOGRAM_BINS + 1)
    if not (np.diff(edges) > 0.0).all():
        return ((low, high, len(values)),)
    counts, _ = np.histogram(values, bins=edges)
    return tuple(
        (float(edges[i]), float(edges[i + 1]), int(count)) for i, count in enumerate(counts)
    )


def _quantiles(values: NDArray[np.float64]) -> dict[str, float]:
    if not len(values):
        return {}
    found = np.quantile(values, list(QUANTILES.values()))
    return {name: float(value) for name, value in zip(QUANTILES, found, strict=True)}


def action_coverage(dataset: TransitionDataset) -> tuple[float, ...]:
    """Box: share of 20 equal bins of each component's range that hold an action;
    Discrete: share of the rows with each action; MultiDiscrete: share of each part's choices that
    occur."""
    spaces = dataset.spaces
    if spaces.is_discrete:
        counts = np.bincount(dataset.actions - spaces.action_start, minlength=spaces.action_dim)
        return tuple(float(count) / len(dataset) for count in counts)
    if not spaces.is_box:
        used = [len(np.unique(column)) for column in dataset.actions.T]
        return tuple(count / n for count, n in zip(used, spaces.action_choices, strict=True))
    low = np.asarray(spaces.action_low)
    width = np.asarray(spaces.action_high) - low
    bins = ((dataset.actions - low) / width * COVERAGE_BINS).astype(np.int64)
    bins = bins.clip(0, COVERAGE_BINS - 1)
    return tuple(len(np.unique(column)) / COVERAGE_BINS for column in bins.T)


def count_duplicate_rows(dataset: TransitionDataset) -> int:
    """Rows that repeat an earlier row in every array, bit for bit."""
    columns = [
        np.ascontiguousarray(array.reshape(len(dataset), -1)).view(np.uint8)
        for array in dataset.to_arrays().values()
    ]
    rows = np.concatenate(columns, axis=1)
    padding = -rows.shape[1] % 8
    words = np.pad(rows, ((0, 0), (0, padding))).view(np.uint64)
    # Sorting whole rows is slow; only rows whose cheap hash recurs can be duplicates.
    hashes = np.zeros(len(dataset), np.uint64)
    for column in words.T:
        hashes = (hashes ^ column) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    candidates = np.ascontiguousarray(words[counts[inverse] > 1])
    if not len(candidates):
        return 0
    whole = candidates.view([("row", np.void, candidates.shape[1] * 8)])
    return len(candidates) - len(np.unique(whole))


def _columns(array: NDArray[Any]) -> tuple[ColumnSummary, ...]:
    values = array.astype(np.float64)
    return tuple(
        ColumnSummary(float(low), float(high), float(mean), float(std))
        for low, high, mean, std in zip(
            values.min(0), values.max(0), values.mean(0), values.std(0), strict=True
        )
    )


# --- files that may be wrong -----------------------------------------------------------------


@dataclass(frozen=True)
class ArrayReport:
    """One array of a file, whatever its state."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    nans: int
    infinities: int


@dataclass(frozen=True)
class FileReport:
    """What a file holds, and the sentence with which it would be refused, if any."""

    path: str
    arrays: tuple[ArrayReport, ...]
    problem: str | None


def inspect_file(
    path: str | Path,
    *,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    spaces: Spaces | None = None,
) -> FileReport:
    """Look into a file of arrays or a table without insisting that it is valid."""
    problem = None
    try:
        load_transition_dataset(
            path, env_id=env_id, env_kwargs=env_kwargs, spaces=spaces, needs_rewards=False
        )
    except RLTrainingError as error:
        problem = str(error)
    try:
        stored = read_file_arrays(path)
    except RLTrainingError as error:
        return FileReport(str(path), (), problem or str(error))
    reports = []
    for key, array in stored.items():
        floats = array.dtype.kind == "f"
        nans = int(np.isnan(array).sum()) if floats else 0
        infinities = int(np.isinf(array).sum()) if floats else 0
        reports.append(ArrayReport(key, array.shape, str(array.dtype), nans, infinities))
    return FileReport(str(path), tuple(reports), problem)
