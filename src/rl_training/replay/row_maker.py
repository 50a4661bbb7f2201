"""Transitions as rows of numbers, made from a data set where they are wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.dataset import TransitionDataset
from rl_training.data.returns import bootstrap_discounts, final_rows, returns_to_go
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError


def observation_columns(spaces: Spaces) -> int:
    """Columns of float32 that an observation takes; an image's bytes are four to a column."""
    return -(-spaces.obs_dim // 4) if spaces.is_image else spaces.obs_dim


class RowMaker:
    """Makes rows of [obs, next_obs, action, reward, discount, ...]; a row depends on nothing but
    its number, so that it is the same wherever and whenever it is made. Images stay bytes, which
    the columns hold as they are.

    Columns after the fifth: the return-to-go (`with_returns`) and, where truncated returns are
    bootstrapped, its discount and the final observation; the next action and whether it is known
    (`with_next_actions`).
    """

    def __init__(
        self,
        dataset: TransitionDataset,
        *,
        gamma: float,
        with_returns: bool,
        with_next_actions: bool,
        at_truncation: str,
        statistics: tuple[NDArray[np.float32], NDArray[np.float32]] | None,
    ) -> None:
        if with_returns and not dataset.has_whole_episode:
            raise DataError(
                f"data set '{dataset.name}' holds no whole episode, but returns-to-go are needed; "
                "set terminations or truncations where episodes end, or train an algorithm that "
                "learns from single transitions ('rl-training data inspect' lists them)"
            )
        self.dataset, self.gamma, self.statistics = dataset, gamma, statistics
        spaces, ends = dataset.spaces, (dataset.terminations, dataset.truncations)
        action_width = 1 if spaces.is_discrete else spaces.action_dim
        seen = observation_columns(spaces)
        self.widths = [seen, seen, action_width, 1, 1]
        self.returns: list[NDArray[np.float32]] = []
        self.final_row: NDArray[np.int64] | None = None
        """Row with each row's final observation as its next one, where returns bootstrap."""
        if with_returns:
            self.returns.append(returns_to_go(dataset.rewards, *ends, gamma))
            if at_truncation == "bootstrap" and bool(dataset.truncations.any()):
                self.returns.append(bootstrap_discounts(*ends, gamma))
                self.final_row = final_rows(*ends)
        self.widths += [1] * len(self.returns)
        self.with_next_actions = with_next_actions
        if with_next_actions:
            self.widths += [action_width, 1]

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def nbytes(self) -> int:
        """Size of all rows."""
        return 4 * len(self) * sum(self.widths)

    def span(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop)."""
        return self._made(slice(start, stop), np.arange(start, stop))

    def at(self, index: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows of the given numbers."""
        return self._made(index, index)

    def final_observations(self, index: NDArray[np.int64]) -> NDArray[np.float32]:
        """The last observation of the episode of each row."""
        assert self.final_row is not None
        return self._seen(self.dataset.next_observations[self.final_row[index]])

    def _made(
        self, rows: slice | NDArray[np.int64], index: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        data = self.dataset
        columns = [
            self._seen(data.observations[rows]),
            self._seen(data.next_observations[rows]),
            self._actions(rows),
            data.rewards[rows],
            np.where(data.terminations[rows], 0.0, self.gamma),
            *(values[rows] for values in self.returns),
        ]
        if self.with_next_actions:
            goes_on = ~(data.terminations[rows] | data.truncations[rows])
            columns += [self._actions((index + 1) % len(data)), goes_on & (index < len(data) - 1)]
        made = np.empty((len(index), sum(self.widths)), np.float32)
        first = 0
        for column, width in zip(columns, self.widths, strict=True):
            made[:, first : first + width] = column.reshape(len(index), width)
            first += width
        return made

    def _seen(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        if self.dataset.spaces.is_image:
            rows = np.zeros((len(observations), 4 * self.widths[0]), np.uint8)
            rows[:, : self.dataset.spaces.obs_dim] = observations.reshape(len(observations), -1)
            return rows.view(np.float32)
        if self.statistics is None:
            return observations
        mean, std = self.statistics
        # as ObservationNormalizer does when acting
        scaled: NDArray[np.float32] = np.clip((observations - mean) / std, -10.0, 10.0)
        return scaled

    def _actions(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        return self.dataset.spaces.from_env(self.dataset.actions[rows])
