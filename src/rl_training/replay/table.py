"""A data set on the training device, from which a batch is one gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.dataset import TransitionDataset
from rl_training.data.returns import bootstrap_discounts, final_rows, returns_to_go
from rl_training.experiment.errors import DataError
from rl_training.experiment.memory import require_data_memory
from rl_training.replay.batch import Batch, normalized

Random = Callable[[Callable[[torch.Generator | None, int], Tensor]], Tensor]
"""Takes a function that makes n rows of random numbers and returns one such row."""


def observation_statistics(
    dataset: TransitionDataset,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mean and standard deviation of each component; the latter is never 0."""
    obs = dataset.observations
    mean, std = (f(0, dtype=np.float64).astype(np.float32) for f in (obs.mean, obs.std))
    std += np.float32(1e-3)
    if dataset.spaces.has_mask:  # it is read as it is
        kept = slice(-dataset.spaces.action_dim, None)
        mean[kept], std[kept] = 0.0, 1.0
    return mean, std


class TransitionTable:
    """Transitions packed into one row each, so that a batch is a single gather.

    Batches hold the networks' inputs: observations are standardised once, here, with their own
    statistics (`normalize_observations`), or in every sample, by `normalizer`.
    """

    def __init__(
        self,
        dataset: TransitionDataset,
        device: torch.device,
        *,
        gamma: float,
        with_returns: bool,
        with_next_actions: bool = False,
        at_truncation: str = "bootstrap",
        normalize_observations: bool = False,
        normalizer: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if with_returns and not dataset.has_whole_episode:
            raise DataError(
                f"data set '{dataset.name}' holds no whole episode, but returns-to-go are needed; "
                "set terminations or truncations where episodes end, or train an algorithm that "
                "learns from single transitions ('rl-training data inspect' lists them)"
            )
        spaces = dataset.spaces
        self.spaces = spaces
        obs, next_obs = dataset.observations, dataset.next_observations
        self.normalizer = normalizer
        self.obs_mean, self.obs_std = observation_statistics(dataset)
        if normalize_observations:
            # as ObservationNormalizer does when acting
            obs = np.clip((obs - self.obs_mean) / self.obs_std, -10.0, 10.0)
            next_obs = np.clip((next_obs - self.obs_mean) / self.obs_std, -10.0, 10.0)
        action = spaces.from_env(dataset.actions).reshape(len(dataset), -1)
        discount = np.where(dataset.terminations, 0.0, gamma)
        columns = [obs, next_obs, action, dataset.rewards[:, None], discount[:, None]]
        self.final_row: Tensor | None = None
        self.with_returns = with_returns
        if with_returns:
            ends = (dataset.terminations, dataset.truncations)
            columns.append(returns_to_go(dataset.rewards, *ends, gamma)[:, None])
            if at_truncation == "bootstrap" and bool(dataset.truncations.any()):
                columns.append(bootstrap_discounts(*ends, gamma)[:, None])
                self.final_row = torch.from_numpy(final_rows(*ends)).to(device)
        self.next_action_fields: slice | None = None
        if with_next_actions:
            goes_on = ~(dataset.terminations | dataset.truncations)
            goes_on[-1] = False
            self.next_action_fields = slice(len(columns), len(columns) + 2)
            columns += [np.roll(action, -1, axis=0), goes_on[:, None]]
        self.widths = [column.shape[1] for column in columns]
        size = 4 * len(dataset) * sum(self.widths)
        require_data_memory(f"data set '{dataset.name}'", size, device)
        packed = np.concatenate(columns, axis=1, dtype=np.float32)
        self.rows = torch.from_numpy(packed).to(device)
        self.next_obs_columns = slice(self.widths[0], self.widths[0] + self.widths[1])
        self._set_parts(dataset.parts, device)

    def _set_parts(self, parts: Sequence[tuple[int, float]], device: torch.device) -> None:
        sizes = torch.tensor([size for size, _ in parts], dtype=torch.float64)
        weights = torch.tensor([weight for _, weight in parts], dtype=torch.float64)
        self.num_parts = len(parts)
        self.part_ends = (weights / weights.sum()).cumsum(0).to(device)
        self.part_sizes = sizes.to(device)
        self.part_offsets = (sizes.cumsum(0) - sizes).to(device)

    def __len__(self) -> int:
        return self.rows.shape[0]

    def draw(self, size: int, generator: torch.Generator | None = None) -> Tensor:
        """Sample (size,) row numbers: parts by their weight, uniformly within a part."""
        device = self.rows.device
        if self.num_parts == 1:
            return torch.randint(len(self), (size,), device=device, generator=generator)
        u = torch.rand(2, size, dtype=torch.float64, device=device, generator=generator)
        part = torch.bucketize(u[0], self.part_ends[:-1], right=True)
        return (self.part_offsets[part] + (u[1] * self.part_sizes[part]).floor()).long()

    def gather(self, index: Tensor) -> Batch:
        """Return the transitions in the given rows."""
        fields = torch.split(self.rows.index_select(0, index), self.widths, dim=1)
        obs, next_obs, action, reward, discount = fields[:5]
        batch = Batch(
            obs=obs,
            action=self._inner(action),
            reward=reward.squeeze(1),
            next_obs=next_obs,
            discount=discount.squeeze(1),
        )
        if self.next_action_fields is not None:
            following, known = fields[self.next_action_fields]
            batch = batch._replace(
                next_action=self._inner(following),
                has_next_action=known.squeeze(1),
            )
        if self.with_returns:
            batch = batch._replace(returns_to_go=fields[5].squeeze(1))
        if self.final_row is not None:
            last = self.rows.index_select(0, self.final_row.index_select(0, index))
            batch = batch._replace(
                bootstrap_discount=fields[6].squeeze(1), final_obs=last[:, self.next_obs_columns]
            )
        return batch if self.normalizer is None else normalized(batch, self.normalizer)

    def _inner(self, action: Tensor) -> Tensor:
        """Actions as algorithms take them from (B, A) floats, which hold choices exactly."""
        if self.spaces.is_box:
            return action
        return action.squeeze(1).long() if self.spaces.is_discrete else action.long()

    def everything(self) -> Batch:
        """Return all transitions in their order."""
        return self.gather(torch.arange(len(self), device=self.rows.device))

    def sample(self, size: int, random: Random | None = None) -> Batch:
        """Sample `size` transitions; `random` may supply row numbers that were sampled ahead."""
        if random is None:
            return self.gather(self.draw(size))
        return self.gather(random(lambda g, n: self.draw(n * size, g).view(n, size)))
