"""What belongs to an algorithm is there: config, test, page, managed class, exports."""

from __future__ import annotations

from pathlib import Path

import pytest

import rl_training
from rl_training import algorithms
from rl_training.api.algorithms import MANAGED
from rl_training.experiment import registry
from rl_training.experiment.config import load_config
from rl_training.experiment.config_files import packaged_config_names
from rl_training.experiment.errors import ConfigError

from ..each import each

ROOT = Path(__file__).resolve().parents[2]


@each("name", registry.algorithm_names())
def test_an_algorithm_comes_with_everything(name: str) -> None:
    cls = registry.algorithm_class(name)
    short = cls.name()
    missing = [
        what
        for what, there in {
            f"assets/configs/{name}/<env>.yaml": any(
                config.startswith(f"{name}/") for config in packaged_config_names()
            ),
            f"tests/algorithms/test_{name}.py": (
                ROOT / "tests" / "algorithms" / f"test_{name}.py"
            ).is_file(),
            f"docs/algorithms/{name}.md": (ROOT / "docs" / "algorithms" / f"{name}.md").is_file(),
            "a managed class in api/algorithms.py": name in MANAGED,
            f"rl_training.{short}": hasattr(rl_training, short),
            f"rl_training.algorithms.{short}": getattr(algorithms, short, None) is cls,
            f"rl_training.algorithms.{short}Algorithm": (
                getattr(algorithms, f"{short}Algorithm", None) is cls
            ),
            "a line in the README": f"docs/algorithms/{name}.md"
            in (ROOT / "README.md").read_text(),
            "a summary": bool(cls.summary),
            "a paper": bool(cls.paper),
        }.items()
        if not there
    ]
    assert not missing, f"{name} lacks: {'; '.join(missing)}"


@each("name", packaged_config_names())
def test_packaged_configs_are_valid_and_hold_only_differences(name: str) -> None:
    from rl_training.experiment.config import TrainConfig, read_config_values

    config = load_config(name)
    assert name.split("/")[0] == config.algo
    values = read_config_values(name)
    repeated = [
        key
        for key, value in values.items()
        if key in TrainConfig.model_fields and value == TrainConfig.model_fields[key].default
    ]
    fields = type(config.params).model_fields
    repeated += [k for k, v in values.get("algo_kwargs", {}).items() if v == fields[k].default]
    assert not repeated, f"{name} repeats defaults: {repeated}"


def test_the_configs_link_is_the_packaged_folder() -> None:
    assert (ROOT / "configs").resolve() == ROOT / "src" / "rl_training" / "assets" / "configs"


def test_third_parties_can_register() -> None:
    registry.register("bc_twin", "rl_training.algorithms.bc:BCAlgorithm")
    try:
        assert registry.algorithm_class("bc_twin").name() == "BC"
        with pytest.raises(ConfigError, match="already registered"):
            registry.register("bc_twin", "other:Thing")
        with pytest.raises(ConfigError, match=r"package\.module:Class"):
            registry.register("x", "nonsense")
    finally:
        registry._ALGORITHMS.pop("bc_twin")


def test_unknown_algorithm_is_named_with_a_guess() -> None:
    with pytest.raises(ConfigError, match="did you mean 'awr'"):
        registry.algorithm_class("awrr")
