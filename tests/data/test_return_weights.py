"""Episodes that are drawn by their return."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rl_training import TrainConfig, TransitionDataset, load_transition_dataset
from rl_training.data.returns import careful_temperature, episodes_by_return
from rl_training.experiment.errors import DataError
from rl_training.replay.table import TransitionTable
from rl_training.runtime.build import build_algorithm
from rl_training.runtime.loops.offline import OfflineData, episode_temperature

from ..algorithms.helpers import BOX, DISCRETE
from ..contract.small_runs import small_config

RETURNS = (0.0, 1.0, 3.0, 4.0)
LENGTHS = (5, 2, 4, 9)
TEMPERATURE = 0.5


def log(
    returns: tuple[float, ...] = RETURNS, lengths: tuple[int, ...] = LENGTHS
) -> TransitionDataset:
    """An episode per return, which is paid in the last step."""
    rows = sum(lengths)
    ends = np.cumsum(lengths) - 1
    rng = np.random.default_rng(0)
    rewards, truncations = np.zeros(rows, np.float32), np.zeros(rows, bool)
    rewards[ends], truncations[ends] = returns, True
    arrays = {
        "observations": rng.normal(size=(rows, BOX.obs_dim)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, BOX.action_dim)).astype(np.float32),
        "rewards": rewards,
        "next_observations": rng.normal(size=(rows, BOX.obs_dim)).astype(np.float32),
        "terminations": np.zeros(rows, bool),
        "truncations": truncations,
    }
    return load_transition_dataset(arrays, spaces=BOX)


def halves() -> TransitionDataset:
    """Four episodes of five steps, two of which are the best."""
    return log((0.0, 0.0, 1.0, 1.0), (5, 5, 5, 5))


def shares(dataset: TransitionDataset, temperature: float) -> NDArray[np.float64]:
    """How often each episode is drawn."""
    table = TransitionTable(
        dataset,
        torch.device("cpu"),
        gamma=0.9,
        with_returns=False,
        return_temperature=temperature,
    )
    rows = table.draw(200_000, torch.Generator().manual_seed(0)).numpy()
    episode = np.searchsorted(np.cumsum(LENGTHS * (len(dataset) // sum(LENGTHS))), rows, "right")
    return np.bincount(episode, minlength=dataset.num_episodes) / len(rows)


def test_rows_are_drawn_by_the_return_of_their_episode() -> None:
    """Planted: without the temperature, and with a weight per episode instead of per row."""
    found = shares(log(), TEMPERATURE)
    by_row = np.array(
        [n * np.exp(r / 4.0 / TEMPERATURE) for n, r in zip(LENGTHS, RETURNS, strict=True)]
    )
    by_episode = by_row / LENGTHS
    np.testing.assert_allclose(found, by_row / by_row.sum(), atol=5e-3)
    assert np.abs(found - by_episode / by_episode.sum()).max() > 0.05
    assert np.abs(found - shares(log(), 0.0)).max() > 0.05
    np.testing.assert_allclose(
        shares(log((2.0, 2.0, 2.0, 2.0)), TEMPERATURE), np.array(LENGTHS) / 20, atol=5e-3
    )


def test_parts_of_a_mix_keep_their_weights() -> None:
    """Also where a temperature leaves nothing of the worse part beside the better one."""
    worse, better = log((0.0, 0.0, 1.0, 1.0)), log((1e3, 1e3, 1e3, 2e3))
    mixed = TransitionDataset.concatenate([worse, better], weights=[3.0, 1.0])
    weights = np.array([weight for _, weight in episodes_by_return(mixed, 1e-3)])
    assert np.isfinite(weights).all()
    assert weights[:4].sum() / weights.sum() == pytest.approx(0.75)


def test_returns_must_mean_something() -> None:
    for change, problem in (
        ({"has_rewards": False}, "has no rewards"),
        ({"has_whole_episode": False}, r"return_temperature.*marks no end"),
    ):
        with pytest.raises(DataError, match=problem):
            episodes_by_return(dataclasses.replace(log(), **change), 0.1)


def test_the_choice_leaves_enough_episodes() -> None:
    """Of luck: one episode far above the others; the knob itself is taken as it is."""
    lucky = log((0.0, 0.1, 0.2, 4.0))
    found = careful_temperature(lucky, 0.1)
    lengths = np.array(LENGTHS)
    alike = lengths.sum() ** 2 / np.square(lengths).sum()
    for temperature, enough in ((found, True), (found / 1.25, False)):
        weights = np.array([weight for _, weight in episodes_by_return(lucky, temperature)])
        effective = weights.sum() ** 2 / np.square(weights).sum()
        assert (effective >= alike / 2) == enough
    assert careful_temperature(log((1.0, 1.0, 1.0, 1.0)), 0.1) == 0.1
    config = small_config("cql", algo_kwargs={"return_temperature": 0.1})
    assert episode_temperature(build_algorithm(config, BOX), lucky) == 0.1


def test_algorithms_choose_their_own_where_the_knob_is_not_set() -> None:
    """CQL for Box actions unless it is the paper's, ReBRAC and TD3+BC; not where no episode ends,
    and not in runs that were stored before there was a choice."""
    for algo, spaces, knobs, expected in (
        ("rebrac", BOX, {}, 0.1),
        ("td3_bc", BOX, {}, 0.1),
        ("cql", BOX, {}, 0.1),
        ("cql", BOX, {"return_temperature": 0.0}, 0.0),
        ("cql", BOX, {"importance_weights": True}, 0.0),
        ("cql", DISCRETE, {}, 0.0),
        ("bc", BOX, {}, 0.0),
    ):
        algorithm = build_algorithm(small_config(algo, algo_kwargs=knobs), spaces)
        # two of four episodes of equal length count as much: half of them, which is enough
        assert episode_temperature(algorithm, halves()) == expected, (algo, knobs)
        endless = dataclasses.replace(log(), has_whole_episode=False)
        assert episode_temperature(algorithm, endless) == 0.0
    for algo in ("rebrac", "td3_bc", "cql", "bc"):
        stored = small_config(algo).model_dump()
        del stored["algo_kwargs"]["return_temperature"]
        assert TrainConfig.stored(stored).params.preference == 0.0, algo


def test_runs_draw_so() -> None:
    for temperature, parts in ((0.0, 1), (0.1, 4)):
        config = small_config("bc", algo_kwargs={"return_temperature": temperature})
        data = OfflineData(config, [build_algorithm(config, BOX)], log())
        assert data.table.num_parts == parts
