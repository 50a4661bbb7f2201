"""Bad input: one clear sentence per mistake, exit code 2, no traceback, nothing left behind."""

from __future__ import annotations

import json
import math
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import AWR, BC, DQN, RLPD, TrainConfig, load
from rl_training.experiment.errors import CheckpointError, ConfigError, DataError, RLTrainingError
from tests.conftest import QUICK, Command, Outcome, small_files
from tests.envs.probe import PROBE_ID

from .each import each

RUNS = "runs-of-this-test"


def assert_refused(outcome: Outcome, *fragments: str, lines: int = 1) -> None:
    """Exit code 2, nothing on stderr but `lines` sentences, which hold the fragments."""
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    assert len(outcome.error_lines) == lines, outcome.err
    assert outcome.err.splitlines() == outcome.error_lines
    for fragment in fragments:
        assert fragment in outcome.err


@pytest.fixture
def refuses(cli: Command, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """`refuses(command, *fragments)`; the folder for runs must be absent at the end."""

    def check(command: list[object], *fragments: str, lines: int = 1) -> None:
        assert_refused(cli(*command), *fragments, lines=lines)

    yield check
    assert not list(tmp_path.rglob(RUNS)), "a run folder was made"
    assert not list(tmp_path.rglob("*draft*")), "a half-written file was left"


@pytest.fixture
def refuses_training(
    refuses: Callable[..., None], tmp_path: Path
) -> Callable[[str, list[str], tuple[str, ...]], None]:
    def check(
        config: str, overrides: list[str], fragments: tuple[str, ...], lines: int = 1
    ) -> None:
        command = ["train", config, *QUICK, *overrides, "--output-dir", tmp_path / RUNS]
        refuses(command, *fragments, lines=lines)

    return check


# --- configuration -------------------------------------------------------------------------------

EARLY = "early_stopping={patience: 2}"

CONFIG_MISTAKES: list[tuple[str, list[str], tuple[str, ...]]] = [
    # names
    ("awr/pendulum", ["algo=arw"], ("algo:", "'arw'", "did you mean 'awr'")),
    ("awr/pendulum", ["algo="], ("algo:", "None")),
    ("awr/pendulum", ["algo=[awr]"], ("algo:", "expected text")),
    ("awr/pendulm", [], ("'awr/pendulm'", "did you mean 'awr/pendulum'")),
    ("awrr", [], ("'awrr'", "did you mean 'awr'")),
    ("", [], ("config ''",)),
    ("no/such/file.yaml", [], ("no/such/file.yaml", "rl-training list")),
    # keys, at every depth
    ("awr/pendulum", ["total_updats=5"], ("total_updats: unknown key", "'total_updates'")),
    ("awr/pendulum", ["zzz=5"], ("zzz: unknown key", "known keys are algo, env_id")),
    ("awr/pendulum", ["beta=0.5"], ("beta: unknown key", "'algo_kwargs.temperature'")),
    (
        "awr/pendulum",
        ["temprature=0.5"],
        ("temprature: unknown key", "did you mean 'algo_kwargs.temperature'"),
    ),
    (
        "awr/pendulum",
        ["algo_kwargs.temprature=0.5"],
        ("algo_kwargs.temprature: unknown key", "'temperature'"),
    ),
    ("awr/pendulum", ["dataset.nam=x"], ("dataset.nam: unknown key", "'name'")),
    ("awr/pendulum", ["dataset.rewards.scal=2"], ("dataset.rewards.scal:", "'scale'")),
    ("awr/pendulum", ["dataset.returns.at_trunc=cut"], ("dataset.returns.at_trunc:",)),
    ("awr/pendulum", ["early_stopping.patienc=2"], ("early_stopping.patienc:", "'patience'")),
    ("awr/pendulum", ["lr_schedule.kindd=linear"], ("lr_schedule.kindd:", "'kind'")),
    (
        "awr/pendulum",
        ["dataset={mix: [{kind: random}, {kind: scripted, nam: x}]}"],
        ("dataset.mix.1.nam: unknown key", "'name'"),
    ),
    ("awr/pendulum", ["env_kwargs={1: 2}"], ("env_kwargs.1",)),
    ("awr/pendulum", ["dataset={1: 2}"], ("dataset",)),
    # types
    ("awr/pendulum", ["total_updates=1.5"], ("total_updates:", "integer", "1.5")),
    ("awr/pendulum", ["total_updates=many"], ("total_updates:", "integer", "'many'")),
    ("awr/pendulum", ["total_updates='20'"], ("total_updates:", "integer", "'20'")),
    ("awr/pendulum", ["seed=yes"], ("seed:", "integer", "True")),
    ("awr/pendulum", ["seed.below=1"], ("seed:", "integer")),
    ("awr/pendulum", ["tensorboard=maybe"], ("tensorboard:", "true or false", "'maybe'")),
    ("awr/pendulum", ["algo_kwargs.hidden_sizes=8"], ("algo_kwargs.hidden_sizes:", "a list")),
    ("awr/pendulum", ["algo_kwargs.hidden_sizes=[]"], ("algo_kwargs.hidden_sizes:", "one entry")),
    ("awr/pendulum", ["algo_kwargs.hidden_sizes=[8, 0]"], ("algo_kwargs.hidden_sizes.1:",)),
    (
        "awr/pendulum",
        ["algo_kwargs.temperature=high"],
        ("algo_kwargs.temperature:", "number", "'high'"),
    ),
    ("awr/pendulum", ["algo_kwargs=[1]"], ("algo_kwargs:", "section")),
    ("awr/pendulum", ["dataset=3"], ("dataset:", "section", "got 3")),
    ("awr/pendulum", ["dataset=''"], ("dataset: '' is unknown",)),
    ("awr/pendulum", ["dataset=[1, 2]"], ("dataset:", "section", "got [1, 2]")),
    ("awr/pendulum", ["dataset=pendulum-mixd"], ("did you mean 'pendulum-mixed'",)),
    ("awr/pendulum", ["lr_schedule.optimizers=policy"], ("lr_schedule.optimizers:", "a list")),
    ("awr/pendulum", ["seed=2020-01-01"], ("seed:", "integer")),
    # ranges
    ("awr/pendulum", ["total_updates=0"], ("total_updates:", "greater than or equal to 1")),
    ("awr/pendulum", ["total_updates=-3"], ("total_updates:", "-3")),
    ("awr/pendulum", ["seed=-1"], ("seed:", "greater than or equal to 0")),
    ("awr/pendulum", ["eval_interval=-1"], ("eval_interval:",)),
    ("awr/pendulum", ["threads=100000000000"], ("threads:", "1024")),
    (
        "awr/pendulum",
        ["algo_kwargs.temperature=-1"],
        ("algo_kwargs.temperature:", "greater than 0", "-1"),
    ),
    (
        "marwil/pendulum",
        ["algo_kwargs.inverse_temperature=-0.5"],
        ("algo_kwargs.inverse_temperature:", "-0.5"),
    ),
    ("crr/pendulum", ["algo_kwargs.temperature=-1e-3"], ("algo_kwargs.temperature:", "-0.001")),
    ("iql/pendulum", ["algo_kwargs.inverse_temperature=-1"], ("algo_kwargs.inverse_temperature:",)),
    ("awac/pendulum", ["algo_kwargs.temperature=-1"], ("algo_kwargs.temperature:",)),
    ("awr/pendulum", ["algo_kwargs.temperature=.nan"], ("algo_kwargs.temperature:", "nan")),
    ("awr/pendulum", ["algo_kwargs.temperature=.inf"], ("algo_kwargs.temperature:", "inf")),
    ("awr/pendulum", ["algo_kwargs.policy_lr=1e39"], ("algo_kwargs.policy_lr:", "3e+38")),
    ("awr/pendulum", ["algo_kwargs.gamma=1.1"], ("algo_kwargs.gamma:", "1")),
    *(
        (f"{algo}/pendulum", [f"algo_kwargs.max_weight={value}"], ("algo_kwargs.max_weight:",))
        for algo in ("awr", "marwil", "crr", "iql", "awac")
        for value in ("0", "-2")
    ),
    *(
        ("iql/pendulum", [f"algo_kwargs.expectile={value}"], ("algo_kwargs.expectile:",))
        for value in ("0", "1", "-0.1", "1.5")
    ),
    ("crr/pendulum", ["algo_kwargs.num_action_samples=0"], ("algo_kwargs.num_action_samples:",)),
    ("cql/pendulum", ["algo_kwargs.num_action_samples=-2"], ("algo_kwargs.num_action_samples:",)),
    (
        "crr/pendulum",
        ["algo_kwargs.advantage_type=median"],
        ("algo_kwargs.advantage_type:", "'mean' or 'max'", "'median'"),
    ),
    ("awr/pendulum", ["lr_schedule.kind=stairs"], ("lr_schedule.kind:", "'linear'")),
    ("awr/pendulum", ["engine=warp"], ("engine:", "'eager'")),
    # combinations
    ("awr/pendulum", [EARLY, "eval_interval=0"], ("early_stopping", "eval_interval")),
    ("awr/pendulum", [EARLY, "eval_interval=99"], ("early_stopping", "eval_interval 99")),
    (
        "awr/pendulum",
        ["early_stopping={patience: 2, metric: eval/retrun_mean}", "eval_interval=5"],
        ("early_stopping:", "did you mean 'eval/return_mean'"),
    ),
    ("awr/pendulum", ["early_stopping={}", "eval_interval=5"], ("early_stopping:", "patience")),
    ("awr/pendulum", ["total_epochs=2"], ("total_updates or total_epochs",)),
    ("awr/pendulum", ["total_updates="], ("total_updates:",)),
    ("awr/pendulum", ["dataset="], ("dataset:",)),
    ("awr/pendulum", ["dataset={}"], ("dataset:", "'kind'")),
    ("awr/pendulum", ["dataset={kind: npz}"], ("dataset:", "'path'")),
    ("awr/pendulum", ["dataset.path=x.npz"], ("dataset:", "'path'", "dataset={path: x.npz}")),
    ("awr/pendulum", ["dataset={path: logs/}"], ("dataset: 'logs/'", "'kind'", "csv")),
    ("awr/pendulum", ["dataset.name=pendulum-mixd"], ("dataset:", "'pendulum-mixed'")),
    ("awr/pendulum", ["lr_schedule.optimizers=[polcy]"], ("lr_schedule.optimizers:", "polcy")),
    # overrides that cannot be read
    ("awr/pendulum", ["seed"], ("'seed'", "key=value")),
    ("awr/pendulum", ["=3"], ("'=3'", "key=value")),
    ("awr/pendulum", ["seed=["], ("'seed=['", "YAML")),
    ("awr/pendulum", ["seed=2020-13-45"], ("'seed=2020-13-45'", "YAML")),
    ("awr/pendulum", ["env_id.x=1"], ("'env_id'", "no keys below")),
    # environments
    ("awr/pendulum", ["env_id=Pendulm-v1"], ("env_id:", "did you mean 'Pendulum-v1'")),
    ("awr/pendulum", ["env_id=Pendulum-v0"], ("env_id:", "Pendulum-v1")),
    ("awr/pendulum", ["env_id=''"], ("env_id:",)),
    ("awr/pendulum", ["env_id=no_such_package:Task-v0"], ("env_id:", "no_such_package")),
    ("awr/pendulum", ["env_kwargs.gravty=1"], ("env_kwargs:", "gravty")),
    ("awr/default", ["env_id=CartPole-v1"], ("dataset.name:", "Pendulum-v1")),
    ("awr/pendulum", ["env_id=CartPole-v1"], ("action_distribution:", "Box", "Discrete(2)")),
    ("td3_bc/pendulum", ["env_id=CartPole-v1"], ("TD3BC", "Box actions")),
    ("awr/pendulum", ["device=abacus"], ("device:", "'abacus'")),
]


@each(("config", "overrides", "fragments"), CONFIG_MISTAKES)
def test_config_mistakes(
    refuses_training: Callable[..., None],
    config: str,
    overrides: list[str],
    fragments: tuple[str, ...],
) -> None:
    refuses_training(config, overrides, fragments)


def test_several_mistakes_give_one_line_each(refuses_training: Callable[..., None]) -> None:
    refuses_training(
        "awr/pendulum",
        [
            "seed=x",
            "totl_updates=1",
            "dataset.rewards.scal=2",
            "algo_kwargs={bta: 1, temperature: -1}",
        ],
        (
            "seed:",
            "totl_updates:",
            "dataset.rewards.scal:",
            "algo_kwargs.bta:",
            "algo_kwargs.temperature:",
        ),
        lines=5,
    )


CONFIG_FILES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("'key: value'",)),
    "list": (b"- algo: awr\n", ("'key: value'",)),
    "text": (b"hello", ("'key: value'",)),
    "syntax": (b"algo: awr\nenv_id: [Pendulum-v1\nseed: 1\n", ("not valid YAML", "line 3")),
    "first line": (b"algo: awr: bc\n", ("not valid YAML", "line 1")),
    "tab": (b"algo: awr\n\tseed: 1\n", ("not valid YAML", "line 2")),
    "twice": (b"algo: awr\nseed: 1\nseed: 2\n", ("line 3", "'seed' occurs twice")),
    "code": (b"algo: !!python/object/apply:os.getcwd []\n", ("not valid YAML", "line 1")),
    "two documents": (b"algo: awr\n---\nalgo: bc\n", ("not valid YAML", "line 2")),
    "binary": (b"\xff\xfe\x00\x01", ("UTF-8",)),
    "number as key": (b"1: 2\n", ("'key: value'",)),
    "deep": (b"[" * 5000, ("not valid YAML",)),
}


@each("name", CONFIG_FILES)
def test_config_files_that_are_none(
    refuses: Callable[..., None], tmp_path: Path, name: str
) -> None:
    content, fragments = CONFIG_FILES[name]
    path = tmp_path / "own.yaml"
    path.write_bytes(content)
    refuses(["train", path, "--output-dir", tmp_path / RUNS], str(path), *fragments)


def test_missing_keys_of_a_config_file_are_named(
    refuses: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("seed: 1\n", encoding="utf-8")
    refuses(["train", path], "algo: this key is required")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_where_there_is_none(refuses_training: Callable[..., None]) -> None:
    refuses_training("awr/pendulum", ["device=cuda"], ("device:", "0 CUDA devices"))


def test_compile_without_a_compiler(
    refuses_training: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    refuses_training("awr/pendulum", ["engine=compile"], ("engine:", "C++ compiler"))


# --- the same mistakes from Python ---------------------------------------------------------------

PYTHON_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"temprature": 1.0}, r"^temprature: unknown option .*did you mean 'temperature'"),
    ({"total_updtes": 1, "bta": 1.0}, r"(?s)^total_updtes: .*\nbta: .*"),
    ({"temperature": -1.0}, r"^algo_kwargs\.temperature: "),
    ({"algo_kwargs": {"bta": 1}}, r"^algo_kwargs\.bta: unknown key"),
    ({"algo_kwargs": 3}, r"^algo_kwargs: expected a section"),
    ({"networks": "nets"}, r"^algo_kwargs\.networks: expected a function, or its name as package"),
    ({"networks": 3}, r"^algo_kwargs\.networks: expected a function, or its name .*, got 3$"),
    ({"lr_schedule": {"kindd": "x"}}, r"^lr_schedule\.kindd: unknown key"),
    ({"early_stopping": {"patienc": 2}}, r"^early_stopping\.patienc: unknown key"),
    ({"total_updates": "many"}, r"^total_updates: "),
    ({"seed": -1}, r"^seed: "),
    ({"algo": "bc"}, r"^algo: AWR "),
    ({"env_kwargs": {"gravty": 1}}, r"^env_kwargs: .*gravty"),
    ({"env_kwargs": 3}, r"^env_kwargs: "),
    ({"env_id": "Pendulm-v1"}, r"^env_id: .*did you mean 'Pendulum-v1'"),
    ({"dataset": 3}, r"^dataset: .* from int"),
    ({"dataset": [1]}, r"^dataset: .* from list"),
    ({"dataset": ""}, r"^dataset: '' is unknown"),
    ({"dataset": "pendulum-mixd"}, r"did you mean 'pendulum-mixed'"),
    ({"dataset": {}}, r"^dataset: give either"),
    ({"dataset": {"kind": "npz", "pth": "x"}}, r"^dataset\.pth: unknown key"),
    ({"dataset": {"obs": np.zeros((3, 3))}}, r"missing keys 'actions'"),
]


@each(("options", "message"), PYTHON_MISTAKES)
def test_python_mistakes(options: dict[str, Any], message: str) -> None:
    given = {"dataset": "pendulum-mixed", "total_updates": 20, **options}
    with pytest.raises(RLTrainingError, match=message):
        AWR("Pendulum-v1", **given)


@each("thing", [3, {"env_id": "Pendulum-v1"}, ["Pendulum-v1"]])
def test_an_environment_is_named_by_its_id(thing: Any) -> None:
    with pytest.raises(ConfigError, match=r"^env_id: give the id"):
        AWR(thing, dataset="pendulum-mixed", total_updates=20)


def test_unhashable_values_everywhere() -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig(algo={}, env_id=[], seed={}, dataset={"kind": {}, "mix": {}})
    lines = str(refused.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "algo",
        "env_id",
        "seed",
        "dataset.kind",
        "dataset.mix",
    ]


def test_learn_does_not_pretend_to_change_a_made_agent(tmp_path: Path) -> None:
    agent = BC(
        "Pendulum-v1",
        dataset="pendulum-mixed",
        total_updates=5,
        hidden_sizes=(8,),
        output_dir=str(tmp_path / RUNS),
    )
    for options in ({"lr": 1.0}, {"seed": 3}, {"hidden_sizes": [4]}):
        key = next(iter(options))
        with pytest.raises(ConfigError, match=rf"learn cannot change .*{key}: "):
            agent.learn(**options, progress=False)
    with pytest.raises(ConfigError, match=r"^total_updates: "):
        agent.learn("many", progress=False)  # type: ignore[arg-type]
    assert not (tmp_path / RUNS).exists()


def test_budget_and_data_are_missed_when_learning_starts(tmp_path: Path) -> None:
    """An agent may be made without a budget, which learn() gives, and even without data."""
    options: dict[str, Any] = {
        "hidden_sizes": (8,),
        "tensorboard": False,
        "final_eval": False,
        "output_dir": str(tmp_path / RUNS),
    }
    agent = BC("Pendulum-v1", dataset="pendulum-mixed", **options)
    with pytest.raises(ConfigError, match=r"^total_updates: "):
        agent.learn(progress=False)
    with pytest.raises(ConfigError, match=r"^dataset: bc learns from data"):
        BC("Pendulum-v1", **options).learn(5, progress=False)
    assert not (tmp_path / RUNS).exists()
    assert agent.learn(total_updates=5, progress=False).updates == 5


# --- environments that cannot be served ----------------------------------------------------------


class OddEnv(gym.Env[Any, Any]):
    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


_BOX = gym.spaces.Box(-1.0, 1.0, (2,))
_IMAGE = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
ODD_SPACES = {
    "Text": (gym.spaces.Text(4), _BOX),
    "TwoImages": (gym.spaces.Dict({"a": _IMAGE, "b": _IMAGE}), _BOX),
    "Unbounded": (_BOX, gym.spaces.Box(-np.inf, np.inf, (1,))),
    "Tuple": (_BOX, gym.spaces.Tuple([_BOX])),
}


@each("name", ODD_SPACES)
def test_unsupported_spaces(refuses_training: Callable[..., None], name: str) -> None:
    observation_space, action_space = ODD_SPACES[name]
    env_id = f"Odd{name}-v0"
    gym.register(
        env_id,
        lambda: OddEnv(observation_space, action_space),
        disable_env_checker=True,
        order_enforce=False,
    )
    try:
        refuses_training(
            "awr/pendulum",
            [f"env_id={env_id}", "dataset={kind: random, steps: 10}"],
            ("env_id:", env_id, "space", "not supported"),
        )
    finally:
        gym.registry.pop(env_id)


def test_an_environment_that_fails_to_start(refuses_training: Callable[..., None]) -> None:
    def broken() -> gym.Env[Any, Any]:
        raise OSError("the simulator's licence has expired\nsecond line")

    gym.register("Broken-v0", broken)
    try:
        refuses_training("awr/pendulum", ["env_id=Broken-v0"], ("env_id:", "licence has expired"))
    finally:
        gym.registry.pop("Broken-v0")


# --- data ----------------------------------------------------------------------------------------

ROWS = 30


def transitions(**changes: Any) -> dict[str, Any]:
    """Sound Pendulum data of three episodes, with some arrays replaced, or removed by None."""
    random = np.random.default_rng(0)
    truncations = np.zeros(ROWS, bool)
    truncations[9::10] = True
    arrays = {
        "observations": random.normal(size=(ROWS, 3)).astype(np.float32),
        "actions": random.uniform(-2, 2, (ROWS, 1)).astype(np.float32),
        "rewards": random.normal(size=ROWS).astype(np.float32),
        "next_observations": random.normal(size=(ROWS, 3)).astype(np.float32),
        "terminations": np.zeros(ROWS, bool),
        "truncations": truncations,
        **changes,
    }
    return {name: array for name, array in arrays.items() if array is not None}


def spoilt(name: str, value: float, row: int = 7) -> dict[str, Any]:
    array = transitions()[name].copy()
    array[row] = value
    return transitions(**{name: array})


class Planted:
    """Unpickling this runs code."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.witness,)


DATA_MISTAKES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "missing key": (transitions(rewards=None), ("missing key 'rewards'",)),
    "missing keys": (
        transitions(rewards=None, truncations=None),
        ("missing keys 'rewards', 'truncations'",),
    ),
    "misspelt key": (
        transitions(rewards=None, rewrds=np.zeros(ROWS)),
        ("missing key 'rewards'", "did you mean 'rewrds'"),
    ),
    "dones only": (
        transitions(terminations=None, truncations=None, dones=np.zeros(ROWS)),
        ("'terminations', 'truncations'", "'dones'"),
    ),
    "unequal lengths": (
        transitions(rewards=np.zeros(ROWS - 1, np.float32)),
        ("unequal", "rewards 29", "actions 30"),
    ),
    "NaN observation": (spoilt("observations", np.nan), ("'observations'", "NaN", "row 7")),
    "NaN next": (spoilt("next_observations", np.nan), ("'next_observations'", "NaN", "row 7")),
    "infinite reward": (spoilt("rewards", np.inf), ("'rewards'", "infinity", "row 7")),
    "NaN action": (spoilt("actions", np.nan), ("'actions'", "NaN", "row 7")),
    "NaN flag": (
        transitions(terminations=np.full(ROWS, np.nan)),
        ("'terminations'", "nan", "row 0"),
    ),
    "beyond float32": (
        transitions(rewards=np.full(ROWS, 1e300)),
        ("'rewards'", "infinity (as float32)", "row 0"),
    ),
    "action outside": (
        spoilt("actions", 2.5),
        ("'actions'", "2.5 at row 7", "outside", "[-2, 2]"),
    ),
    "other width": (
        transitions(
            observations=np.zeros((ROWS, 4), np.float32),
            next_observations=np.zeros((ROWS, 4), np.float32),
        ),
        ("'observations'", "4 wide", "3 wide"),
    ),
    "discrete data for Box": (
        transitions(actions=np.zeros(ROWS, np.int64)),
        ("'actions'", "discrete", "Box"),
    ),
    "empty": ({name: array[:0] for name, array in transitions().items()}, ("empty",)),
    "no whole episode": (
        transitions(truncations=np.zeros(ROWS, bool)),
        ("no whole episode", "returns-to-go"),
    ),
    "flag of two": (
        transitions(terminations=np.full(ROWS, 2)),
        ("'terminations'", "holds 2 at row 0"),
    ),
    "text": (transitions(actions=np.array(["left"] * ROWS)), ("'actions'", "<U4")),
    "complex": (transitions(rewards=np.zeros(ROWS, complex)), ("'rewards'", "complex128")),
    "scalar": (transitions(rewards=np.float32(1)), ("'rewards'", "single value")),
    "flat observations": (
        transitions(observations=np.zeros(ROWS, np.float32)),
        ("'observations'", "(30,)"),
    ),
    "two names": (
        transitions(obs=np.zeros((ROWS, 3), np.float32)),
        ("'observations' and 'obs'",),
    ),
}


@each("name", DATA_MISTAKES)
@each("kind", ["npz", "hdf5"])
def test_data_mistakes(
    refuses_training: Callable[..., None], tmp_path: Path, name: str, kind: str
) -> None:
    arrays, fragments = DATA_MISTAKES[name]
    path = tmp_path / f"data.{kind}"
    if kind == "npz":
        np.savez(path, **arrays)
    else:
        h5py = pytest.importorskip("h5py")
        if name == "text":
            pytest.skip("h5py has no fixed-width unicode")
        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file[key] = array
    refuses_training(
        "awr/pendulum", [f"dataset={{kind: {kind}, path: '{path}'}}"], (str(path), *fragments)
    )


def test_box_data_for_a_discrete_task(
    refuses_training: Callable[..., None], tmp_path: Path
) -> None:
    wide = np.zeros((ROWS, 4), np.float32)
    path = tmp_path / "data.npz"
    np.savez(path, **transitions(observations=wide, next_observations=wide))
    overrides = [f"dataset={{kind: npz, path: '{path}'}}", "env_id=CartPole-v1"]
    overrides.append("algo_kwargs.action_distribution=gaussian")
    refuses_training("bc/pendulum", overrides, (str(path), "'actions'", "Box", "2 discrete"))


# --- demonstrations --------------------------------------------------------------------------


IMITATION_MISTAKES: dict[str, tuple[str, list[str], tuple[str, ...]]] = {
    "no demonstrations": ("gail/cartpole", ["dataset=null"], ("dataset:", "demonstrations", "add")),
    "of another task": (
        "gail/cartpole",
        ["dataset={kind: scripted, name: pendulum-expert}"],
        ("dataset.name:", "Pendulum-v1", "fixed-cartpole-expert"),
    ),
    "more than there are": (
        "gail/cartpole",
        ["algo_kwargs.demo_episodes=21"],
        ("algo_kwargs.demo_episodes: 21", "has 20", "at most 20"),
    ),
    "none of them": ("gail/cartpole", ["algo_kwargs.demo_episodes=0"], ("demo_episodes:", "1")),
    "unknown reward form": (
        "gail/cartpole",
        ["algo_kwargs.reward_form=softpluss"],
        ("algo_kwargs.reward_form:", "softplus", "log_sigmoid", "logit"),
    ),
    "unknown generator": ("gail/cartpole", ["algo_kwargs.generator=trpo"], ("generator:", "ppo")),
    "knobs of the other generator": (
        "gail/pendulum",
        ["algo_kwargs.ppo.lr=0.1"],
        ("algo_kwargs.ppo:", "generator is sac", "remove"),
    ),
    "rewards of demonstrations": (
        "gail/cartpole",
        ["dataset.rewards.scale=2"],
        ("dataset.rewards:", "never uses", "remove"),
    ),
}


@each("name", IMITATION_MISTAKES)
def test_imitation_mistakes(refuses_training: Callable[..., None], name: str) -> None:
    config, overrides, fragments = IMITATION_MISTAKES[name]
    refuses_training(config, ["total_updates=null", *overrides], fragments)


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"actions": None}, ("missing key 'actions'",)),
        ({"observations": np.zeros((30, 5), np.float32), "next_observations": None}, ("5", "3")),
        ({"actions": np.zeros((30, 2), np.float32)}, ("'actions'", "2", "1")),
    ],
)
def test_demonstrations_that_do_not_fit(
    refuses_training: Callable[..., None],
    tmp_path: Path,
    changes: dict[str, Any],
    fragments: tuple[str, ...],
) -> None:
    path = tmp_path / "demos.npz"
    np.savez(path, **transitions(**changes))
    overrides = ["total_updates=null", f"dataset={{kind: npz, path: '{path}'}}"]
    refuses_training("gail/pendulum", overrides, (str(path), *fragments))


def _npy_with_header(header: str) -> bytes:
    text = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _archive(path: Path, content: bytes | str, suffix: str = ".npy") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in transitions():
            archive.writestr(name + suffix, content)


def _write_text(path: Path) -> None:
    path.write_text("hello", encoding="utf-8")


def _write_nothing(path: Path) -> None:
    path.write_bytes(b"")


def _write_single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def _write_half(path: Path) -> None:
    np.savez(path, **transitions())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _write_flipped(path: Path) -> None:
    np.savez(path, **transitions())
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)


def _write_promise(path: Path) -> None:
    shape = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    _archive(path, _npy_with_header(shape))


def _write_bad_header(path: Path) -> None:
    _archive(path, _npy_with_header("{'descr': [[[, 'fortran_order"))


def _write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Planted(path.with_name("ran"))))


def _write_pickled_array(path: Path) -> None:
    planted = np.array([Planted(path.with_name("ran"))] * ROWS, dtype=object)
    np.savez(path, **transitions(actions=planted))


BROKEN_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "text": (_write_text, "is not an npz file"),
    "nothing": (_write_nothing, "is not an npz file"),
    "one array": (_write_single_array, "is not an npz file"),
    "half": (_write_half, "is not an npz file"),
    "flipped bit": (_write_flipped, "array 'observations' is damaged"),
    "huge promise": (_write_promise, "array 'observations' is damaged"),
    "bad header": (_write_bad_header, "array 'observations' is damaged"),
    "no arrays": (lambda path: _archive(path, "hello", ""), "array 'observations' is damaged"),
    "pickle": (_write_pickle, "is not an npz file"),
    "pickled array": (_write_pickled_array, "array 'actions' holds pickled Python objects"),
    "folder": (Path.mkdir, "is a folder"),
    "missing": (lambda _: None, "does not exist"),
}


@each("name", BROKEN_FILES)
def test_files_that_are_no_data(
    cli: Command, refuses_training: Callable[..., None], tmp_path: Path, name: str
) -> None:
    write, fragment = BROKEN_FILES[name]
    path = tmp_path / "data.npz"
    write(path)
    refuses_training(
        "awr/pendulum", [f"dataset={{kind: npz, path: '{path}'}}"], (str(path), fragment)
    )
    inspected = cli("data", "inspect", path)
    assert_refused(inspected, str(path), fragment)
    assert fragment not in inspected.out  # said once, as the error
    assert not (tmp_path / "ran").exists(), "code in a data file was run"


@pytest.mark.parametrize("content", [b"hello", b"", b"\x89HDF\r\n\x1a\n" + b"x" * 100])
def test_files_that_are_no_hdf5(
    refuses_training: Callable[..., None], tmp_path: Path, content: bytes
) -> None:
    pytest.importorskip("h5py")
    path = tmp_path / "data.hdf5"
    path.write_bytes(content)
    refuses_training(
        "awr/pendulum",
        [f"dataset={{kind: hdf5, path: '{path}'}}"],
        (str(path), "is not an hdf5 file"),
    )


def test_a_misspelt_file_name_is_guessed(
    refuses_training: Callable[..., None], tmp_path: Path
) -> None:
    np.savez(tmp_path / "transitions.npz", **transitions())
    overrides = [f"dataset={{kind: npz, path: '{tmp_path / 'transition.npz'}'}}"]
    refuses_training("awr/pendulum", overrides, ("did you mean 'transitions.npz'",))


@pytest.mark.parametrize("dataset_id", ["no/such-v0", "''", "not an id"])
def test_minari_ids_that_are_not_there(
    refuses_training: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dataset_id: str,
) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    overrides = [f"dataset={{kind: minari, id: {dataset_id}}}"]
    refuses_training("awr/pendulum", overrides, ("minari data set", dataset_id.strip("'")))


def test_inspect_reports_every_array_and_then_refuses(cli: Command, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **spoilt("rewards", np.nan))
    outcome = cli("data", "inspect", path, "--env", "Pendulum-v1")
    assert_refused(outcome, "'rewards' holds NaN at row 7")
    for name in transitions():
        assert name in outcome.out
    assert "holds NaN" not in outcome.out  # said once, as the error


DATA_COMMANDS: list[tuple[list[str], tuple[str, ...]]] = [
    (["inspect", "pendulum-mixd"], ("did you mean 'pendulum-mixed'",)),
    (["inspect", "data.xyz"], ("'data.xyz'", ".npz")),
    (["inspect", ""], ("dataset: ''",)),
    (["inspect", "random"], ("environment",)),
    (["inspect", "pendulum-expert", "--env", "CartPole-v1"], ("Pendulum-v1", "CartPole-v1")),
    (["inspect", "pendulum-expert", "--env", "Nope-v1"], ("not in Nope-v1",)),
    (["make", "random", "--out", "{tmp}/new.npz"], ("--env",)),
    (["make", "random", "--env", "Nope-v1", "--out", "{tmp}/new.npz"], ("'Nope-v1'",)),
    (["make", "pendulum", "--out", "{tmp}/new.npz"], ("'pendulum'", "pendulum-mixed")),
    (["make", "pendulum-expert", "--steps", "9", "--out", "{tmp}/new.npz"], ("--steps",)),
    (["make", "pendulum-expert", "--out", "{tmp}/new.xyz"], ("new.xyz", ".npz")),
    (["make", "pendulum-expert", "--out", "{tmp}/there.npz"], ("exists already", "--overwrite")),
    (["make", "pendulum-expert", "--out", "{tmp}/folder.npz"], ("is a folder",)),
    (["make", "pendulum-expert", "--out", "{tmp}/there.npz/x.npz"], ("cannot be written",)),
    (["make", "pendulum-expert", "--out", "/proc/none/x.npz"], ("cannot be written",)),
    (["convert", "{tmp}/there.npz", "{tmp}/there.npz"], ("exists already",)),
    (["convert", "{tmp}/none.npz", "{tmp}/new.npz"], ("none.npz", "does not exist")),
    (["convert", "{tmp}/there.npz", "{tmp}/new"], ("does not say its format",)),
    (["convert", "{tmp}/there.npz", "minari:nameless"], ("minari id 'nameless'",)),
]


@each(("command", "fragments"), DATA_COMMANDS)
def test_data_commands(
    refuses: Callable[..., None], tmp_path: Path, command: list[str], fragments: tuple[str, ...]
) -> None:
    np.savez(tmp_path / "there.npz", **transitions())
    (tmp_path / "folder.npz").mkdir()
    before = (tmp_path / "there.npz").read_bytes()
    refuses(["data", *(word.replace("{tmp}", str(tmp_path)) for word in command)], *fragments)
    assert (tmp_path / "there.npz").read_bytes() == before
    assert not list(tmp_path.glob("new*"))


COLLECT_MISTAKES: list[tuple[list[str], tuple[str, ...]]] = [
    ([], ("episodes, steps:", "exactly one")),
    (["-n", "1", "--steps", "9"], ("episodes, steps:", "exactly one")),
    (["-n", "1", "--noise", "0.1"], ("noise:", "Discrete(2) actions", "use epsilon")),
    (["-n", "1", "--noise", "inf"], ("noise:", "0 or more, got inf")),
    (["-n", "1", "--stochastic"], ("--stochastic", "use epsilon")),
    (["-n", "1", "--checkpoint", "best"], ("is one checkpoint already",)),
    (["-n", "1", "--out", "{tmp}/new.xyz"], ("new.xyz", ".npz")),
    (["-n", "1", "--out", "{tmp}/there.npz"], ("exists already", "--overwrite")),
    (["-n", "1", "--out", "{tmp}/folder.npz"], ("is a folder",)),
    (["-n", "1", "--out", "{tmp}/there.npz/new.npz"], ("cannot be written",)),
    (["-n", "1", "--out", "/proc/none/new.npz"], ("cannot be written",)),
    (["-n", "1", "--out", "minari:nameless"], ("minari id 'nameless'",)),
]


@each(("options", "fragments"), COLLECT_MISTAKES, ids=str)
def test_collect_mistakes(
    refuses: Callable[..., None], tmp_path: Path, options: list[str], fragments: tuple[str, ...]
) -> None:
    policy = DQN("CartPole-v1", hidden_sizes=(8,)).save(tmp_path / "policy")
    (tmp_path / "there.npz").write_text("precious", encoding="utf-8")
    (tmp_path / "folder.npz").mkdir()
    given = [word.replace("{tmp}", str(tmp_path)) for word in options]
    target = [] if "--out" in options else ["--out", tmp_path / "new.npz"]
    refuses(["data", "collect", policy, *target, *given, "-q"], *fragments)
    assert (tmp_path / "there.npz").read_text(encoding="utf-8") == "precious"
    assert not list(tmp_path.rglob("new*"))


VIDEO_MISTAKES: list[tuple[list[str], tuple[str, ...]]] = [
    (["--overwrite"], ("--overwrite belongs to --video",)),
    (["--video", "{tmp}/new.avi"], ("video:", "new.avi", ".mp4 or .gif")),
    (["--video", "{tmp}/there.gif"], ("video:", "exists already", "--overwrite")),
    (["--video", "{tmp}/folder.gif"], ("video:", "is a folder")),
    (["--video", "{tmp}/there.gif/new.mp4"], ("video:", "cannot be written")),
    (["--video", "/proc/none/new.mp4"], ("video:", "cannot be written")),
]


@each(("options", "fragments"), VIDEO_MISTAKES, ids=str)
def test_video_mistakes(
    refuses: Callable[..., None],
    bc_run: Path,
    tmp_path: Path,
    options: list[str],
    fragments: tuple[str, ...],
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    (tmp_path / "there.gif").write_text("precious", encoding="utf-8")
    (tmp_path / "folder.gif").mkdir()
    given = [word.replace("{tmp}", str(tmp_path)) for word in options]
    refuses(["eval", bc_run, "-n", 1, *given], *fragments)
    assert (tmp_path / "there.gif").read_text(encoding="utf-8") == "precious"
    assert not list(tmp_path.rglob("new*"))


def test_a_greedy_policy_has_nothing_to_draw(refuses: Callable[..., None], tmp_path: Path) -> None:
    policy = DQN("CartPole-v1", hidden_sizes=(8,)).save(tmp_path / "policy")
    refuses(["eval", policy, "-n", 1, "--stochastic"], "nothing to sample", "leave out")


# --- folders that cannot be written --------------------------------------------------------------


@pytest.mark.parametrize("where", ["{tmp}/file", "{tmp}/file/below", "/proc/none", '"a\\0b"'])
def test_unwritable_output_folder(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    folder = where.replace("{tmp}", str(tmp_path))
    outcome = cli("train", "bc/pendulum", *QUICK, f"output_dir={folder}")
    assert_refused(outcome, "output_dir:", "cannot make a run folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_folder_that_cannot_be_filled_is_removed(cli: Command, tmp_path: Path) -> None:
    with small_files(0):
        outcome = cli("train", "bc/pendulum", *QUICK, f"output_dir={tmp_path / 'runs'}")
    assert_refused(outcome, "output_dir:", "cannot be filled", "File too large")
    assert not list((tmp_path / "runs").iterdir())


# --- runs and checkpoints ------------------------------------------------------------------------


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def rewrite_manifest(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as an attacker would: with every checksum made right again."""
    from rl_training.experiment.checkpoint import MANIFEST, manifest_checksum

    path = checkpoint / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    manifest["checksum"] = manifest_checksum(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def _truncate(name: str) -> Callable[[Path], None]:
    def spoil(checkpoint: Path) -> None:
        path = checkpoint / name
        path.write_bytes(path.read_bytes()[:100])

    return spoil


def _flip(name: str) -> Callable[[Path], None]:
    def spoil(checkpoint: Path) -> None:
        content = bytearray((checkpoint / name).read_bytes())
        content[len(content) // 2] ^= 1
        (checkpoint / name).write_bytes(content)

    return spoil


def _remove(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).unlink()


def _without(*keys: str) -> Callable[[Path], None]:
    def change(manifest: dict[str, Any]) -> None:
        for key in keys:
            del manifest[key]

    return lambda checkpoint: rewrite_manifest(checkpoint, change)


def _set(key: str, value: Any) -> Callable[[Path], None]:
    return lambda checkpoint: rewrite_manifest(checkpoint, lambda m: m.update({key: value}))


DAMAGE: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "gone": (shutil.rmtree, ("does not exist",)),
    "truncated": (_truncate("algorithm.pt"), ("damaged", "algorithm.pt", "checksum")),
    "flipped": (_flip("algorithm.pt"), ("damaged", "algorithm.pt", "checksum")),
    "other part flipped": (_flip("trainer.pt"), ("damaged", "trainer.pt", "checksum")),
    "part missing": (_remove("algorithm.pt"), ("damaged", "algorithm.pt", "missing")),
    "no manifest": (_remove("manifest.json"), ("not a checkpoint", "manifest.json")),
    "manifest truncated": (_truncate("manifest.json"), ("damaged", "manifest.json")),
    "manifest flipped": (_flip("manifest.json"), ("damaged", "manifest.json")),
    "newer": (_set("format_version", 99), ("format 99", "install a newer version")),
    "no files": (_set("files", {}), ("does not fit",)),
    "files outside": (_set("files", {"../../config.yaml": "0"}), ("lies outside",)),
    "no config": (_without("config"), ("does not fit",)),
    "no spaces": (_without("spaces"), ("does not fit",)),
    "odd tick": (_set("tick", "soon"), ("damaged", "manifest.json")),
    "endless tick": (_set("tick", math.inf), ("damaged", "manifest.json")),
    "endless version": (_set("format_version", math.inf), ("damaged", "manifest.json")),
    "odd score": (_set("score", "good"), ("damaged", "manifest.json")),
    "a name with a null": (_set("files", {"a\0.pt": "0"}), ("damaged", r"a\x00.pt is missing")),
    "a name of no alphabet": (_set("files", {"\ud800": "0"}), (r"\ud800 is missing",)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_checkpoints(cli: Command, awr_run: Path, name: str) -> None:
    spoil, fragments = DAMAGE[name]
    checkpoint = newest(awr_run)
    spoil(checkpoint)
    for command in (["eval", checkpoint, "-n", 1], ["predict", checkpoint, "[1, 0, 0]"]):
        assert_refused(cli(*command), str(checkpoint), *fragments)


@pytest.mark.parametrize("name", ["no manifest", "manifest flipped", "newer", "odd tick"])
def test_no_older_weights_are_taken_unasked(cli: Command, awr_run: Path, name: str) -> None:
    """The newest checkpoint of a run is damaged: which other one is used has to be said."""
    spoil, fragments = DAMAGE[name]
    checkpoint = newest(awr_run)
    spoil(checkpoint)
    target = awr_run.parent / "data.npz"
    commands: list[list[Any]] = [
        ["predict", awr_run, "[1, 0, 0]"],
        ["eval", awr_run, "-n", 1],
        ["data", "collect", awr_run, "-n", 1, "--out", target],
    ]
    for command in commands:
        for which in ("latest", "best", "20"):
            outcome = cli(*command, "--checkpoint", which)
            assert_refused(outcome, str(checkpoint), "--checkpoint 15", *fragments)
    assert not target.exists()
    with pytest.raises(CheckpointError, match="--checkpoint 15"):
        load(awr_run)
    with pytest.raises(ConfigError, match=r"init_from: .*--checkpoint 15"):
        RLPD("Pendulum-v1", total_timesteps=2000, init_from=str(awr_run), offline_batch_ratio=0.0)
    assert cli("predict", awr_run, "[1, 0, 0]", "--checkpoint", 15).code == 0


def test_a_changed_bound_in_the_manifest_is_noticed(cli: Command, awr_run: Path) -> None:
    """The manifest holds the action space: a flipped digit would scale every action."""
    path = newest(awr_run) / "manifest.json"
    text = path.read_text(encoding="utf-8")
    assert "2.0" in text
    path.write_text(text.replace("2.0", "3.0"), encoding="utf-8")
    assert_refused(cli("predict", path.parent, "[1, 0, 0]"), "damaged", "manifest.json")


def test_a_checkpoint_of_another_algorithm(cli: Command, awr_run: Path, bc_run: Path) -> None:
    with pytest.raises(RLTrainingError, match="AWR cannot load a checkpoint of 'bc'"):
        AWR.load(newest(bc_run))
    with pytest.raises(RLTrainingError, match="AWR cannot load a checkpoint of 'bc'"):
        AWR.resume(bc_run, progress=False)
    shutil.rmtree(newest(awr_run))
    shutil.copytree(newest(bc_run), awr_run / "checkpoints" / newest(bc_run).name)
    before = (awr_run / "metrics.jsonl").read_bytes()
    assert_refused(cli("resume", awr_run), "is of 'bc'", "trains 'awr'")
    assert (awr_run / "metrics.jsonl").read_bytes() == before


def test_weights_of_another_shape(cli: Command, awr_run: Path) -> None:
    checkpoint = newest(awr_run)
    rewrite_manifest(checkpoint, lambda m: m["config"]["algo_kwargs"].update(hidden_sizes=[9]))
    assert_refused(cli("eval", checkpoint, "-n", 1), "does not fit")


def test_weights_that_are_no_numbers(cli: Command, awr_run: Path) -> None:
    import hashlib

    checkpoint = newest(awr_run)
    file = checkpoint / "algorithm.pt"
    state = torch.load(file, weights_only=True)
    state["modules"]["model.policy.net.layers.0.bias"].fill_(math.nan)
    torch.save(state, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    rewrite_manifest(checkpoint, lambda m: m["files"].update({file.name: digest}))
    for command in (["eval", checkpoint, "-n", 1], ["predict", checkpoint, "[1, 0, 0]"]):
        assert_refused(cli(*command), "model.policy.net.layers.0.bias", "NaN")


@pytest.mark.parametrize("component", ["algorithm", "trainer", "random"])
def test_a_planted_pickle_does_not_run(
    cli: Command, awr_run: Path, tmp_path: Path, component: str
) -> None:
    """Both as a bare pickle and as torch writes it, with correct checksums."""
    import hashlib

    witness = tmp_path / "ran"
    checkpoint, file_name = newest(awr_run), f"{component}.pt"
    for write in (
        lambda path: path.write_bytes(pickle.dumps(Planted(witness))),
        lambda path: torch.save({"modules": Planted(witness)}, path),
    ):
        write(checkpoint / file_name)
        digest = hashlib.sha256((checkpoint / file_name).read_bytes()).hexdigest()
        rewrite_manifest(checkpoint, lambda m, d=digest: m["files"].update({file_name: d}))
        if component == "algorithm":
            for command in (["eval", checkpoint], ["predict", checkpoint, "[1, 0, 0]"]):
                assert_refused(cli(*command), file_name, "could run code")
        resumed = cli("resume", awr_run)
        assert resumed.code == 0
        assert "warning: " in resumed.err
        assert "could run code" in resumed.err
        assert "at 15 of 20" in resumed.err
        assert not witness.exists(), "code in a checkpoint was run"
    pickle.loads(pickle.dumps(Planted(witness)))
    assert witness.exists(), "the pickle was never armed"


RESUME_MISTAKES: list[tuple[list[str], tuple[str, ...]]] = [
    (["seed=3"], ("cannot change", "seed: 0 -> 3")),
    (["algo_kwargs.lr=0.5", "env_id=CartPole-v1"], ("algo_kwargs.lr:", "-> 0.5", "env_id:")),
    (["dataset.rewards.scale=2"], ("dataset.rewards.scale: 1.0 -> 2",)),
    (["early_stopping={target: 1, mode: min}"], ("early_stopping.mode: 'max' -> 'min'",)),
    (["total_updats=40"], ("total_updats: unknown key", "'total_updates'")),
    (["early_stopping.patienc=1"], ("early_stopping.patienc:",)),
    (["progress=1"], ("progress: unknown key",)),
    (["run_dir=1"], ("run_dir: unknown key",)),
    (["callbacks=1"], ("callbacks: unknown key",)),
    (["total_updates=0"], ("total_updates:",)),
    (["total_updates=10"], ("total_updates: 20 updates are done already; give more than 20",)),
]


@each(("overrides", "fragments"), RESUME_MISTAKES)
def test_resume_mistakes(
    cli: Command, bc_run: Path, overrides: list[str], fragments: tuple[str, ...]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in bc_run.rglob("*")}
    assert_refused(cli("resume", bc_run, *overrides), *fragments)
    assert {path: path.stat().st_mtime_ns for path in bc_run.rglob("*")} == before


def test_resume_notices_a_config_edited_by_hand(cli: Command, bc_run: Path) -> None:
    path = bc_run / "config.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("lr: 0.001", "lr: 0.002"), encoding="utf-8")
    assert_refused(cli("resume", bc_run), "algo_kwargs.lr: 0.001 -> 0.002")


@pytest.mark.parametrize("content", ["", "algo: [\n", "1: 2\n", "- a\n"])
def test_resume_of_a_spoilt_config(cli: Command, bc_run: Path, content: str) -> None:
    (bc_run / "config.yaml").write_text(content, encoding="utf-8")
    assert_refused(cli("resume", bc_run), str(bc_run / "config.yaml"))


def test_resume_of_what_is_no_run(cli: Command, bc_run: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, newest(bc_run), bc_run / "config.yaml"):
        assert_refused(cli("resume", path), str(path), "not a run folder")


def test_resume_refuses_checkpoints_of_a_newer_format(cli: Command, bc_run: Path) -> None:
    """Going on from the one before would silently undo what the newer version did."""
    rewrite_manifest(newest(bc_run), lambda m: m.update(format_version=2))
    assert_refused(cli("resume", bc_run), "format 2", "install a newer version")


def test_resume_with_only_damaged_checkpoints_does_not_start_over(
    cli: Command, bc_run: Path
) -> None:
    for checkpoint in (bc_run / "checkpoints").iterdir():
        _flip("algorithm.pt")(checkpoint)
    metrics = (bc_run / "metrics.jsonl").read_bytes()
    outcome = cli("resume", bc_run)
    assert outcome.code == 2
    assert len(outcome.error_lines) == 1
    assert "none of its checkpoints can be used" in outcome.err
    assert outcome.err.count("warning: ") == 4
    assert "starting from the beginning" not in outcome.err
    assert (bc_run / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize("file_name", ["algorithm.pt", "manifest.json"])
def test_no_other_checkpoint_is_recommended_where_there_is_none(
    cli: Command, bc_run: Path, file_name: str
) -> None:
    *others, last = sorted((bc_run / "checkpoints").iterdir())
    _flip(file_name)(last)
    assert "; use an earlier checkpoint" in cli("eval", last, "-n", 1).err
    for other in others:
        shutil.rmtree(other)
    for command in (["resume", bc_run, "total_updates=40"], ["eval", last, "-n", 1]):
        outcome = cli(*command)
        assert outcome.code == 2
        assert f"{last}' is damaged: " in outcome.err
        assert "put back a whole copy of it" in outcome.err
        assert "use an" not in outcome.err
        assert "starting from the beginning" not in outcome.err
    shutil.rmtree(bc_run / "checkpoints")
    outcome = cli("resume", bc_run)
    assert outcome.code == 0
    assert "no usable checkpoint in this run: starting from the beginning" in outcome.err


def test_eval_without_checkpoints(cli: Command, bc_run: Path, tmp_path: Path) -> None:
    assert_refused(cli("eval", bc_run, "--checkpoint", "bset"), "'bset'", "latest, best", "5, 10")
    assert_refused(cli("eval", newest(bc_run), "--checkpoint", "best"), "one checkpoint already")
    shutil.rmtree(bc_run / "checkpoints")
    assert_refused(cli("eval", bc_run), str(bc_run), "no checkpoint yet", "resume")
    (tmp_path / "empty").mkdir()
    assert_refused(cli("eval", tmp_path / "empty"), "not a checkpoint", "manifest.json")


OBSERVATIONS: list[tuple[str, str]] = [
    ("[1, 0]", "(3,) or (n, 3), got (2,)"),
    ("[]", "got (0,)"),
    ("3", "got ()"),
    ("[[[1, 0, 0]]]", "got (1, 1, 3)"),
    ("[1, 0, NaN]", "NaN"),
    ("[1, 0, Infinity]", "infinity"),
    ("[1e39, 0, 0]", "float32"),
    ("[1, 0, null]", "list of numbers"),
    ('["1", "0", "0"]', "list of numbers"),
    ("[" * 100_000, "list of numbers"),
    (f"[1{'0' * 400}, 0, 0]", "beyond float32"),
    ("[1, 0", "JSON"),
    ("hello", "JSON"),
    ('"text"', "JSON"),
    ('{"x": 1}', "JSON"),
    ("[[1, 0, 0], [1]]", "JSON"),
    ('["a", 0, 0]', "JSON"),
]


@each(("text", "fragment"), OBSERVATIONS)
def test_observations_that_are_none(cli: Command, bc_run: Path, text: str, fragment: str) -> None:
    assert_refused(cli("predict", bc_run, text), "predict:", fragment)


def test_predict_files(
    cli: Command, refuses: Callable[..., None], bc_run: Path, tmp_path: Path
) -> None:
    files: dict[str, Any] = {
        "text": np.array([["a", "b", "c"]]),
        "flat": np.zeros(3),
        "narrow": np.zeros((4, 2)),
        "nan": np.full((4, 3), np.nan),
        "good": np.zeros((4, 3)),
    }
    for name, array in files.items():
        np.savez(tmp_path / f"{name}.npz", observations=array)
    np.savez(tmp_path / "other.npz", obs=np.zeros((4, 3)))
    good, base = tmp_path / "good.npz", ["predict", bc_run]
    for name, fragment in (("text", "<U1"), ("flat", "(3,)"), ("narrow", "(4, 2)"), ("nan", "NaN")):
        refuses([*base, "--file", tmp_path / f"{name}.npz"], fragment)
    refuses([*base, "--file", tmp_path / "other.npz"], "no array 'observations'", "obs")
    for kind, missing in (("npz", "none.npz"), ("hdf5", "none.h5"), ("csv", "none.csv")):
        done = cli(*base, "--file", tmp_path / "empty" / missing)
        assert_refused(done, f"--file: {kind} file", missing, "does not exist; correct the path")
        assert "dataset" not in done.err
    refuses([*base, "--file", tmp_path / "goood.npz"], "(did you mean 'good.npz'?)")
    refuses([*base, "--file", good, "--out", good], "exists already")
    refuses([*base, "--file", good, "--out", "/proc/none/a.npz"], "cannot be written")
    refuses([*base, "--file", good, "--out", tmp_path / "actions.txt"], ".npz, .csv or .parquet")
    refuses([*base, "[1, 0, 0]", "--out", tmp_path / "a.npz"], "--out belongs to --file")
    refuses([*base, "[1, 0, 0]", "--file", good], "predict: give one")
    refuses(base, "predict: give one")
    assert not list(tmp_path.glob("a*.npz"))


def test_python_agents_refuse_too(bc_run: Path, tmp_path: Path) -> None:
    agent = load(bc_run)
    for episodes in (0, -1, 1.5, "many"):
        with pytest.raises(ConfigError, match=r"^episodes: "):
            agent.evaluate(episodes)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none/x"):
        with pytest.raises(RLTrainingError, match=str(path)):
            agent.save(path)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "x"
    with pytest.raises(DataError, match="'actions'"):
        BC("Pendulum-v1", dataset=transitions(actions=None), total_updates=5)


# --- runs that go wrong --------------------------------------------------------------------------


def _only_run(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


def _assert_sound(checkpoint: Path) -> None:
    agent = load(checkpoint)
    assert agent.algorithm.nonfinite_weight() is None
    assert np.isfinite(agent.predict(np.zeros(3))[0]).all()


def test_a_loss_that_becomes_nan_stops_the_run(cli: Command, tmp_path: Path) -> None:
    overrides = ["algo_kwargs.policy_lr=1e30", "final_eval=false"]
    outcome = cli("train", "awr/pendulum", *QUICK, *overrides, "--output-dir", tmp_path, "-q")
    assert_refused(outcome, "the policy loss became NaN or infinite at update 2", "learning rate")
    run = _only_run(tmp_path)
    assert not list(run.glob("checkpoints/*"))
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "failed"


def test_huge_rewards_stop_the_run_in_one_sentence(cli: Command, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **transitions(rewards=np.full(ROWS, 1e38, np.float32)))
    overrides = [f"dataset={{kind: npz, path: '{path}'}}", "final_eval=false"]
    folder = tmp_path / "runs"
    outcome = cli("train", "awr/pendulum", *QUICK, *overrides, "--output-dir", folder, "-q")
    assert_refused(outcome, "loss became NaN or infinite at update 1", "scale the rewards")


def test_divergence_keeps_the_last_good_checkpoint(cli: Command, tmp_path: Path) -> None:
    """The warm-up keeps the rate at zero for a while, then it explodes."""
    overrides = [
        "algo_kwargs.policy_lr=1e36",
        "lr_schedule={kind: constant, warmup: 0.5, over: 20}",
        "checkpoint_interval=1",
        "keep_last=3",
        "final_eval=false",
    ]
    outcome = cli("train", "awr/pendulum", *QUICK, *overrides, "--output-dir", tmp_path, "-q")
    run = _only_run(tmp_path)
    assert_refused(outcome, "the policy loss became NaN or infinite at update 3", str(newest(run)))
    for checkpoint in (run / "checkpoints").iterdir():
        for tensor in torch.load(checkpoint / "algorithm.pt")["modules"].values():
            assert torch.isfinite(tensor.double()).all()
    _assert_sound(run / "checkpoints" / f"{1:012d}")
    again = cli("resume", run, "-q")
    assert_refused(again, "became NaN or infinite at update 3")


def test_divergence_is_not_blamed_on_the_environment(cli: Command, tmp_path: Path) -> None:
    overrides = ["algo_kwargs.policy_lr=1e38", "eval_interval=1"]
    outcome = cli("train", "awr/pendulum", *QUICK, *overrides, "--output-dir", tmp_path, "-q")
    assert_refused(outcome, "became NaN or infinite")


def test_the_loss_that_diverged_is_the_one_named(cli: Command, tmp_path: Path) -> None:
    overrides = ["algo_kwargs.value_lr=1e30", "final_eval=false"]
    outcome = cli("train", "awr/pendulum", *QUICK, *overrides, "--output-dir", tmp_path, "-q")
    assert_refused(outcome, "value loss became NaN or infinite")


def test_an_agent_with_nan_weights_is_not_saved(bc_run: Path, tmp_path: Path) -> None:
    agent = load(bc_run)
    with torch.no_grad():
        next(agent.algorithm.parameters()).fill_(torch.nan)
    with pytest.raises(RLTrainingError, match=r"was not written: the weight '.*' is NaN"):
        agent.save(tmp_path / "spoilt")
    assert not (tmp_path / "spoilt").exists()


def test_not_enough_memory_is_said_in_words(cli: Command, tmp_path: Path) -> None:
    overrides = [*QUICK, "algo_kwargs.hidden_sizes=[100000, 100000, 100000, 100000]"]
    outcome = cli("train", "bc/pendulum", *overrides, "--output-dir", tmp_path / RUNS)
    assert_refused(outcome, "not enough memory", "hidden_sizes")
    assert not (tmp_path / RUNS).exists()


# --- learning in an environment ------------------------------------------------------------------

ONLINE = (
    "total_timesteps=200",
    "num_envs=2",
    "eval_episodes=1",
    "tensorboard=false",
    "lr_schedule.kind=constant",
    "algo_kwargs.hidden_sizes=[8]",
)
OFF_POLICY = (
    "algo_kwargs.learning_starts=50",
    "algo_kwargs.batch_size=32",
    "algo_kwargs.train_frequency=1",
)
ONLINE_MISTAKES: list[tuple[str, list[str], tuple[str, ...]]] = [
    ("dqn/cartpole", ["train_env_kwargs=3"], ("train_env_kwargs:", "section")),
    ("dqn/cartpole", ["train_env_kwargs={1: 2}"], ("train_env_kwargs.1",)),
    ("dqn/cartpole", ["train_env_kwarg.a=2"], ("train_env_kwarg:", "'train_env_kwargs'")),
    ("dqn/cartpole", ["train_env_kwargs.gravty=2"], ("train_env_kwargs: ", "gravty")),
    ("dqn/cartpole", ["algo_kwargs.learning_starts=1"], ("learning_starts: 1", "at least 2")),
    ("dqn/cartpole", ["algo_kwargs.learning_starts=200"], ("learning_starts: 200", "200 in total")),
    ("dqn/cartpole", ["algo_kwargs.n_step=26"], ("learning_starts: 50", "at least 52")),
    ("dqn/cartpole", ["algo_kwargs.buffer_capacity=40"], ("learning_starts: of 50", "only 40")),
    ("dqn/cartpole", ["algo_kwargs.batch_size=2000000"], ("batch_size: 2,000,000", "at most")),
    ("dqn/cartpole", ["algo_kwargs.train_frequency=300"], ("train_frequency:", "at most 150")),
    (
        "dqn/cartpole",
        ["algo_kwargs.gradient_updates_per_step=1e-3"],
        ("gradient_updates_per_step: 0.001", "at least 1/150"),
    ),
    ("dqn/cartpole", ["num_envs=201"], ("num_envs: 201", "at most 200")),
    (
        "dqn/cartpole",
        ["early_stopping={patience: 2}", "eval_interval=201"],
        ("early_stopping", "eval_interval 201", "total_timesteps 200"),
    ),
    ("ppo/cartpole", ["algo_kwargs.rollout_length=101"], ("rollout_length: one", "at most 100")),
    ("ppo/cartpole", ["algo_kwargs.batch_size=7"], ("batch_size: 7 does not", "would fit")),
    ("bc/pendulum", ["train_env_kwargs.g=1.0", "total_timesteps=null"], ("train_env_kwargs: BC",)),
]


@each(("config", "overrides", "fragments"), ONLINE_MISTAKES)
def test_mistakes_of_online_runs(
    refuses: Callable[..., None],
    tmp_path: Path,
    config: str,
    overrides: list[str],
    fragments: tuple[str, ...],
) -> None:
    if config == "bc/pendulum":
        common: tuple[str, ...] = QUICK
    else:
        common = (*ONLINE, *OFF_POLICY) if config.startswith("dqn") else ONLINE
    refuses(
        ["train", config, *common, *overrides, "--output-dir", tmp_path / RUNS, "-q"], *fragments
    )


@each("algo", ["dqn", "ppo"])
@each(
    ("mode", "failure"),
    [(mode, what) for mode in ("sync", "async") for what in ("fail_at", "nan_at", "shape_at")],
)
def test_an_environment_that_fails_in_training(
    cli: Command, tmp_path: Path, algo: str, mode: str, failure: str
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    common = (*ONLINE, *OFF_POLICY) if algo == "dqn" else (*ONLINE, "algo_kwargs.batch_size=8")
    overrides = [
        f"env_id={PROBE_ID}",
        "env_kwargs={actions: discrete, truncate_at: 30, scaled: true}",
        f"train_env_kwargs={{{failure}: 29, only_while: '{broken}'}}",
        f"vectorization={mode}",
        *(["algo_kwargs.rollout_length=20"] if algo == "ppo" else []),
    ]
    folder = tmp_path / "runs"
    outcome = cli("train", f"{algo}/cartpole", *common, *overrides, "--output-dir", folder, "-q")
    run = _only_run(folder)
    kept = run / "checkpoints" / f"{28 * 2:012d}"
    assert_refused(outcome, "environment 0 of", "step 29)", f"'{kept}'", f"resume {run}")
    assert kept == newest(run)
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "failed"
    assert f"error: {result['stop_reason'].removeprefix('EnvironmentFailure: ')}" in outcome.err
    broken.unlink()
    assert cli("resume", run, "-q").code == 0
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert (result["status"], result["env_steps"]) == ("finished", 200)


def test_an_environment_that_dies_in_its_trial_is_refused_before_the_run(
    cli: Command, tmp_path: Path
) -> None:
    overrides = [
        f"env_id={PROBE_ID}",
        "env_kwargs={actions: discrete, truncate_at: 30, scaled: true}",
        "train_env_kwargs={die_at: 29}",
        "vectorization=async",
    ]
    folder = tmp_path / "runs"
    outcome = cli(
        "train", "dqn/cartpole", *ONLINE, *OFF_POLICY, *overrides, "--output-dir", folder, "-q"
    )
    assert_refused(outcome, f"environment 0 of '{PROBE_ID}'", "lost its worker process")
    assert not folder.exists()
