"""Demonstrations: some episodes of a data set, thinned out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.errors import ConfigError


def demonstrations(
    dataset: TransitionDataset, episodes: int | None, every: int, seed: int
) -> TransitionDataset:
    """The first `episodes` (all: None), of each every `every`-th step, from a random one on.

    Ho and Ermon thin demonstrations out so that few of them are hard to clone. Each keeps at
    least one step; (seed, number of the episode) decides which. The last step that is kept
    closes its episode, and no return of what is left means anything.
    """
    if episodes is not None:
        if episodes > dataset.num_episodes:
            raise ConfigError(
                f"algo_kwargs.demo_episodes: {episodes:,} demonstrations were asked for, but data "
                f"set '{dataset.name}' has {dataset.num_episodes:,}; set at most "
                f"{dataset.num_episodes:,}, or bring more data"
            )
        dataset = dataset.take_episodes(episodes)
    if every == 1:
        return dataset
    kept, last = [], []
    for i, (start, end) in enumerate(
        zip(dataset.episode_starts, dataset.episode_ends, strict=True)
    ):
        first = np.random.default_rng([seed, i]).integers(min(every, end - start + 1))
        kept.append(np.arange(start + first, end + 1, every))
        last.append(kept[-1][-1])
    rows = np.concatenate(kept)
    arrays: dict[str, Any] = {name: array[rows] for name, array in dataset.to_arrays().items()}
    closes = np.isin(rows, np.asarray(last))
    arrays["truncations"] = closes & ~arrays["terminations"]
    bounds = np.cumsum([0, *(size for size, _ in dataset.parts)])
    counts = np.diff(np.searchsorted(rows, bounds))
    parts = [(int(n), weight) for n, (_, weight) in zip(counts, dataset.parts, strict=True)]
    return replace(
        dataset,
        **arrays,
        name=f"{dataset.name}, every {every}th step",
        parts=tuple(parts),
        has_whole_episode=False,
        groups=None if dataset.groups is None else dataset.groups[rows],
        stamp=None,
        statistics=None,
    )
