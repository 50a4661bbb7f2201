"""Older names of knobs: read from everywhere, with one warning that gives the new name."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from rl_training import AWR, CQL, GAIL
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.errors import ConfigError, RenamedKeyWarning
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.experiment.renames import older_names

OLD = {
    "awr": {"beta": 0.3},
    "awac": {"beta": 0.3},
    "crr": {"beta": 0.3, "n_action_samples": 3},
    "marwil": {"beta": 0.3},
    "iql": {"beta": 0.3},
    "rlpd": {"alpha": 0.2},
    "cql": {"deterministic_backup": False, "n_action_samples": 3, "lagrange_gap": 2.0},
    "qr_dqn": {"n_quantiles": 3},
    "iqn": {"n_quantiles": 3, "n_target_quantiles": 4, "n_action_quantiles": 5},
    "fqf": {"n_fractions": 3},
    "ppo": {"rollout_steps": 7},
    "dreamer": {"imagination_steps": 3, "entropy_scale": 0.1, "slow_rate": 0.5},
    "gail": {"entropy_bonus": 0.5},
}
NEW = {
    "awr": {"temperature": 0.3},
    "awac": {"temperature": 0.3},
    "crr": {"temperature": 0.3, "num_action_samples": 3},
    "marwil": {"inverse_temperature": 0.3},
    "iql": {"inverse_temperature": 0.3},
    "rlpd": {"fixed_temperature": 0.2},
    "cql": {"backup_entropy": True, "num_action_samples": 3, "lagrange_threshold": 10.0},
    "qr_dqn": {"num_quantiles": 3},
    "iqn": {"num_quantiles": 3, "num_target_quantiles": 4, "num_action_quantiles": 5},
    "fqf": {"num_fractions": 3},
    "ppo": {"rollout_length": 7},
    "dreamer": {"rollout_length": 3, "entropy_coef": 0.1, "tau": 0.5},
    "gail": {"discriminator_entropy_coef": 0.5},
}


def config_of(algo: str, knobs: dict[str, Any]) -> TrainConfig:
    return TrainConfig(algo=algo, env_id="Pendulum-v1", algo_kwargs=knobs)


def test_every_older_name_is_read_with_one_warning_that_gives_the_new_name() -> None:
    for algo in algorithm_names():
        params = algorithm_class(algo).Params
        older = older_names(params)
        assert older.keys() == OLD.get(algo, {}).keys(), algo
        assert {change.name for change in older.values()} <= params.model_fields.keys(), algo
        assert not older.keys() & params.model_fields.keys(), algo
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = config_of(algo, OLD.get(algo, {}))
        assert found == config_of(algo, NEW.get(algo, {}))
        said = [str(warning.message) for warning in caught]
        assert len(said) == len(OLD.get(algo, {})), said
        for key, text in zip(OLD.get(algo, {}), said, strict=True):
            assert text.startswith(f"algo_kwargs.{key} is called '{older[key].name}' now")


def test_the_later_source_wins_whichever_name_it_uses(tmp_path: Path) -> None:
    text = "algo: {algo}\nenv_id: Pendulum-v1\nalgo_kwargs: {knobs}\n"
    file = tmp_path / "own.yaml"
    cases: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("awr", "{beta: 3}", "algo_kwargs.temperature=0.5", {"temperature": 0.5}),
        ("awr", "{temperature: 3}", "algo_kwargs.beta=0.5", {"temperature": 0.5}),
        ("awr", "{temperature: 3}", "algo_kwargs={beta: 0.5}", {"temperature": 0.5}),
        ("cql", "{backup_entropy: false}", "algo_kwargs.deterministic_backup=false",
         {"backup_entropy": True}),
    )  # fmt: skip
    for algo, knobs, override, expected in cases:
        file.write_text(text.format(algo=algo, knobs=knobs))
        with pytest.warns(RenamedKeyWarning):
            assert load_config(file, [override]) == config_of(algo, expected), override
    file.write_text(text.format(algo="gail", knobs="{ppo: {rollout_length: 9}}"))
    with pytest.warns(RenamedKeyWarning, match=r"^algo_kwargs\.ppo\.rollout_steps is called"):
        found = load_config(file, ["algo_kwargs.ppo.rollout_steps=5"])
    assert found.params.ppo.rollout_length == 5


def test_keyword_arguments_may_have_older_names() -> None:
    options: dict[str, Any] = {"hidden_sizes": [4]}
    with pytest.warns(RenamedKeyWarning, match="'temperature' now"):
        agent = AWR("Pendulum-v1", dataset="pendulum-mixed", beta=0.4, **options)
    assert agent.config.params.temperature == 0.4
    with pytest.warns(RenamedKeyWarning, match=r"the opposite \(true is false\)"):
        assert CQL("Pendulum-v1", deterministic_backup=False).config.params.backup_entropy
    with pytest.warns(RenamedKeyWarning, match="'rollout_length' now"):
        nested = GAIL("Pendulum-v1", ppo={"rollout_steps": 5}, dataset="pendulum-mixed")
    assert nested.config.params.ppo.rollout_length == 5


def test_both_names_at_once_and_bad_values_are_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.beta: this is an older name of 'temp"):
        config_of("awr", {"beta": 1.0, "temperature": 2.0})
    refused = {
        "cql": ({"deterministic_backup": 3}, "backup_entropy: expected true or false"),
        "awr": ({"beta": -1.0}, "temperature: expected a value greater than 0"),
    }
    for algo, (knobs, words) in refused.items():
        with pytest.warns(RenamedKeyWarning), pytest.raises(ConfigError, match=f"kwargs.{words}"):
            config_of(algo, knobs)


def test_what_a_run_folder_holds_is_read_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for algo, knobs in OLD.items():
            values = {"algo": algo, "env_id": "Pendulum-v1", "algo_kwargs": knobs}
            then = algorithm_class(algo).Params.before_stored
            assert TrainConfig.stored(values) == config_of(algo, {**then, **NEW[algo]})


def test_the_command_line_says_it_in_one_line() -> None:
    command = [sys.executable, "-m", "rl_training", "show", "awr/pendulum", "algo_kwargs.beta=0.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = "warning: algo_kwargs.beta is called 'temperature' now; use the new name\n"
    assert done.stderr == expected
    assert "temperature: 0.5" in done.stdout
