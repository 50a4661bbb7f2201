"""The configuration: reading, overriding, resolving, and words for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.experiment.config import (
    CHANGEABLE_ON_RESUME,
    RETURN_METRICS,
    DatasetConfig,
    Schedule,
    TrainConfig,
    load_config,
)
from rl_training.experiment.config_files import (
    apply_overrides,
    packaged_config_names,
    parse_yaml,
    read_config_values,
)
from rl_training.experiment.errors import ConfigError, did_you_mean
from rl_training.experiment.registry import algorithm_names
from rl_training.experiment.section import Section

from ..each import each

BASE: dict[str, Any] = {
    "algo": "bc",
    "env_id": "Pendulum-v1",
    "dataset": {"kind": "scripted", "name": "pendulum-mixed"},
    "total_updates": 10,
}


@each("name", packaged_config_names())
def test_packaged_configs_resolve_and_come_back_from_yaml(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert config.algo in algorithm_names()
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    assert load_config(path) == config
    assert load_config(path).hash() == config.hash()
    assert yaml.safe_load(path.read_text(encoding="utf-8")) == config.to_dict()


def test_the_resolved_config_alone_rebuilds_the_run() -> None:
    config = TrainConfig(**BASE, algo_kwargs={"lr": 1e-5})
    assert config.algo_kwargs["lr"] == 1e-5
    assert config.algo_kwargs["batch_size"] == 256, "defaults are written out"
    assert TrainConfig(**config.to_dict()) == config


@each(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E5", 1e5),
        ("-2e+1", -20.0),
        ("1.5e-3", 1.5e-3),
        ("2.e2", 200.0),
        ("1_0e1", 100.0),
        ("e5", "e5"),
        ("3e", "3e"),
        ("0x1f", 31),
        ("3", 3),
        ("yes", True),
        ("", None),
        ("[1, 2]", [1, 2]),
        ("a e4", "a e4"),
    ],
)
def test_yaml_values(text: str, value: Any) -> None:
    read = parse_yaml(text, "text")
    assert read == value
    assert type(read) is type(value)


def test_merge_keys_are_not_taken_for_repetition() -> None:
    text = "base: &b {x: 1, y: 2}\nother: {<<: *b, y: 3}\n"
    assert parse_yaml(text, "text")["other"] == {"x": 1, "y": 3}


def test_overrides_reach_any_depth_and_leave_the_source_alone() -> None:
    values = {"seed": 1, "dataset": {"rewards": {"scale": 2.0}}}
    texts = ["seed=4", "dataset.rewards.shift=-1", "algo_kwargs.beta=3e-1", "env_id=a=b"]
    assert apply_overrides(values, texts) == {
        "seed": 4,
        "dataset": {"rewards": {"scale": 2.0, "shift": -1}},
        "algo_kwargs": {"beta": 0.3},
        "env_id": "a=b",
    }
    assert values == {"seed": 1, "dataset": {"rewards": {"scale": 2.0}}}


def test_overrides_survive_values_that_json_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("algo: bc\nenv_id: 2020-01-01\n", encoding="utf-8")
    values = apply_overrides(read_config_values(path), ["seed=1"])
    with pytest.raises(ConfigError, match=r"^env_id: expected text, got datetime\.date"):
        TrainConfig(**values)


def test_a_file_wins_over_a_packaged_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bc").mkdir()
    Path("bc/pendulum").write_text(yaml.safe_dump({**BASE, "seed": 77}), encoding="utf-8")
    assert load_config("bc/pendulum").seed == 77


class Lengthy(Section):
    """A section with a key that is described at length."""

    knob: int = 0
    """The first line, and
    the second one."""


def test_a_description_is_one_line_for_comments_and_help() -> None:
    assert Lengthy.model_fields["knob"].description == "The first line, and the second one."


def test_configs_are_frozen() -> None:
    config = TrainConfig(**BASE)
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
    assert config.replace(seed=3).seed == 3
    assert config.seed == 0


def test_the_hash_covers_what_is_learned_and_nothing_else() -> None:
    config = TrainConfig(**BASE)
    changes: dict[str, Any] = {
        "total_updates": 20,
        "eval_interval": 3,
        "eval_episodes": 3,
        "final_eval": False,
        "checkpoint_interval": 3,
        "checkpoint_minutes": 3,
        "eval_max_steps": 30,
        "keep_last": 5,
        "keep_best": False,
        "log_interval": 3,
        "profile": True,
        "tensorboard": False,
        "loggers": ["csv"],
        "report": True,
    }
    assert set(changes) == CHANGEABLE_ON_RESUME - {
        "total_epochs",
        "total_timesteps",
        "early_stopping",
    }
    for key, value in changes.items():
        assert config.replace(**{key: value}).hash() == config.hash(), key
    for key, value in {"seed": 1, "env_kwargs": {"g": 1}, "lr_schedule": {"warmup": 0.1}}.items():
        assert config.replace(**{key: value}).hash() != config.hash(), key


def test_early_stopping_knows_the_metrics_of_an_evaluation() -> None:
    from rl_training.envs.reference_scores import Reference
    from rl_training.runtime.evaluation import EvalResult

    scale = Reference("human", 0.0, 2.0)
    result = EvalResult((1.0,), (1,), (False,), (True,), reference=scale)
    assert tuple(result.metrics()) == tuple(RETURN_METRICS)


def test_sections_given_as_objects() -> None:
    objects = {"dataset": DatasetConfig(kind="random"), "lr_schedule": Schedule(kind="linear")}
    config = TrainConfig(**{**BASE, **objects})
    assert config.dataset == DatasetConfig(kind="random")
    assert config.lr_schedule.kind == "linear"


@each(
    ("algo", "key", "value", "words"),
    [
        ("sac", "gradient_updates_per_step", 1e20, "expected at most 1,000, got 1e+20"),
        ("ppo", "epochs", 10**9, "expected at most 1,000, got 1e+09"),
        ("cql", "num_action_samples", 10**9, "expected at most 100,000"),
        ("iql", "hidden_sizes", [8, 10**8], "expected at most 100,000"),
        ("iql", "batch_size", 10**12, "expected at most 10,000,000"),
    ],
)
def test_absurd_amounts_of_work_are_refused(algo: str, key: str, value: Any, words: str) -> None:
    """Knobs that multiply the work of one step; budgets may be as long as a life."""
    with pytest.raises(ConfigError) as refused:
        TrainConfig(algo=algo, env_id="Pendulum-v1", algo_kwargs={key: value})
    assert str(refused.value).startswith(f"algo_kwargs.{key}: ")
    assert words in str(refused.value)
    for name, count in (("num_envs", 10**7), ("eval_episodes", 10**9), ("keep_last", 10**20)):
        with pytest.raises(ConfigError, match=f"^{name}: expected a value less than or equal"):
            TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=10**14, **{name: count})


def test_a_discount_of_1_is_allowed() -> None:
    for algo in ("sac", "dqn", "awr", "ppo"):
        config = TrainConfig(algo=algo, env_id="Pendulum-v1", algo_kwargs={"gamma": 1.0})
        assert config.params.gamma == 1.0


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig(**{**BASE, "seed": "x" * 10_000})
    assert len(str(refused.value)) < 200


@each(
    ("word", "known", "guess"),
    [
        ("arw", ["awr", "marwil"], "awr"),
        ("bta", ["beta", "batch_size"], "beta"),
        ("awr", ["awr/pendulum", "bc/pendulum"], "awr/pendulum"),
        ("xyz", ["beta"], None),
        ("", ["beta"], None),
        ("beta", [], None),
    ],
)
def test_did_you_mean(word: str, known: list[str], guess: str | None) -> None:
    assert did_you_mean(word, known) == (f" (did you mean '{guess}'?)" if guess else "")


def test_schedules() -> None:
    linear = Schedule(kind="linear", warmup=0.5, end=0.2)
    assert [linear(x) for x in (0.0, 0.25, 0.5, 1.0, 9.0)] == pytest.approx([0, 0.5, 1, 0.2, 0.2])
    cosine = Schedule(kind="cosine")
    assert [cosine(x) for x in (-1.0, 0.0, 0.5, 1.0)] == pytest.approx([1, 1, 0.5, 0])
    assert Schedule().is_constant
    assert not Schedule(warmup=0.1).is_constant
