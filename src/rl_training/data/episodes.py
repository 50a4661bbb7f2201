"""Which episodes of a data set are learned from, and which are set aside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.config import DatasetConfig, KeepConfig, SplitConfig
from rl_training.experiment.errors import ConfigError, DataError


def chosen_episodes(dataset: TransitionDataset, config: DatasetConfig) -> TransitionDataset:
    """The episodes that a configuration keeps, with those that it sets aside in `held_out`."""
    if config.keep is not None:
        dataset = kept_episodes(dataset, config.keep)
    return dataset if config.split is None else split_episodes(dataset, config.split)


def kept_episodes(dataset: TransitionDataset, keep: KeepConfig) -> TransitionDataset:
    """The best episodes, in their order."""
    if not dataset.has_rewards:
        raise DataError(
            f"dataset.keep: data set '{dataset.name}' has no rewards, so that no return is known; "
            "remove this key, or add the array 'rewards'"
        )
    if not dataset.has_whole_episode:
        raise DataError(
            f"dataset.keep: data set '{dataset.name}' holds no whole episode, so that no return is "
            "known; set terminations or truncations where episodes end"
        )
    returns = dataset.episode_returns()
    if keep.top is not None:
        count = max(1, round(keep.top * len(returns)))
        chosen = np.zeros(len(returns), bool)
        chosen[np.argsort(-returns, kind="stable")[:count]] = True
    else:
        assert keep.return_at_least is not None
        chosen = returns >= keep.return_at_least
        if not chosen.any():
            raise ConfigError(
                f"dataset.keep.return_at_least: no episode of data set '{dataset.name}' returns "
                f"{keep.return_at_least:g} or more, the best returns {returns.max():g}; lower it"
            )
    note = (
        f"{int(chosen.sum()):,} of {len(returns):,} episodes are kept, which return "
        f"{returns[chosen].min():g} or more"
    )
    return replace(dataset.choose_episodes(chosen), notes=(*dataset.notes, note))


def split_episodes(dataset: TransitionDataset, split: SplitConfig) -> TransitionDataset:
    """The data set without a random share of its episodes, which its `held_out` then are.

    Where groups are known, all episodes of a group go the same way.
    """
    owners = dataset.episode_groups()
    groups = np.unique(owners)
    if len(groups) < 2:
        what = "episode" if dataset.groups is None else "group"
        raise ConfigError(
            f"dataset.split: data set '{dataset.name}' has one {what}, of which none can be set "
            "aside; remove this key, or mark where episodes end"
        )
    count = min(max(1, round(split.holdout * len(groups))), len(groups) - 1)
    aside = np.random.default_rng(split.seed).permutation(len(groups))[:count]
    chosen = np.isin(owners, groups[aside])
    what = "episodes" if dataset.groups is None else f"episodes of {count:,} groups"
    note = f"{int(chosen.sum()):,} of {len(owners):,} {what} are held out"
    return replace(
        dataset.choose_episodes(~chosen),
        held_out=dataset.choose_episodes(chosen),
        notes=(*dataset.notes, note),
    )
