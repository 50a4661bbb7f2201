"""Stretches of experience: whole, in order, and never older or newer than what is stored."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ConfigError
from rl_training.replay.sequences import Context, SequenceReplay, StreamStep, latent_parts

CPU = torch.device("cpu")
VECTOR = Spaces.from_gymnasium(
    gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), gym.spaces.Box(-1, 1, (3,), np.float32)
)
IMAGE = Spaces.from_gymnasium(gym.spaces.Box(0, 255, (4, 4), np.uint8), gym.spaces.Discrete(5))


def replay(capacity: int, num_envs: int, spaces: Spaces = VECTOR) -> SequenceReplay:
    return SequenceReplay(capacity, num_envs, spaces, CPU, latent_parts(2, 1))


def fill(store: SequenceReplay, counts: list[int], episode: int = 7) -> list[list[tuple[int, int]]]:
    """StreamStep that say which they are: (environment, number). Episodes of `episode` moments."""
    told: list[list[tuple[int, int]]] = [[] for _ in counts]
    for number in range(max(counts)):
        envs = np.array([e for e, count in enumerate(counts) if number < count])
        step = number % episode
        ends = np.full(len(envs), step == episode - 1)
        moments = StreamStep(
            obs=np.stack([envs, np.full(len(envs), number)], 1).astype(np.float32),
            action=np.full((len(envs), 3), number / 1e3, np.float32),
            reward=np.full(len(envs), float(number)),
            first=np.full(len(envs), step == 0),
            last=ends,
            terminal=ends & (envs % 2 == 0),
        )
        state = torch.as_tensor(envs * 1000 + number, dtype=torch.float32)
        context = Context(torch.stack([state / 8, -state / 8], 1), (state % 50)[:, None])
        store.add(moments, envs, context)
        for env in envs:
            told[env].append((int(env), number))
    return told


@pytest.mark.parametrize("counts", [[20, 20, 20], [9, 13, 200], [64, 65, 130]])
def test_segments_are_whole_and_from_what_is_stored(counts: list[int]) -> None:
    store = replay(3 * 64, 3)
    fill(store, counts)
    torch.manual_seed(0)
    seen = set()
    for _ in range(300):
        batch = store.sample(8, 5, torch.rand(2, 8))
        env, number = batch.obs[..., 0].long(), batch.obs[..., 1].long()
        assert (env == env[:, :1]).all()
        assert (number.diff(dim=1) == 1).all()
        for e, first, last in zip(env[:, 0], number[:, 0], number[:, -1], strict=True):
            oldest = max(0, counts[e] - 64)
            assert oldest < first  # one moment before it is stored, too
            assert last < counts[e]
            seen.add((int(e), int(first)))
        step = number % 7
        assert torch.equal(batch.first, step == 0)
        assert torch.equal(batch.last, step == 6)
        assert torch.equal(batch.terminal, (step == 6) & (env % 2 == 0))
        assert torch.equal(batch.reward, torch.where(step == 0, 0.0, number.float()))
        wanted = torch.where(step == 0, 0.0, number / 1e3)
        torch.testing.assert_close(batch.action, wanted.unsqueeze(-1).expand(8, 5, 3))
        before = env[:, 0] * 1000 + number[:, 0] - 1
        torch.testing.assert_close(batch.context.deter[:, 0], (before / 8).half().float())
        assert torch.equal(batch.context.stoch[:, 0], before % 50)
    possible = {
        (e, first)
        for e, count in enumerate(counts)
        for first in range(max(0, count - 64) + 1, count - 4)
    }
    assert seen <= possible
    assert len(seen) > 0.9 * len(possible)


def test_every_segment_is_as_likely() -> None:
    store = replay(40, 2)
    fill(store, [26, 26])
    torch.manual_seed(0)
    batch = store.sample(40_000, 3, torch.rand(2, 40_000))
    _, counts = torch.unique(batch.places[:, 0], return_counts=True)
    assert len(counts) == 2 * 17  # of 20 moments, less the three of a stretch
    assert counts.min() > 0.8 * 40_000 / 34
    assert counts.max() < 1.2 * 40_000 / 34


def test_the_newest_come_first() -> None:
    store = replay(90, 3)
    fill(store, [31, 45, 20])
    batch = store.sample(5, 4, torch.tensor([[0.4] * 5, [0.0] * 5]), newest=3)
    last = {int(e): int(n) for e, n in batch.obs[:3, -1]}
    assert last == {0: 30, 1: 44, 2: 19}
    assert (batch.obs[3:, 0, 1] == 16).all()  # the oldest of environment 1, after its context


def test_contexts_are_brought_up_to_date() -> None:
    store = replay(60, 1)
    fill(store, [30])
    noise = torch.tensor([[0.0], [0.5]])
    batch = store.sample(1, 4, noise)
    store.refresh(batch.places, Context(torch.full((1, 4, 2), 3.0), torch.full((1, 4, 1), 9)))
    again = store.sample(1, 4, torch.tensor([[0.0], [0.5 + 2 / 26]]))
    assert torch.equal(again.context.deter, torch.full((1, 2), 3.0))
    assert torch.equal(again.context.stoch, torch.full((1, 1), 9))
    same = store.sample(1, 4, noise)
    assert torch.equal(same.context.deter, batch.context.deter)  # the one before is as it was


def test_of_equal_places_the_last_one_counts() -> None:
    store = replay(60, 1)
    fill(store, [30])
    places = torch.tensor([[3, 4, 5], [4, 5, 6], [5, 9, 4]])
    number = torch.arange(9.0).view(3, 3)
    store.refresh(places, Context(torch.stack([number, -number], -1), number.unsqueeze(-1)))
    kept = {3: 0.0, 4: 8.0, 5: 6.0, 6: 5.0, 9: 7.0}
    state = store.training_state()
    for place, value in kept.items():
        assert state["deter"][0, place].tolist() == [value, -value]
        assert state["stoch"][0, place].tolist() == [value]


def test_images_stay_bytes_and_actions_become_one_hot() -> None:
    store = replay(20, 1, IMAGE)
    for number in range(12):
        flag = np.array([number == 0])
        store.add(
            StreamStep(
                np.full((1, 4, 4), number, np.uint8),
                np.array([number % 5]),
                np.zeros(1),
                flag,
                flag & False,
                flag & False,
            ),
            np.array([0]),
        )
    batch = store.sample(2, 6, torch.tensor([[0.0, 0.0], [0.0, 0.99]]))
    assert batch.obs.dtype == torch.uint8
    assert batch.obs.shape == (2, 6, 4, 4)
    numbers = batch.obs[:, :, 0, 0].long()
    assert torch.equal(batch.action.argmax(-1), numbers % 5)
    assert torch.equal(batch.action.sum(-1), torch.ones(2, 6))


@pytest.mark.parametrize("counts", [[5, 9], [40, 17]])
def test_state_comes_back(counts: list[int]) -> None:
    store, other = replay(40, 2), replay(40, 2)
    fill(store, counts)
    state = store.training_state()
    assert state["reward"].shape[1] == min(max(counts), 20)
    other.load_training_state(state)
    noise = torch.rand(2, 6)
    for one, two in zip(store.sample(6, 3, noise), other.sample(6, 3, noise), strict=True):
        pairs = zip(one, two, strict=True) if isinstance(one, tuple) else [(one, two)]
        assert all(torch.equal(a, b) for a, b in pairs)
    assert len(other) == len(store) == sum(min(c, 20) for c in counts)


def test_an_episode_that_was_given_up_is_cut() -> None:
    store = replay(24, 2)
    fill(store, [10, 16])
    store.cut(np.array([False, True]))
    last = store.training_state()["last"]
    assert last[0].tolist() == [i % 7 == 6 for i in range(10)] + [False] * (last.shape[1] - 10)
    # of 16 moments the last twelve are there, the newest, which ended nothing, at place 3
    assert last[1].tolist() == [False, True, False, True] + [i % 7 == 6 for i in range(4, 12)]
    empty = replay(24, 2)
    empty.cut(np.array([True, True]))
    state = empty.training_state()
    assert not any(state[flag].any() for flag in ("first", "last", "terminal"))


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = replay(40, 2)
    fill(store, [30, 6])
    with pytest.raises(ConfigError, match="batch_length: sequences of 6 steps"):
        store.sample(2, 6, torch.rand(2, 2))
    with pytest.raises(ConfigError, match="buffer_capacity: 3 is too small for 2 environments"):
        replay(3, 2)
    with pytest.raises(ConfigError, match=r"buffer_capacity: a replay of .* would take"):
        replay(10**12, 1, IMAGE)
    assert SequenceReplay.memory_needed(10, IMAGE, latent_parts(8, 4)) == 10 * (
        16 + 4 + 4 + 3 + 16 + 4
    )


def test_a_draw_asks_nothing() -> None:
    """The same operations whatever was stored, so that it can be captured."""
    from ..contract.test_updates import HOST_SYNCS, OperationLog

    logs: list[Any] = []
    for counts in ([10, 10], [50, 33]):
        store = replay(40, 2)
        fill(store, counts)
        with OperationLog() as log:
            store.sample(4, 3, torch.rand(2, 4), newest=1)
        logs.append(log.operations)
    assert not [op for op, _ in logs[0] if op in HOST_SYNCS]
    assert logs[0] == logs[1]
