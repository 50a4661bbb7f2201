"""Summaries by hand, and reports on files that are wrong."""

from __future__ import annotations

import dataclasses
import json
import time
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from rl_training.data.dataset import TransitionDataset
from rl_training.data.sources import load_transition_dataset
from rl_training.data.summary import (
    Requirements,
    action_coverage,
    count_duplicate_rows,
    histogram,
    inspect_file,
    summarize,
)
from rl_training.data.summary_tables import render, render_file_report
from rl_training.envs.spaces import Spaces

BOTH = frozenset({"box", "discrete"})
REQUIREMENTS = {
    "bc": Requirements(BOTH, True, False, False, "clones"),
    "awr": Requirements(BOTH, True, True, True, "weighs"),
    "iql": Requirements(frozenset({"box"}), False, False, True, "bootstraps"),
}


def _printed(renderable: Any, width: int = 160) -> str:
    text = StringIO()
    Console(file=text, width=width).print(renderable)
    return text.getvalue()


def test_numbers_by_hand(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    summary = summarize(load_transition_dataset(arrays, spaces=box_spaces), REQUIREMENTS)
    assert (summary.steps, summary.episodes) == (5, 2)
    assert summary.return_quantiles["min"] == 6.0
    assert summary.return_quantiles["50%"] == 7.5
    assert summary.return_quantiles["25%"] == 6.75
    assert summary.return_quantiles["max"] == 9.0
    assert summary.return_mean == 7.5
    assert (summary.length_min, summary.length_mean, summary.length_max) == (2, 2.5, 3)
    assert (summary.terminations, summary.truncations) == (1, 1)
    assert summary.observations[0].low == 0.0
    assert summary.observations[1].high == 11.0
    assert summary.actions[0].mean == 0.0
    assert np.isclose(summary.actions[0].std, np.sqrt(2.0))
    assert summary.duplicate_rows == 0
    # -2, -1, 0, 1, 2 fall into five of the twenty bins of [-2, 2]
    assert summary.action_coverage == (0.25,)
    assert sum(count for _, _, count in summary.return_histogram) == 2
    assert [item.possible for item in summary.trainable] == [True, True, True]
    assert summary.trainable[1].reason == "weighs"
    assert (summary.reward_mean, summary.reward_quantiles["25%"]) == (3.0, 2.0)
    assert np.isclose(summary.reward_std or 0.0, np.sqrt(2.0))
    assert summary.actions_at_edge == (0.4,)
    assert summary.action_noise is None  # of too few rows
    json.dumps(dataclasses.asdict(summary))


def test_the_upper_bound_is_in_the_last_bin(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["actions"] = np.array([[1.9], [2.0], [1.9], [2.0], [2.0]], np.float32)
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    assert action_coverage(dataset) == (1 / 20,)


def test_discrete_shares(arrays: dict[str, Any]) -> None:
    arrays["actions"] = np.array([1, 1, 2, 1, 2])
    dataset = load_transition_dataset(arrays, spaces=Spaces(2, "discrete", 3, action_start=1))
    assert action_coverage(dataset) == (0.6, 0.4, 0.0)
    possible = {item.algorithm: item for item in summarize(dataset, REQUIREMENTS).trainable}
    assert possible["awr"].possible
    assert not possible["iql"].possible
    assert possible["iql"].reason == "takes Box actions, these are Discrete"


def test_returns_need_an_episode(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["terminations"][:] = arrays["truncations"][:] = False
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    possible = {item.algorithm: item for item in summarize(dataset, REQUIREMENTS).trainable}
    assert possible["bc"].possible
    assert not possible["awr"].possible
    assert "no row is marked as an episode's end" in possible["awr"].reason


def test_duplicates(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    thrice = TransitionDataset.concatenate([dataset, dataset, dataset])
    assert count_duplicate_rows(thrice) == 10
    other = dataclasses.replace(dataset, rewards=dataset.rewards + np.float32(1.0))
    assert count_duplicate_rows(TransitionDataset.concatenate([dataset, other])) == 0
    truncated = dataset.truncations.copy()
    truncated[0] = True
    changed = dataclasses.replace(dataset, truncations=truncated)
    assert count_duplicate_rows(TransitionDataset.concatenate([dataset, changed])) == 4


def test_many_rows_are_summarised_quickly(box_spaces: Spaces) -> None:
    count = 200_000
    generator = np.random.default_rng(0)
    stored = {
        "observations": generator.normal(size=(count, 2)).astype(np.float32),
        "next_observations": generator.normal(size=(count, 2)).astype(np.float32),
        "actions": generator.uniform(-2, 2, (count, 1)).astype(np.float32),
        "rewards": generator.normal(size=count).astype(np.float32),
        "terminations": np.arange(count) % 100 == 99,
        "truncations": np.zeros(count, bool),
    }
    dataset = load_transition_dataset(stored, spaces=box_spaces)
    start = time.process_time()
    summary = summarize(dataset)
    assert time.process_time() - start < 2.0
    assert summary.action_coverage == (1.0,)


def test_render(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["truncations"][-1] = False
    dataset = load_transition_dataset(arrays, spaces=box_spaces)
    text = _printed(render(summarize(dataset, REQUIREMENTS)))
    for words in (
        "steps            5",
        "episodes         2",
        "Box(1,) from [-2] to [2]",
        "6.00 ..         6.25 ######",
        "at edge",
        "40%",
        "hint: 40% of the actions are at the edge",
        "7.50",
        "coverage",
        "25%",
        "trainable",
        "note: the last episode has no end",
    ):
        assert words in text, words


def test_render_wide_discrete_and_equal_returns() -> None:
    width = 30
    stored = {
        "observations": np.zeros((2, width), np.float32),
        "next_observations": np.zeros((2, width), np.float32),
        "actions": np.array([0, 39]),
        "rewards": np.ones(2, np.float32),
        "terminations": np.ones(2, bool),
        "truncations": np.zeros(2, bool),
    }
    text = _printed(render(summarize(load_transition_dataset(stored))))
    assert "and 6 more" in text
    assert "and 16 more" in text
    assert "####" in text


def test_inspect_reports_what_is_wrong(
    tmp_path: Path, arrays: dict[str, Any], box_spaces: Spaces
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **arrays)
    assert inspect_file(path, spaces=box_spaces).problem is None
    arrays["rewards"][[1, 3]] = np.nan
    arrays["observations"][0] = np.inf
    np.savez(path, **arrays)
    report = inspect_file(path, spaces=box_spaces)
    found = {array.key: (array.nans, array.infinities) for array in report.arrays}
    assert found["rewards"] == (2, 0)
    assert found["observations"] == (0, 2)
    text = _printed(render_file_report(report))
    assert "infinite" in text
    assert "problem" not in text  # which the error says that follows
    assert "'observations' holds infinity" in str(report.problem)
    missing = inspect_file(tmp_path / "absent.npz")
    assert missing.arrays == ()
    assert "does not exist" in str(missing.problem)


def test_no_number_is_broken_in_two(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    arrays["rewards"] = np.array([-1025.59, 1e-7, -123456.78, 3.3e30, 0.5], np.float32)
    summary = summarize(load_transition_dataset(arrays, spaces=box_spaces), REQUIREMENTS)
    lines = _printed(render(summary), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.split()}
    for name in ("min", "5%", "25%", "50%", "75%", "95%", "max", "mean"):
        assert len(rows[name]) == 2, (name, rows[name])
        float(rows[name][0])


def test_histograms_of_returns_that_hardly_differ() -> None:
    for values in ([1e30, 1e30], [1e30, np.nextafter(1e30, 2e30)], [7.0], [5e37, -5e37]):
        bins = histogram(np.array(values))
        assert sum(count for _, _, count in bins) == len(values)
    assert len(histogram(np.arange(24.0))) == 12


def test_data_without_rewards_can_be_looked_at(arrays: dict[str, Any], box_spaces: Spaces) -> None:
    del arrays["rewards"]
    data = load_transition_dataset(arrays, spaces=box_spaces, needs_rewards=False)
    summary = summarize(data, REQUIREMENTS)
    assert [item.possible for item in summary.trainable] == [True, False, False]
    assert "needs rewards, there are none" in _printed(render(summary))
    json.dumps(dataclasses.asdict(summary))
