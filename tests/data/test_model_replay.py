"""The ring of imagined transitions: order, overwriting, changing limits, state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_training.envs.spaces import Spaces
from rl_training.replay.batch import Batch
from rl_training.replay.model_replay import ModelReplay

from ..each import each

SPACES = Spaces(2, "box", 1, (-1.0,), (1.0,))


def numbered(start: int, rows: int) -> Batch:
    n = torch.arange(start, start + rows, dtype=torch.float32)
    wide = n[:, None].expand(-1, 2)
    return Batch(wide, n[:, None] / 1000, n, wide + 0.5, torch.where(n % 3 == 0, 0.0, 0.9))


def replay_of(capacity: int) -> ModelReplay:
    return ModelReplay(capacity, SPACES, torch.device("cpu"), gamma=0.9)


def held(replay: ModelReplay) -> list[int]:
    return sorted(int(x) for x in replay.everything().reward)


def test_rows_come_back_whole() -> None:
    replay = replay_of(10)
    replay.extend(numbered(1, 7))
    batch = replay.everything()
    n = batch.reward
    assert n.tolist() == list(range(1, 8))
    assert torch.equal(batch.obs, n[:, None].expand(-1, 2))
    assert torch.equal(batch.next_obs, batch.obs + 0.5)
    torch.testing.assert_close(batch.action, n[:, None] / 1000)
    torch.testing.assert_close(batch.discount, torch.where(n % 3 == 0, 0.0, 0.9))


@each("seed", range(5))
def test_the_newest_stay_whatever_is_added_and_however_the_limit_moves(seed: int) -> None:
    """Beside a plain list."""
    rng = np.random.default_rng(seed)
    replay, kept, count, limit = replay_of(40), [], 0, 40
    for _ in range(60):
        if rng.random() < 0.3:
            limit = int(rng.integers(1, 41))
            replay.set_limit(limit)
            kept = kept[-limit:]
        rows = int(rng.integers(0, limit + 1))
        replay.extend(numbered(count, rows))
        kept = [*kept, *range(count, count + rows)][-limit:]
        count += rows
        assert len(replay) == len(kept)
        assert held(replay) == kept
        if kept:
            assert set(replay.sample(100).reward.int().tolist()) <= set(kept)


def test_all_rows_are_drawn_alike() -> None:
    replay = replay_of(8)
    replay.extend(numbered(0, 5))
    replay.extend(numbered(5, 5))
    torch.manual_seed(0)
    counts = torch.bincount(replay.sample(8000).reward.long(), minlength=10)
    assert counts[:2].sum() == 0
    assert (counts[2:] > 850).all()


def test_the_memory_stays_where_it_is() -> None:
    replay = replay_of(20)
    replay.set_limit(5)
    where = replay.rows.data_ptr(), replay.size.data_ptr()
    replay.extend(numbered(0, 5))
    replay.set_limit(20)
    replay.extend(numbered(5, 18))
    assert (replay.rows.data_ptr(), replay.size.data_ptr()) == where
    assert float(replay.size[0]) == 20


@pytest.mark.parametrize("limit", [6, 13])
def test_the_state_brings_everything_back(limit: int) -> None:
    first, second = replay_of(13), replay_of(13)
    first.set_limit(limit)
    first.extend(numbered(0, 5))
    first.extend(numbered(5, 4))
    second.load_training_state(first.training_state())
    for replay in (first, second):
        torch.manual_seed(1)
        replay.extend(numbered(20, 3))
    assert held(first) == held(second)
    torch.manual_seed(2)
    one = first.sample(30).reward
    torch.manual_seed(2)
    assert torch.equal(one, second.sample(30).reward)
