"""What people try first, many of them with the habits of another library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import BC, DQN, IQL, PPO, SAC, Callback, TrainConfig, load
from rl_training.api.seeds import chosen_seeds
from rl_training.experiment.config import load_config
from rl_training.experiment.config_files import packaged_config_names
from rl_training.experiment.errors import ConfigError, DataError
from rl_training.experiment.foreign_names import FOREIGN
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.search.grid import configs_of, plan_of

from .conftest import Command
from .each import each

QUICK: dict[str, Any] = {"tensorboard": False, "final_eval": False, "hidden_sizes": [4]}


class Reach(gym.Env[Any, Any]):
    """A task as users write one, which nobody has registered."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, False, {}


def make_reach() -> Reach:
    return Reach()


# --- names of other libraries --------------------------------------------------------------------


def refused(kind: Any, **options: Any) -> str:
    env = "CartPole-v1" if kind in (DQN, PPO) else "Pendulum-v1"
    with pytest.raises(ConfigError) as error:
        kind(env, **options)
    return str(error.value)


@each(
    ("kind", "option", "answer"),
    [
        (SAC, "learning_rate", "its names here are 'policy_lr', 'critic_lr' and 'temperature_lr'"),
        (PPO, "learning_rate", "its name here is 'lr'"),
        (SAC, "policy_kwargs", "its names here are 'hidden_sizes', 'activation' and 'networks'"),
        (PPO, "n_steps", "its name here is 'rollout_length'"),
        (DQN, "n_steps", "its name here is 'n_step'"),
        (IQL, "n_steps", "total_updates or total_epochs offline"),
        (PPO, "ent_coef", "its name here is 'entropy_coef'"),
        (SAC, "ent_coef", "its name here is 'fixed_temperature'"),
        (SAC, "buffer_size", "its name here is 'buffer_capacity'"),
        (BC, "gamma", "uses no returns"),
        (IQL, "actor_learning_rate", "its name here is 'policy_lr'"),
        (SAC, "n_critics", "the algorithm has two critics"),
        (IQL, "encoder_factory", "its name here is 'networks'"),
        (SAC, "activation_fn", "its name here is 'activation'"),
        (PPO, "callback", r"learn\(callbacks="),
        (IQL, "split", r"it is a key of the data set, as in dataset=\{'path': ..., 'split': ...\}"),
        (SAC, "bufer_capacity", "did you mean 'buffer_capacity'"),
    ],
)
def test_options_of_other_libraries(kind: Any, option: str, answer: str) -> None:
    message = refused(kind, **{option: 1})
    assert re.match(rf"{option}: unknown option for \w+.*{answer}", message), message
    assert "\n" not in message


def test_names_in_the_table_exist() -> None:
    """A hint that names an option which no algorithm has would send people in circles."""
    knobs = {k for name in algorithm_names() for k in algorithm_class(name).Params.model_fields}
    known = knobs | set(TrainConfig.model_fields)
    for word, foreign in FOREIGN.items():
        for group in foreign.groups:
            assert set(group) <= known, word
        assert foreign.groups or foreign.otherwise, word


def test_keys_of_other_libraries_in_a_config(cli: Command) -> None:
    outcome = cli("train", "sac/pendulum", "buffer_size=5", "algo_kwargs.ent_coef=0.1", "n_envs=2")
    assert outcome.code == 2
    assert outcome.error_lines == [
        "error: buffer_size: unknown key; its name here is 'algo_kwargs.buffer_capacity'",
        "error: n_envs: unknown key; its name here is 'num_envs'",
        "error: algo_kwargs.ent_coef: unknown key; its name here is 'fixed_temperature'",
    ]


# --- environments and positional arguments -------------------------------------------------------


class Plain(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does not record its arguments."""


class Sized(Reach):
    """An environment that does not record its argument."""

    def __init__(self, size: int) -> None:
        self.size = size


class Kept(Sized, gym.utils.RecordConstructorArgs):
    """An environment that does."""

    def __init__(self, size: int) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, size=size)
        super().__init__(size)


@each(
    ("given", "line"),
    [
        (Sized(2), "give its class and env_kwargs"),
        (lambda: Reach(), "write it at the top of a module"),
        (Plain(gym.make("Pendulum-v1")), "and the wrapper in wrappers="),
        (3, "its class, a function that makes it, or a TrainConfig, not int"),
    ],
)
def test_what_cannot_be_made_again_is_no_environment(given: Any, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        SAC(given)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def normalized_reach() -> gym.Env[Any, Any]:
    return gym.wrappers.NormalizeObservation(Reach())


def test_wrappers_that_keep_statistics_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="NormalizeObservation, whose statistics are not part"):
        PPO(normalized_reach, hidden_sizes=[4])


def test_classes_functions_and_instances_are_environments(
    tmp_path: Path, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {"hidden_sizes": [4], "output_dir": tmp_path, "tensorboard": False}
    named = [
        SAC(Reach, **small),
        SAC(make_reach, **small),
        SAC(gym.make("Pendulum-v1", max_episode_steps=7), **small),
    ]
    ids = [agent.config.env_id for agent in named]
    assert ids == [f"{__name__}:Reach", f"{__name__}:make_reach", "Pendulum-v1"]
    assert named[2].config.env_kwargs == {"max_episode_steps": 7}
    assert named[2].evaluate(1).lengths == (7,)
    direct = SAC(gym.wrappers.TimeLimit(Reach(), 3), **small)  # without arguments to be recorded
    assert (direct.config.env_id, direct.evaluate(1).lengths) == (ids[0], (3,))
    assert SAC(Kept(2), **small).config.env_kwargs == {"size": 2}
    limited = SAC(Reach, env_kwargs={"max_episode_steps": 5}, learning_starts=4, **small)
    run = limited.learn(total_timesteps=12, eval_episodes=1, progress=False)
    assert load(run.run_dir, trust=True).evaluate(1).lengths == (5,)

    (tmp_path / "my_reach.py").write_text(REACH, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = ("env_id=my_reach:Reach", "env_kwargs.max_episode_steps=5", "total_timesteps=8")
    knobs = ("algo_kwargs.rollout_length=8", "algo_kwargs.batch_size=8", "eval_episodes=1")
    done = cli("train", "ppo", *options, *knobs, "tensorboard=false", "--quiet")
    assert done.code == 0, done.err
    missing = cli("train", "ppo", "env_id=my_reach:Rech", "total_timesteps=8")
    assert (missing.code, len(missing.error_lines)) == (2, 1), missing.err


def test_positional_arguments_of_other_libraries() -> None:
    with pytest.raises(ConfigError, match=r"policy of Stable.*: SAC\('Pendulum-v1'\)$"):
        SAC("MlpPolicy", "Pendulum-v1")
    with pytest.raises(ConfigError, match=r"policy of Stable"):
        PPO("CnnPolicy")
    with pytest.raises(ConfigError, match=r"^BC takes one argument .*'pendulum-mixed'.* dataset="):
        BC("Pendulum-v1", "pendulum-mixed")


# --- callbacks -----------------------------------------------------------------------------------


class Watch(Callback):
    def __init__(self) -> None:
        self.ended = 0

    def on_end(self, event: Any) -> None:
        self.ended += 1


def test_callbacks_one_several_and_wrong(tmp_path: Path) -> None:
    agent = BC("Pendulum-v1", dataset="pendulum-mixed", output_dir=str(tmp_path / "r"), **QUICK)
    for wrong in (lambda event: 0, [lambda event: 0], Watch, [Watch], "stop", 3):
        with pytest.raises(ConfigError, match=r"^callbacks: expected objects of .*callbacks=\[Mi"):
            agent.learn(5, callbacks=wrong, progress=False)  # type: ignore[arg-type]
    assert not (tmp_path / "r").exists()
    watch = Watch()
    agent.learn(5, callbacks=watch, progress=False)
    agent.learn(10, callbacks=[watch, watch], progress=False)
    assert watch.ended == 3
    for wrong, kind in ((3, "the type int;"), ([Callback], "the class Callback in the list;")):
        with pytest.raises(ConfigError, match=rf", got {kind} write class Mine"):
            agent.learn(15, callbacks=wrong, progress=False)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^callbacks: "):
        BC.resume(agent.run_dir or "", callbacks=print)  # type: ignore[arg-type]


# --- values --------------------------------------------------------------------------------------


def test_values_as_python_has_them(tmp_path: Path) -> None:
    config = SAC(
        "Pendulum-v1",
        total_timesteps=1e6,
        seed=np.int64(3),
        batch_size=np.int64(64),
        hidden_sizes=[np.int32(8)],
        output_dir=tmp_path,
        device=torch.device("cpu"),
    ).config
    assert config.total_timesteps == 1_000_000
    assert type(config.total_timesteps) is type(config.seed) is int
    assert config.algo_kwargs["hidden_sizes"] == [8]
    assert (config.output_dir, config.device) == (str(tmp_path), "cpu")
    assert load_config("sac", ["total_timesteps=2e5"]).total_timesteps == 200_000
    assert SAC("Pendulum-v1", threads=np.int64(1)).config.threads == 1
    data = {"kind": "npz", "path": tmp_path / "x.npz"}
    assert TrainConfig(algo="bc", env_id="Pendulum-v1", output_dir=tmp_path, dataset=data).hash()
    for value in (1.5, True, "9", float("inf")):
        assert refused(SAC, total_timesteps=value).startswith("total_timesteps: ")


def test_amounts_as_numpy_has_them(tmp_path: Path) -> None:
    agent = SAC("Pendulum-v1", hidden_sizes=[8])
    assert len(agent.evaluate(np.int64(2)).returns) == 2
    assert len(agent.collect(steps=5e0, seed=np.int32(1))) == 5  # type: ignore[arg-type]
    for wrong in (0, 1.5, "2"):
        with pytest.raises(ConfigError, match=r"^episodes: expected a whole number, at least 1"):
            agent.evaluate(wrong)  # type: ignore[arg-type]
    assert list(chosen_seeds(load_config("bc/pendulum"), np.int64(2))) == [0, 1]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="must be numbers, got complex128"):
        agent.predict(np.ones(3) + 1j)
    agent.save(tmp_path / "x")
    assert load(tmp_path / "x", device=torch.device("cpu")).config.device == "cpu"  # type: ignore[arg-type]


# --- configs by name -----------------------------------------------------------------------------


def test_every_algorithm_has_a_default_config_without_knobs() -> None:
    for name in algorithm_names():
        config = load_config(f"{name}/default")
        assert config.params == algorithm_class(name).Params(), name
        assert load_config(name) == load_config(name.upper()) == config
        assert config.total_timesteps or config.total_updates, name
    assert load_config("QR-DQN") == load_config("qr_dqn/default")


def test_names_of_configs_may_have_capitals(cli: Command) -> None:
    assert load_config("SAC/Pendulum") == load_config("sac/pendulum")
    outcome = cli("train", "SAC/Pendulm")
    assert outcome.error_lines[0].endswith(
        "(did you mean 'sac/pendulum'?); 'rl-training list' shows the packaged ones"
    )
    assert "ppo/default" in packaged_config_names()


def test_a_data_set_by_its_short_form(cli: Command) -> None:
    shown = cli("show", "iql", "env_id=Hopper-v5", "dataset=log.npz")
    assert shown.code == 0
    assert "  kind: npz" in shown.out
    assert "  path: log.npz" in shown.out
    assert cli("show", "iql", f"dataset={'x' * 400}").code == 2  # longer than a file's name
    for command in ("show", "tune", "sweep"):
        refused = cli(command, "iql", "dataset=pendulm-mixed")
        assert (refused.code, len(refused.error_lines)) == (2, 1)
        assert "did you mean 'pendulum-mixed'" in refused.err
    swept = configs_of(plan_of("iql", ["env_id=null", "dataset=a.npz,b.npz"], None))
    assert [c.dataset and (c.dataset.kind, c.dataset.path) for _, c in swept] == [
        ("npz", "a.npz"),
        ("npz", "b.npz"),
    ]


def test_a_file_that_says_what_it_is_needs_no_kind(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "manifest.json").write_text("{}")
    for text, kind, key in (
        ("a.npz", "npz", "path"),
        ("a.HDF5", "hdf5", "path"),
        ("logs/2026-*.pq", "parquet", "path"),
        ("a.csv", "csv", "path"),
        (str(tmp_path / "packed"), "packed", "path"),
        ("cartpole-mixed", "scripted", "name"),
    ):
        file = tmp_path / "mine.yaml"
        file.write_text(f"algo: bc\ntotal_updates: 10\ndataset: {text}\n")
        named = f"{{algo: bc, total_updates: 10, dataset: {{{key}: '{text}'}}}}"
        section = {key: text, "max_episodes": 3}
        found = [
            load_config(file, ["dataset.max_episodes=3"]),
            load_config(
                "bc/pendulum", ["env_id=null", f"dataset={text}", "dataset.max_episodes=3"]
            ),
            TrainConfig(algo="bc", total_updates=10, dataset=cast(Any, section)),
        ]
        file.write_text(named)
        found.append(load_config(file, ["dataset.max_episodes=3"]))
        for data in (config.dataset for config in found):
            assert data is not None
            assert (data.kind, getattr(data, key), data.max_episodes) == (kind, text, 3)
    mixed = cast(Any, {"mix": ["a.npz", {"path": "b.csv", "weight": 2.0}]})
    data = TrainConfig(algo="bc", total_updates=10, dataset=mixed).dataset
    assert data is not None
    assert [(part.kind, part.weight) for part in data.mix or ()] == [("npz", 1.0), ("csv", 2.0)]


# --- from the shell, with a module of one's own --------------------------------------------------

REACH = """
import gymnasium as gym
import numpy as np


class Reach(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


gym.register("Reach-v0", entry_point=Reach, max_episode_steps=20)
"""


def test_a_module_of_the_current_folder(
    tmp_path: Path, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "myreg.py").write_text(REACH, encoding="utf-8")
    config = "algo: ppo\nenv_id: myreg:Reach-v0\ntotal_timesteps: 64\nfinal_eval: false\n"
    config += "tensorboard: false\noutput_dir: named\nalgo_kwargs: {rollout_length: 64}\n"
    (tmp_path / "mine.yaml").write_text(config, encoding="utf-8")

    installed = [Path(sys.executable).parent / "rl-training", "train", "mine.yaml", "--quiet"]
    done = subprocess.run(installed, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "none"))  # the path is as before after the test
    outcome = cli("train", "mine.yaml", "env_id=nowhere:Reach-v0")
    assert outcome.code == 2
    assert "the module 'nowhere' of 'nowhere:Reach-v0' is not found" in outcome.err
    (run,) = (tmp_path / "named").iterdir()
    outcome = cli("eval", run, "-n", "1")
    assert outcome.code == 2
    assert "--trust" in outcome.err
    outcome = cli("eval", run, "-n", "1", "--trust")
    assert (outcome.code, outcome.err) == (0, "")
