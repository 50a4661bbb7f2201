"""A data set as a table of rows, from which a batch is one gather.

The table lives in one of three homes: on the training device, in host memory, or on disk. On the
device a batch is gathered inside the update; from the other homes the rows of some updates are
brought to the device before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rl_training.data.dataset import AT_ONCE, MOST_BYTES_AT_ONCE, TransitionDataset
from rl_training.data.homes import Home, MemoryHome, chosen_home
from rl_training.data.returns import episodes_by_return
from rl_training.data.statistics import observation_statistics
from rl_training.experiment.memory import available_memory
from rl_training.replay.batch import Batch, normalized
from rl_training.replay.row_maker import RowMaker

Random = Callable[[Callable[[torch.Generator | None, int], Tensor]], Tensor]
"""Takes a function that makes n rows of random numbers and returns one such row."""


READ_AT_ONCE = 8_192
"""Rows that are read from disk before their pages are given back: the system maps up to 64 KB for
each, so that these are half a GB."""


class TransitionTable:
    """Transitions packed into one row each, so that a batch is a single gather.

    Batches hold the networks' inputs: observations are standardised in the rows, with their own
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
        home: Home = "auto",
        return_temperature: float = 0.0,
    ) -> None:
        self.device, self.spaces, self.normalizer = device, dataset.spaces, normalizer
        self.statistics = observation_statistics(dataset) if normalize_observations else None
        maker = RowMaker(
            dataset,
            gamma=gamma,
            with_returns=with_returns,
            with_next_actions=with_next_actions,
            at_truncation=at_truncation,
            statistics=self.statistics,
        )
        self.count, self.widths = len(maker), maker.widths
        self.with_returns, self.bootstraps = with_returns, maker.final_row is not None
        known = 5 + len(maker.returns)
        self.next_action_fields = slice(known, known + 2) if with_next_actions else None
        self.home, self.reason = chosen_home(
            home,
            dataset.name,
            maker.nbytes,
            MemoryHome(available_memory(device), device.type),
            MemoryHome(available_memory(torch.device("cpu")), "cpu"),
            dataset.on_disk,
        )
        self.rows: Tensor | None = None
        """All rows, on the device or in host memory; None where they stay on disk."""
        self.final_row: Tensor | None = None
        self.maker: RowMaker | None = None
        """Makes rows of data on disk; the others need the data set no longer."""
        if self.home == "disk":
            self.maker = maker
            dataset.expect_random_access()
        else:
            self._fill(maker, device if self.home == "device" else torch.device("cpu"))
        parts = dataset.parts
        if return_temperature:
            parts = episodes_by_return(dataset, return_temperature)
        self._set_parts(parts, device)

    def _fill(self, maker: RowMaker, device: torch.device) -> None:
        pinned = device.type == "cpu" and self.device.type == "cuda"
        shape = (len(self), sum(self.widths))
        self.rows = torch.empty(shape, device=device, pin_memory=pinned)
        at_once = max(min(AT_ONCE, MOST_BYTES_AT_ONCE // (4 * shape[1])), 1)
        for start in range(0, len(self), at_once):
            made = maker.span(start, min(start + at_once, len(self)))
            self.rows[start : start + at_once] = torch.from_numpy(made).to(device)
        if maker.final_row is not None:
            self.final_row = torch.from_numpy(maker.final_row).to(device)
        self.next_obs_columns = slice(self.widths[0], self.widths[0] + self.widths[1])

    def _set_parts(self, parts: Sequence[tuple[int, float]], device: torch.device) -> None:
        sizes = torch.tensor([size for size, _ in parts], dtype=torch.float64)
        weights = torch.tensor([weight for _, weight in parts], dtype=torch.float64)
        self.num_parts = len(parts)
        self.part_ends = (weights / weights.sum()).cumsum(0).to(device)
        self.part_sizes = sizes.to(device)
        self.part_offsets = (sizes.cumsum(0) - sizes).to(device)

    def __len__(self) -> int:
        return self.count

    def draw(self, size: int, generator: torch.Generator | None = None) -> Tensor:
        """Sample (size,) row numbers: parts by their weight, uniformly within a part."""
        if self.num_parts == 1:
            return torch.randint(len(self), (size,), device=self.device, generator=generator)
        u = torch.rand(2, size, dtype=torch.float64, device=self.device, generator=generator)
        part = torch.bucketize(u[0], self.part_ends[:-1], right=True)
        return (self.part_offsets[part] + (u[1] * self.part_sizes[part]).floor()).long()

    def fetch(self, index: Tensor) -> Tensor:
        """Rows in the host's memory, for row numbers that are there, too; the final observation
        of each row's episode follows where returns need it."""
        if self.maker is not None:
            maker = self.maker
            return torch.cat([self._read(maker, part) for part in torch.split(index, READ_AT_ONCE)])
        assert self.rows is not None
        taken, final = self._taken(self.rows, index)
        return taken if final is None else torch.cat([taken, final], 1)

    def _read(self, maker: RowMaker, index: Tensor) -> Tensor:
        """Rows of data on disk, whose pages are given back."""
        made = [maker.at(index.numpy())]
        if self.bootstraps:
            made.append(maker.final_observations(index.numpy()))
        maker.dataset.release_pages()
        return torch.from_numpy(made[0] if len(made) == 1 else np.concatenate(made, 1))

    def _taken(self, rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows and the final observations of their episodes, if those are needed."""
        taken = rows.index_select(0, index)
        if self.final_row is None:
            return taken, None
        last = rows.index_select(0, self.final_row.index_select(0, index))
        return taken, last[:, self.next_obs_columns]

    def gather(self, index: Tensor) -> Batch:
        """Return the transitions in the given rows."""
        if self.rows is not None and self.home == "device":
            return self._batch(*self._taken(self.rows, index))
        return self._fetched(self.fetch(index.cpu()).to(self.device))

    def _fetched(self, rows: Tensor) -> Batch:
        """The batch that rows from `fetch` are."""
        width = sum(self.widths)
        return self._batch(rows[:, :width], rows[:, width:] if self.bootstraps else None)

    def _batch(self, rows: Tensor, final: Tensor | None) -> Batch:
        fields = torch.split(rows, self.widths, dim=1)
        obs, next_obs, action, reward, discount = fields[:5]
        batch = Batch(
            obs=self._seen(obs),
            action=self._inner(action),
            reward=reward.squeeze(1),
            next_obs=self._seen(next_obs),
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
        if final is not None:
            bootstraps = fields[6].squeeze(1)
            batch = batch._replace(bootstrap_discount=bootstraps, final_obs=self._seen(final))
        return batch if self.normalizer is None else normalized(batch, self.normalizer)

    def _seen(self, columns: Tensor) -> Tensor:
        """Observations; images from the bytes that columns hold."""
        if not self.spaces.is_image:
            return columns
        images = columns.contiguous().view(torch.uint8)[:, : self.spaces.obs_dim]
        return images.reshape(-1, *self.spaces.obs_shape)

    def _inner(self, action: Tensor) -> Tensor:
        """Actions as algorithms take them from (B, A) floats, which hold choices exactly."""
        if self.spaces.is_box:
            return action
        return action.squeeze(1).long() if self.spaces.is_discrete else action.long()

    def everything(self) -> Batch:
        """Return all transitions in their order."""
        return self.gather(torch.arange(len(self), device=self.device))

    def sample(self, size: int, random: Random | None = None) -> Batch:
        """Sample `size` transitions; `random` may supply row numbers that were sampled ahead."""
        if random is None:
            return self.gather(self.draw(size))
        if self.home != "device":
            return self._fetched(random(FetchedRows(self, size)))
        return self.gather(random(lambda g, n: self.draw(n * size, g).view(n, size)))


class FetchedRows:
    """Random rows of a table that does not live on the device: numbers of rows are drawn like
    those of a table that does, and stand for the rows themselves."""

    def __init__(self, table: TransitionTable, size: int) -> None:
        self.table, self.size = table, size
        self.width = sum(table.widths) + (table.widths[1] if table.bootstraps else 0)

    def numbers(self, generator: torch.Generator | None, n: int) -> Tensor:
        """(n, size) numbers of rows."""
        return self.table.draw(n * self.size, generator).view(n, self.size)

    def __call__(self, generator: torch.Generator | None, n: int) -> Tensor:
        """(n, size, width) rows on the device."""
        taken = self.table.fetch(self.numbers(generator, n).flatten().cpu())
        return taken.view(n, self.size, self.width).to(self.table.device)
