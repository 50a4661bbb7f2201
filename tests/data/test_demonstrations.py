"""Demonstrations: how many episodes, and which of their steps."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training import load_transition_dataset
from rl_training.data.dataset import TransitionDataset
from rl_training.data.demonstrations import demonstrations
from rl_training.experiment.errors import ConfigError


@pytest.fixture(scope="module")
def data() -> TransitionDataset:
    return load_transition_dataset({"kind": "scripted", "name": "cartpole-mixed"})


def rows_of(part: TransitionDataset, whole: TransitionDataset) -> list[int]:
    """Where the rows of a part stand in the whole; observations are unique enough."""
    known = {row.tobytes(): i for i, row in enumerate(whole.observations)}
    return [known[row.tobytes()] for row in part.observations]


def test_all_of_it_by_default(data: TransitionDataset) -> None:
    assert demonstrations(data, None, 1, seed=0) is data


def test_the_first_episodes(data: TransitionDataset) -> None:
    kept = demonstrations(data, 3, 1, seed=0)
    assert kept.num_episodes == 3
    np.testing.assert_array_equal(kept.observations, data.observations[:1500])


def test_every_tenth_step_from_a_random_one_on(data: TransitionDataset) -> None:
    kept = demonstrations(data, 10, 10, seed=0)
    assert kept.num_episodes == 10
    assert kept.episode_lengths().tolist() == [50] * 10
    rows = np.asarray(rows_of(kept, data)).reshape(10, 50)
    assert (np.diff(rows, axis=1) == 10).all()
    offsets = rows[:, 0] - 500 * np.arange(10)
    assert ((offsets >= 0) & (offsets < 10)).all()
    assert len(set(offsets)) > 3, "each episode has an offset of its own"
    np.testing.assert_array_equal(kept.actions, data.actions[rows.ravel()])


def test_a_longer_set_begins_with_the_same_steps(data: TransitionDataset) -> None:
    few, many = (demonstrations(data, n, 7, seed=5) for n in (2, 4))
    np.testing.assert_array_equal(few.observations, many.observations[: len(few)])


def test_the_seed_decides(data: TransitionDataset) -> None:
    one, same, other = (demonstrations(data, 5, 10, seed=s).fingerprint() for s in (0, 0, 1))
    assert one == same != other


def test_short_episodes_keep_a_step(data: TransitionDataset) -> None:
    """Random episodes last some twenty steps."""
    kept = demonstrations(data, None, 200, seed=0)
    assert kept.num_episodes == data.num_episodes
    assert kept.episode_lengths().min() == 1


def test_terminal_steps_stay_terminal(data: TransitionDataset) -> None:
    kept = demonstrations(data, None, 3, seed=0)
    rows = np.asarray(rows_of(kept, data))
    np.testing.assert_array_equal(kept.terminations, data.terminations[rows])
    assert not (kept.terminations & kept.truncations).any()


def test_weights_of_a_mix_survive() -> None:
    parts = [load_transition_dataset(f"cartpole-{name}") for name in ("expert", "random")]
    mix = TransitionDataset.concatenate([p.take_episodes(4) for p in parts], [3.0, 1.0])
    kept = demonstrations(mix, None, 10, seed=0)
    assert [weight for _, weight in kept.parts] == [3.0, 1.0]
    assert sum(size for size, _ in kept.parts) == len(kept)
    assert kept.parts[0][0] == 200


def test_more_than_there_are(data: TransitionDataset) -> None:
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.demo_episodes: 2,000 .* has 1,050; set"):
        demonstrations(data, 2_000, 1, seed=0)
