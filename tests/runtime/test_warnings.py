"""What a run says about its data and its weights, and how often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import BC, learn_seeds
from rl_training.algorithms.functional import collapsed_weights
from rl_training.api.algorithms import managed_class
from rl_training.data.dataset import TransitionDataset
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import algorithm_class
from rl_training.runtime.build import build_loop, run_scope

SMALL: dict[str, Any] = {
    "hidden_sizes": [8],
    "batch_size": 16,
    "final_eval": False,
    "tensorboard": False,
    "log_interval": 2,
}


def shuffled_arrays() -> dict[str, Any]:
    """60 rows in no order, the last one open, without successors for what was cut."""
    generator = np.random.default_rng(0)
    rows = 60
    truncations = np.arange(rows) % 20 == 19
    truncations[-1] = False
    return {
        "observations": generator.normal(size=(rows, 3)).astype(np.float32),
        "next_observations": generator.normal(size=(rows, 3)).astype(np.float32),
        "actions": generator.uniform(-2, 2, (rows, 1)).astype(np.float32),
        "rewards": generator.normal(size=rows).astype(np.float32),
        "terminations": np.zeros(rows, bool),
        "truncations": truncations,
    }


WORDS = (
    "note on the data: the last episode has no end",
    "note on the data: 57 rows are not followed by their next observation",
)


def test_notes_on_the_data_are_said_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shuffled.npz"
    np.savez(path, **shuffled_arrays())
    for dataset in (shuffled_arrays(), str(path)):
        agent = BC("Pendulum-v1", dataset=dataset, output_dir=str(tmp_path / "runs"), **SMALL)
        result = agent.learn(4)
        said = capsys.readouterr().err
        for words in WORDS:
            assert said.count(words) == 1, said
        stored = json.loads((result.run_dir / "result.json").read_text())
        assert tuple(stored["data_notes"]) == result.data_notes
        assert len(result.data_notes) == 2


def test_several_seeds_say_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("bc/pendulum", ["total_updates=4", f"output_dir={tmp_path}"])
    result = learn_seeds(config, 2, dataset=shuffled_arrays(), **SMALL)
    said = capsys.readouterr().err
    for words in WORDS:
        assert said.count(words) == 1, said
    stored = json.loads((result.run_dir / "result.json").read_text())
    assert len(stored["data_notes"]) == 2


def whole_data() -> TransitionDataset:
    arrays = shuffled_arrays()
    return load_transition_dataset({**arrays, "truncations": np.arange(60) % 20 == 19})


def test_every_loop_hands_on_the_notes_of_its_data(tmp_path: Path) -> None:
    data = load_transition_dataset(shuffled_arrays(), env_id="Pendulum-v1")
    assert len(data.notes) == 2
    for algo in ("bc", "mopo", "rlpd", "gail"):  # one of each loop that reads data
        online = algorithm_class(algo).loop in ("offline_to_online", "imitation")
        budget = {"total_timesteps": 10_000} if online else {"total_updates": 4}
        agent = managed_class(algo)("Pendulum-v1", dataset=data, output_dir=str(tmp_path), **budget)
        with run_scope(agent.config, agent.algorithm.spaces):
            loop = build_loop(agent.config, agent.algorithm, data)
            loop.close()
        assert loop.data_notes == data.notes, algo


COLD = {
    "awr": {"temperature": 1e-3},
    "marwil": {"inverse_temperature": 1e3},
    "crr": {"temperature": 1e-6},
    "iql": {"inverse_temperature": 1e6},
    "awac": {"temperature": 1e-7},
}


def test_collapsed_weights_are_said_once_with_the_knob(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**SMALL, "total_updates": 6, "output_dir": str(tmp_path), "batch_size": 64}
    for algo, knobs in COLD.items():
        agent = managed_class(algo)("Pendulum-v1", dataset=whole_data(), **options, **knobs)
        agent.learn()
        said = capsys.readouterr().err
        advice = algorithm_class(algo).softer_weights
        assert said.count("warning: ") == 1, (algo, said)
        assert "temperature" in advice
        assert f"so the policy learns from few rows; {advice}\n" in said, algo
    plain = managed_class("awr")("Pendulum-v1", dataset=whole_data(), **options)
    plain.learn()
    assert "warning" not in capsys.readouterr().err


def test_when_weights_count_as_collapsed() -> None:
    assert collapsed_weights({}) is None
    assert collapsed_weights({"weight_effective": 0.03, "weight_capped": 0.1}) is None
    assert "2.0% of the batch" in str(collapsed_weights({"weight_effective": 0.02}))
    capped = collapsed_weights({"weight_effective": 0.5, "weight_capped": 0.11})
    assert "11% of the advantage weights are at algo_kwargs.max_weight" in str(capped)
    assert collapsed_weights({"weight_effective": float("nan")}) is None
