"""What policies are compared on, what they are reported on, and what environments may not do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rl_training
from rl_training import DQN, Callback, ManagedAlgorithm, learn_seeds, load
from rl_training.experiment.checkpoint import read_checkpoint, write_checkpoint
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.errors import (
    ConfigError,
    DataError,
    EnvironmentSetupError,
    RLTrainingError,
)
from rl_training.runtime.callbacks import EvalEvent
from rl_training.runtime.evaluation import HELD_OUT_STATES, SELECTION_STATES, start_seed
from tests.conftest import Command

KNOBS: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 8}
QUICK: dict[str, Any] = {"device": "cpu", "tensorboard": False, "eval_episodes": 3}
SEEN: list[int] = []


class Task(gym.Env[Any, Any]):
    """Returns a number that the start state decides, and notes its seeds.

    Its spaces are class attributes, so that the environment can change between two uses.
    """

    bound, width, actions, endless = 1.0, 2, 0, False

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-9.0, 9.0, (self.width,), np.float32)
        box = gym.spaces.Box(-self.bound, self.bound, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(self.actions) if self.actions else box

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        SEEN.append(int(seed or 0))
        self.steps, self.worth = 0, float(self.np_random.normal())
        return np.full(self.width, self.worth, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs = np.full(self.width, self.worth, np.float32)
        return obs, self.worth, self.steps == 4 and not self.endless, False, {}


@pytest.fixture(autouse=True)
def _task() -> Iterator[None]:
    gym.register(id="test/Task-v0", entry_point=Task)
    SEEN.clear()
    yield
    del gym.registry["test/Task-v0"]
    Task.bound, Task.width, Task.actions, Task.endless = 1.0, 2, 0, False


def agent(folder: Path, algo: str = "sac", **options: Any) -> ManagedAlgorithm:
    values = {"total_timesteps": 60, "eval_interval": 20, "learning_starts": 10, **QUICK, **KNOBS}
    return ManagedAlgorithm(
        "test/Task-v0", algo=algo, output_dir=str(folder), **{**values, **options}
    )


def seeds(which: int, episodes: int = 3) -> set[int]:
    return {start_seed(which, i) for i in range(episodes)}


def test_policies_are_chosen_on_one_set_of_states_and_reported_on_another(tmp_path: Path) -> None:
    chosen, reported = seeds(SELECTION_STATES), seeds(HELD_OUT_STATES)
    assert not chosen & reported

    class Watch(Callback):
        used: set[int] = set()

        def on_eval(self, event: EvalEvent) -> None:
            self.used |= set(SEEN)

    curves = []
    for seed in (0, 1):  # the same states, whatever the seed of the run
        watch = Watch()
        SEEN.clear()
        trained = agent(tmp_path, seed=seed)
        result = trained.learn(progress=False, callbacks=[watch])
        assert chosen <= watch.used
        assert not reported & watch.used, "nothing was chosen on them"
        assert result.held_out is not None
        assert result.last_eval is not None
        curves.append((result.last_eval.returns, result.held_out.returns))
        SEEN.clear()
        evaluated = trained.evaluate()
        assert set(SEEN) == reported
        assert evaluated == result.held_out
        assert trained.evaluate(seed=7) != evaluated
        written = json.loads((result.run_dir / "result.json").read_text())
        assert written["held_out"]["last"] == result.held_out.metrics()
        best = load(result.run_dir, checkpoint="best").evaluate()
        assert best == result.best_held_out
        assert written["held_out"]["best"] == best.metrics()
    assert curves[0] == curves[1]
    quiet = agent(tmp_path, final_eval=False, eval_interval=0).learn(progress=False)
    assert quiet.held_out is quiet.best_held_out is None


def test_seeds_at_once_are_reported_as_alone(tmp_path: Path) -> None:
    options = {"total_updates": 40, "eval_interval": 20, "output_dir": str(tmp_path), **QUICK}
    options["eval_episodes"] = 1
    many = learn_seeds("bc/pendulum", seeds=2, progress=False, **options)
    for seed, result in list(many.results.items())[1:]:
        alone = ManagedAlgorithm.from_config("bc/pendulum", seed=seed, **options)
        expected = alone.learn(progress=False)
        for found, wanted in (
            (result.last_eval, expected.last_eval),
            (result.held_out, expected.held_out),
            (result.best_held_out, expected.best_held_out),
        ):
            assert found is not None
            assert wanted is not None
            np.testing.assert_allclose(found.returns, wanted.returns, rtol=1e-3)
    written = json.loads((many.run_dir / "result.json").read_text())
    assert many.held_out is not None
    assert written["held_out"]["scores"] == list(many.held_out.to_dict()["scores"])
    assert written["best_held_out"]["mean"]


def test_a_run_of_an_earlier_version_keeps_its_start_states(tmp_path: Path) -> None:
    """Its trainer says nothing about them; they depended on the seed of the run."""
    trained = agent(tmp_path, seed=5, total_timesteps=40)
    run_dir = trained.learn(progress=False).run_dir
    store = CheckpointStore(run_dir / "checkpoints", 1, True)
    for info in store.all():
        header, parts = read_checkpoint(info.path)
        del parts["trainer"]["start_states"]
        write_checkpoint(info.path, parts, dict(header.manifest))
    SEEN.clear()
    for budget in (60, 80):  # and the checkpoints it writes now remember
        ManagedAlgorithm.resume(run_dir, progress=False, total_timesteps=budget)
        assert seeds(5) <= set(SEEN)
        assert not seeds(SELECTION_STATES) & set(SEEN)


@pytest.mark.parametrize(
    ("key", "new", "words"),
    [
        ("bound", 2.0, "actions from -2 to 2, but the policy was made for"),
        ("width", 3, "has observations (3,) float32"),
        ("actions", 4, "has observations (2,) float32 and 4 Discrete actions from 0, but"),
    ],
)
def test_an_environment_that_has_changed_its_spaces_is_refused(
    key: str, new: Any, words: str, tmp_path: Path
) -> None:
    Task.actions = 3 if key == "actions" else 0
    made_for = "3 Discrete actions from 0" if Task.actions else "Box(1,) actions from -1 to 1"
    algo = "dqn" if Task.actions else "sac"
    run_dir = agent(tmp_path / "runs", algo).learn(progress=False).run_dir
    trained = load(run_dir)
    setattr(Task, key, new)
    uses: dict[str, Any] = {
        "evaluate": lambda: trained.evaluate(1),
        "collect": lambda: trained.collect(1),
        "learn": lambda: trained.learn(progress=False),
        "resume": lambda: ManagedAlgorithm.resume(run_dir, progress=False, total_timesteps=80),
    }
    if algo == "sac":
        init = {"init_from": str(run_dir), "total_timesteps": 60}
        uses["init_from"] = lambda: agent(tmp_path / "new", "rlpd", **init)
    for name, use in uses.items():
        with pytest.raises(EnvironmentSetupError) as caught:
            use()
        sentence = str(caught.value)
        assert words in sentence, (name, sentence)
        assert f"made for observations (2,) float32 and {made_for};" in sentence
        assert sentence.startswith("init_from: " if name == "init_from" else "env_id: ")
    assert not (tmp_path / "new").exists()
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_an_episode_that_never_ends_is_cut_and_noted(
    tmp_path: Path, cli: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    Task.endless = True
    trained = agent(tmp_path, eval_max_steps=50, total_timesteps=20)
    result = trained.learn()
    said = " ".join(capsys.readouterr().err.split())
    assert "3 of 3 evaluation episodes had not ended after 50 steps and were cut" in said
    assert result.last_eval is not None
    assert result.last_eval.lengths == (50, 50, 50)
    assert "3 of them cut at 50 steps" in str(result.last_eval)
    data = trained.collect(episodes=2)
    assert len(data) == 100
    assert data.known_arrays()["truncations"].sum() == 2
    shown = cli("eval", result.run_dir, "-n", 2)
    assert shown.code == 0
    assert "(--set max_episode_steps=N), or set --max-steps" in " ".join(shown.out.split())
    assert "(env_kwargs.max_episode_steps), or set eval_max_steps" in said
    note = trained.evaluate(1).note()
    assert note is not None
    assert note.endswith("(env_kwargs.max_episode_steps), or set max_steps")


def test_the_most_steps_of_an_evaluation_can_be_given(tmp_path: Path, cli: Command) -> None:
    Task.endless = True
    run_dir = agent(tmp_path / "runs", eval_max_steps=50, total_timesteps=20).learn().run_dir
    trained = load(run_dir)
    assert trained.evaluate(2, max_steps=7).lengths == (7, 7)
    assert trained.evaluate(1).lengths == (50,)
    longer = cli("eval", run_dir, "-n", 2, "--max-steps", 80, "--json")
    assert json.loads(longer.out)["eval/length_mean"] == 80
    for wrong in (0, 1.5, True, "many"):
        with pytest.raises(ConfigError, match=r"^max_steps: expected a whole number, at least 1"):
            trained.evaluate(1, max_steps=wrong)  # type: ignore[arg-type]
    refused = cli("eval", run_dir, "--max-steps", 0)
    assert refused.code == 2
    assert "--max-steps" in refused.err


def test_evaluating_repeats_whatever_was_drawn_before(tmp_path: Path) -> None:
    class Global(Task):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, reward + np.random.random() + float(torch.rand(())), *rest

    gym.register(id="test/Global-v0", entry_point=Global)
    try:
        drawing = ManagedAlgorithm("test/Global-v0", algo="sac", **QUICK, **KNOBS)
        first = drawing.evaluate(2)
        np.random.seed(5)
        following = np.random.random(3).tolist()
        np.random.seed(5)
        assert drawing.evaluate(2) == first
        assert drawing.collect(1).rewards.tolist() == drawing.collect(1).rewards.tolist()
        assert np.random.random(3).tolist() == following
    finally:
        del gym.registry["test/Global-v0"]


def test_what_is_refused_leaves_no_environment_open(tmp_path: Path) -> None:
    opened = []

    class Counted(Task):
        def __init__(self) -> None:
            super().__init__()
            opened.append(self)

        def close(self) -> None:
            opened.remove(self)
            raise RuntimeError("cannot be closed")

    gym.register(id="test/Counted-v0", entry_point=Counted)
    try:
        dqn = DQN("CartPole-v1", **QUICK, **KNOBS)
        dqn.config = dqn.config.replace(env_id="test/Counted-v0")
        for use in (dqn.evaluate, lambda: dqn.collect(1), lambda: dqn.learn(10)):
            with pytest.raises(RLTrainingError):
                use()
        assert not opened
        sac = ManagedAlgorithm("test/Counted-v0", algo="sac", **QUICK, **KNOBS)
        sac.evaluate(2)
        sac.collect(1)
        assert not opened
    finally:
        del gym.registry["test/Counted-v0"]


def test_predict_refuses_what_is_no_observation() -> None:
    """As the command line does: a policy answers NaN with some number or other."""
    cloned = ManagedAlgorithm("Pendulum-v1", algo="sac", **QUICK, **KNOBS)
    good = np.zeros(3, np.float32)
    cloned.predict(good)
    cloned.predict(np.stack([good] * 4))
    for bad in ([0.0, math.nan, 0.0], [[0.0] * 3, [0.0, math.inf, 0.0]], [1e300, 0.0, 0.0]):
        with pytest.raises(DataError, match="holds NaN, infinity or a number beyond float32"):
            cloned.predict(np.array(bad))
    with pytest.raises(DataError, match="observations must be numbers, got <U1"):
        cloned.predict(np.array(["a", "b", "c"]))


def test_a_task_that_ends_learns_without_a_discount(tmp_path: Path) -> None:
    Task.actions = 3
    for algo in ("dqn", "ppo"):
        knobs = {"rollout_length": 40, "learning_starts": 10}
        known = {k: v for k, v in knobs.items() if (k == "rollout_length") == (algo == "ppo")}
        result = ManagedAlgorithm(
            "test/Task-v0",
            algo=algo,
            total_timesteps=200,
            output_dir=str(tmp_path),
            gamma=1.0,
            **QUICK,
            **KNOBS,
            **known,
        ).learn(progress=False)
        assert result.held_out is not None


def test_a_policy_is_evaluated_in_another_environment_of_the_same_spaces(
    cli: Command, tmp_path: Path
) -> None:
    """By other arguments, or another id, to which the run's arguments do not belong."""
    agent = rl_training.SAC("Pendulum-v1", env_kwargs={"g": 3.0}, **KNOBS, device="cpu")
    own = agent.evaluate(1).return_mean
    lighter = agent.evaluate(1, env_kwargs={"g": 0.5}).return_mean
    plain = agent.evaluate(1, env_id="Pendulum-v1").return_mean
    sparse = agent.evaluate(1, env_id="rl_training/SparsePendulum-v0").return_mean
    assert len({own, lighter, plain}) == 3
    assert sparse >= 0.0
    with pytest.raises(EnvironmentSetupError, match=r"^env_id: environment 'CartPole-v1' has"):
        agent.evaluate(1, env_id="CartPole-v1")
    with pytest.raises(RLTrainingError, match="env_kwargs: environment 'Pendulum-v1' does not acc"):
        agent.evaluate(1, env_kwargs={"gravity": 1.0})
    with pytest.raises(RLTrainingError, match="env_kwargs: expected keyword arguments by name"):
        agent.evaluate(1, env_kwargs=[("g", 1.0)])  # type: ignore[arg-type]
    path = agent.save(tmp_path / "policy.ckpt")
    for options, expected in (
        ((), own),
        (("--set", "g=0.5"), lighter),
        (("--env", "Pendulum-v1"), plain),
        (("--env", "Pendulum-v1", "--set", "g=0.5"), lighter),
    ):
        outcome = cli("eval", path, "-n", "1", "--json", *options)
        assert outcome.code == 0, outcome.err
        assert json.loads(outcome.out)["eval/return_mean"] == expected
    outcome = cli("eval", path, "-n", "1", "--env", "CartPole-v1")
    assert outcome.code == 2
    assert len(outcome.error_lines) == 1
