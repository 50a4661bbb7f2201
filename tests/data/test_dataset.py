"""The container and the checks that every source goes through."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rl_training.data.dataset import TransitionDataset
from rl_training.data.sources import load_transition_dataset
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError

from ..each import each

DISCRETE = Spaces(2, "discrete", 3, action_start=1)


def test_episodes_by_hand(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    assert len(dataset) == 5
    assert dataset.num_episodes == 2
    assert dataset.episode_ends.tolist() == [2, 4]
    assert dataset.episode_starts.tolist() == [0, 3]
    assert dataset.episode_lengths().tolist() == [3, 2]
    assert dataset.episode_returns().tolist() == [6.0, 9.0]
    assert dataset.has_whole_episode
    assert dataset.parts == ((5, 1.0),)
    assert dataset.notes == ()
    for name, array in dataset.to_arrays().items():
        np.testing.assert_array_equal(array, arrays[name])


def test_a_mix_has_rewards_where_every_part_has(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    paid = load_transition_dataset(arrays, spaces=box_spaces)
    del arrays["rewards"]
    free = load_transition_dataset(arrays, spaces=box_spaces, needs_rewards=False)
    assert TransitionDataset.concatenate([paid, paid]).has_rewards
    for parts in ([free, free], [paid, free], [free, paid]):
        mixed = TransitionDataset.concatenate(parts)
        assert not mixed.has_rewards
        assert np.isnan(mixed.rewards).all()
        assert not mixed.take_episodes(1).has_rewards
        with pytest.raises(DataError, match="has no rewards"):
            mixed.episode_returns()


def test_dtypes_are_normalised(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    for name in arrays:
        arrays[name] = arrays[name].astype(np.float64)
    arrays["rewards"] = arrays["rewards"][:, None]
    arrays["terminations"] = arrays["terminations"].astype(np.uint8)
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    assert [array.dtype.name for array in dataset.to_arrays().values()] == [
        *["float32"] * 4,
        *["bool"] * 2,
    ]
    assert dataset.rewards.shape == (5,)


def test_arrays_in_memory_are_copied(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    arrays["rewards"][:] = 99.0
    arrays["truncations"][:] = True
    assert dataset.rewards.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert dataset.num_episodes == 2


def test_fingerprint_sees_every_array_and_the_weights(
    arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    seen = {dataset.fingerprint()}
    assert load_transition_dataset(arrays, spaces=box_spaces).fingerprint() in seen
    for name in arrays:
        changed = dict(arrays)
        if arrays[name].dtype == bool:
            changed[name] = arrays[name].copy()
            changed[name][0] = True
        else:
            changed[name] = arrays[name] * np.float32(0.5)
        seen.add(load_transition_dataset(changed, spaces=box_spaces).fingerprint())
    seen.add(TransitionDataset.concatenate([dataset], [2.0]).fingerprint())
    assert len(seen) == 8


def test_take_episodes(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    first = dataset.take_episodes(1)
    assert len(first) == 3
    assert first.parts == ((3, 1.0),)
    assert first.episode_returns().tolist() == [6.0]
    assert dataset.take_episodes(2) is dataset
    assert dataset.take_episodes(7) is dataset
    with pytest.raises(DataError, match="ask for 1 or more"):
        dataset.take_episodes(0)


def test_concatenate_keeps_episodes_apart(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    dangling = {name: array[:2] for name, array in arrays.items()}  # no end flag
    one = load_transition_dataset(dangling, spaces=box_spaces)
    two = load_transition_dataset(arrays, spaces=box_spaces)
    mix = TransitionDataset.concatenate([one, two], [1.0, 3.0])
    assert mix.parts == ((2, 1.0), (5, 3.0))
    assert mix.episode_lengths().tolist() == [2, 3, 2]
    assert mix.episode_returns().tolist() == [3.0, 6.0, 9.0]
    assert not mix.has_whole_episode
    assert mix.take_episodes(2).parts == ((2, 1.0), (3, 3.0))
    assert mix.take_episodes(1).parts == ((2, 1.0),)
    nested = TransitionDataset.concatenate([mix, two], [4.0, 2.0])
    assert nested.parts == ((2, 1.0), (5, 3.0), (5, 2.0))


def test_concatenate_refuses_other_spaces_and_wrong_weights(
    arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    one = load_transition_dataset(arrays, spaces=box_spaces)
    wide = load_transition_dataset(arrays, spaces=Spaces(2, "box", 1, (-3.0,), (3.0,)))
    with pytest.raises(DataError, match=r"cannot be mixed: .*\[-2\.0\].*\[-3\.0\]"):
        TransitionDataset.concatenate([one, wide])
    with pytest.raises(DataError, match="one weight for each part"):
        TransitionDataset.concatenate([one, one], [1.0])
    with pytest.raises(DataError, match="at least one part"):
        TransitionDataset.concatenate([])


def test_open_last_episode_is_truncated_with_a_note(
    arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    arrays["truncations"][-1] = False
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    assert dataset.truncations.tolist() == [False, False, False, False, True]
    assert dataset.has_whole_episode
    assert "last episode has no end" in dataset.notes[0]


def test_no_flag_at_all_means_no_whole_episode(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["truncations"][:] = arrays["terminations"][:] = False
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    assert not dataset.has_whole_episode
    assert dataset.episode_lengths().tolist() == [5]
    assert "no row is marked" in dataset.notes[0]


def test_missing_flags_are_noticed_at_the_seams(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["terminations"][2] = False  # rows 2 and 3 now look like one episode
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    assert len(dataset.notes) == 1
    assert dataset.notes[0].startswith("1 rows are not followed by their next observation")


BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "unequal lengths",
        {"rewards": np.zeros(4, np.float32)},
        r"unequal numbers of rows \(observations 5, actions 5, rewards 4",
    ),
    ("strings", {"rewards": np.array(list("abcde"))}, r"array 'rewards' has dtype <U1, expected"),
    (
        "objects",
        {"actions": np.array([None] * 5, dtype=object)},
        "array 'actions' has dtype object, expected numbers",
    ),
    (
        "NaN",
        {"next_observations": np.array([[0, 0]] * 3 + [[0, np.nan]] * 2)},
        "array 'next_observations' holds NaN at row 3, column 1; repair",
    ),
    (
        "infinity",
        {"rewards": np.array([0, 0, -np.inf, 0, 0])},
        r"array 'rewards' holds infinity \(as float32\) at row 2; repair",
    ),
    ("overflow", {"rewards": np.array([0, 1e300, 0, 0, 0])}, "'rewards' holds infinity .* row 1"),
    (
        "action range",
        {"actions": np.array([[0], [2.00005], [0], [-2.5], [0]], np.float32)},
        r"'actions' holds -2.5 at row 3, column 0, outside the action space \[-2, 2\]; give",
    ),
    (
        "width",
        {"observations": np.zeros((5, 3), np.float32)},
        "'observations' is 3 wide but the environment's observations are 2 wide; use",
    ),
    (
        "next width",
        {"next_observations": np.zeros((5, 4), np.float32)},
        "'next_observations' is 4 wide but",
    ),
    (
        "flat observations",
        {"observations": np.zeros(5, np.float32)},
        r"'observations' has shape \(5,\), expected \(rows, width\); reshape",
    ),
    (
        "discrete data for a Box task",
        {"actions": np.array([0, 1, 0, 1, 0])},
        r"'actions' holds integers \(int64\), so discrete actions, but the task has 1 continuous",
    ),
    (
        "action width",
        {"actions": np.zeros((5, 2), np.float32)},
        r"'actions' has shape \(5, 2\), expected \(5, 1\)",
    ),
    (
        "flags that count",
        {"terminations": np.array([0, 0, 2, 0, 0])},
        "'terminations' holds 2 at row 2, expected only 0 and 1",
    ),
    ("scalar", {"rewards": np.float32(1.0)}, "'rewards' is a single value"),
    ("matrix of rewards", {"rewards": np.zeros((5, 2))}, r"'rewards' has shape \(5, 2\), expected"),
]


@each(("changes", "sentence"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_arrays_fail_in_one_sentence(
    arrays: dict[str, Any], box_spaces: Spaces, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        load_transition_dataset({**arrays, **changes}, spaces=box_spaces)
    assert str(caught.value).startswith("arrays: ")
    assert "\n" not in str(caught.value)


def test_action_just_outside_is_tolerated(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["actions"][0] = -2.00005
    load_transition_dataset(arrays, spaces=box_spaces)


def test_action_clearly_outside_is_refused(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["actions"][4] = 2.001
    with pytest.raises(DataError, match=r"holds 2\.001 at row 4, column 0, outside"):
        load_transition_dataset(arrays, spaces=box_spaces)


def test_empty_data(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    empty = {name: array[:0] for name, array in arrays.items()}
    for spaces in (box_spaces, None):
        with pytest.raises(DataError, match="arrays are empty; give at least one transition"):
            load_transition_dataset(empty, spaces=spaces)


def test_discrete_actions(arrays: dict[str, Any]) -> None:
    for given in (
        np.array([1, 2, 3, 1, 1]),
        np.array([1, 2, 3, 1, 1], np.float64),
        np.array([[1], [2], [3], [1], [1]], np.int32),
    ):
        dataset = load_transition_dataset({**arrays, "actions": given}, spaces=DISCRETE)
        assert dataset.actions.dtype == np.int64
        assert dataset.actions.tolist() == [1, 2, 3, 1, 1]


@each(
    ("actions", "sentence"),
    [
        (np.array([1, 2, 4, 0, 1]), r"'actions' holds 4 at row 2, outside the discrete .* 1\.\.3"),
        (np.array([1, 2, 3, 0, 1]), r"'actions' holds 0 at row 3, outside"),
        (np.array([1, 2, 2.5, 1, 1]), r"holds continuous \(Box\) actions but the task has 3"),
        (np.ones((5, 2), np.float32), r"holds continuous \(Box\) actions but the task has 3"),
        (np.array([1, np.nan, 2, 1, 1]), "'actions' holds NaN at row 1"),
    ],
)
def test_bad_discrete_actions(arrays: dict[str, Any], actions: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load_transition_dataset({**arrays, "actions": actions}, spaces=DISCRETE)


def test_spaces_are_inferred_with_a_note(arrays: dict[str, Any]) -> None:
    arrays["actions"] = np.hstack([arrays["actions"], np.full((5, 1), 0.25, np.float32)])
    dataset = load_transition_dataset(arrays)
    # A constant component gets a range of its own, since it is later mapped to [-1, 1].
    assert dataset.spaces == Spaces(2, "box", 2, (-2.0, -0.75), (2.0, 1.25))
    assert re.search(r"inferred from the data: Box\(2,\) from \[-2, -0\.75\]", dataset.notes[-1])
    arrays["actions"] = np.array([0, 1, 4, 0, 0])
    assert load_transition_dataset(arrays).spaces == Spaces(2, "discrete", 5)
    arrays["actions"] = np.array([0.5, 1, 4, 0, 0])
    alone = load_transition_dataset(arrays)
    assert (alone.spaces.action_shape, alone.actions.shape) == ((), (5, 1))
    arrays["actions"] = np.array([[0, 1], [2, 0], [0, 0], [0, 0], [0, 0]])
    assert load_transition_dataset(arrays).spaces.action_choices == (3, 2)
    arrays["actions"][0, 0] = 100_000
    with pytest.raises(DataError, match="too many for MultiDiscrete"):
        load_transition_dataset(arrays)


def test_inferred_discrete_actions_count_from_zero(arrays: dict[str, Any]) -> None:
    """Data of a task that never show its first action must not rename the others."""
    dataset = load_transition_dataset({**arrays, "actions": np.array([2, 3, 2, 3, 2])})
    assert (dataset.spaces.action_start, dataset.spaces.action_dim) == (0, 4)


@pytest.mark.parametrize("largest", [100_000, 2**62])
def test_counters_are_no_discrete_actions(arrays: dict[str, Any], largest: int) -> None:
    arrays["actions"] = np.array([largest, 0, 0, 0, 0])
    with pytest.raises(DataError, match=f"from 0 to {largest:,}, too many for Discrete"):
        load_transition_dataset(arrays)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e30, -1e30, 2.0**64])
def test_discrete_actions_beyond_whole_numbers(arrays: dict[str, Any], value: float) -> None:
    arrays["actions"] = np.array([0.0, value, 0.0, 0.0, 0.0])
    with pytest.raises(DataError, match=f"holds {int(value)} at row 1, outside"):
        load_transition_dataset(arrays, spaces=Spaces(2, "discrete", 3))


def test_rows_of_unequal_length(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["observations"] = [[1.0, 2.0]] * 4 + [[1.0]]
    with pytest.raises(DataError, match="array 'observations' cannot be read"):
        load_transition_dataset(arrays, spaces=box_spaces)


def test_a_data_set_passes_through(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    dataset = load_transition_dataset(arrays)
    assert load_transition_dataset(dataset) is dataset
    assert load_transition_dataset(dataset, spaces=dataset.spaces) is dataset
    wide = Spaces(2, "box", 1, (-4.0,), (4.0,))
    assert load_transition_dataset(dataset, spaces=wide).spaces == wide
    with pytest.raises(DataError, match="outside the action space"):
        load_transition_dataset(dataset, spaces=Spaces(2, "box", 1, (-1.0,), (1.0,)))
    with pytest.raises(DataError, match="2 wide but the environment's observations are 3"):
        load_transition_dataset(dataset, env_id="Pendulum-v1")
