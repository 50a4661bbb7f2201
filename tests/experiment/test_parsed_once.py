"""A configuration is read once: the typed knobs go from there to the loss."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from rl_training.algorithms.awr import AWRParams
from rl_training.algorithms.bc import BCParams
from rl_training.api.managed import ManagedAlgorithm
from rl_training.cli.train import train
from rl_training.experiment.config import Section, TrainConfig, load_config
from rl_training.experiment.errors import ConfigError
from tests.watching import Call, watched

SMALL = [
    "total_updates=2",
    "eval_episodes=1",
    "tensorboard=false",
    "device=cpu",
    "algo_kwargs.hidden_sizes=[4]",
]


def read(calls: list[Call]) -> dict[str, int]:
    """How often configurations and knobs were read."""
    knobs = sum(call.arguments.get("cls") is AWRParams for call in calls)
    return {"config": sum(call.name == "__init__" for call in calls), "knobs": knobs}


def test_one_train_builds_one_config(tmp_path: Path) -> None:
    with watched(TrainConfig.__init__, Section.parse) as calls:
        train("awr/pendulum", [*SMALL, f"output_dir={tmp_path}"], quiet=True)
    assert read(calls) == {"config": 1, "knobs": 1}
    assert list(tmp_path.glob("*/result.json"))


def test_the_knobs_that_were_read_are_those_of_the_learner() -> None:
    with watched(TrainConfig.__init__, Section.parse) as calls:
        check_the_knobs_of_the_learner()
    assert read(calls) == {"config": 2, "knobs": 1}


def check_the_knobs_of_the_learner() -> None:
    config = load_config("awr/pendulum", SMALL)
    agent = ManagedAlgorithm(config)
    assert agent.config is config
    assert agent.algorithm.params is config.params
    assert type(config.params) is AWRParams
    assert config.params.model_dump(mode="json") == config.algo_kwargs
    changed = config.replace(seed=3, dataset={"kind": "random"})
    assert changed.params is config.params


def test_changed_knobs_are_read() -> None:
    config = load_config("awr/pendulum", SMALL)
    assert config.replace(algo_kwargs={"temperature": 0.3}).params == AWRParams(temperature=0.3)


def test_knobs_may_be_given_typed() -> None:
    knobs = AWRParams(temperature=0.3)
    config = TrainConfig(algo="awr", env_id="Pendulum-v1", algo_kwargs=knobs)
    assert config.params is knobs
    assert config.algo_kwargs["temperature"] == 0.3
    with pytest.raises(
        ConfigError, match=r"^algo_kwargs: awr takes AWRParams, got BCParams; [^\n]+$"
    ):
        TrainConfig(algo="awr", env_id="Pendulum-v1", algo_kwargs=BCParams())
    other = ManagedAlgorithm(config, algo_kwargs=AWRParams(temperature=0.7), max_weight=3.0)
    assert (other.config.params.temperature, other.config.params.max_weight) == (0.7, 3.0)


def test_copies_keep_the_knobs() -> None:
    config = load_config("awr/pendulum", SMALL)
    for made in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), config.settled()):
        assert made == config
        assert made.params == config.params
