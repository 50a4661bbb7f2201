"""Learning from data alone: no environment is made, and none is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

import rl_training
from rl_training import AWR, BC, IQL, MOPO, SAC
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment.errors import ConfigError, DataError
from tests.conftest import Command
from tests.test_bad_input import assert_refused

SMALL: dict[str, Any] = {
    "hidden_sizes": [8],
    "batch_size": 16,
    "engine": "eager",
    "tensorboard": False,
}


def clinic(discrete: bool = True, episodes: int = 12) -> dict[str, NDArray[Any]]:
    """A log of short stays whose treatments matter."""
    rng = np.random.default_rng(0)
    rows = 5 * episodes
    obs = rng.normal(size=(rows, 3)).astype(np.float32)
    treated = rng.integers(0, 4, rows)
    dose = rng.uniform(-0.5, 2.0, (rows, 2)).astype(np.float32)
    last = np.arange(rows) % 5 == 4
    return {
        "observations": obs,
        "actions": treated if discrete else dose,
        "rewards": np.where(last, obs[:, 0], 0.0).astype(np.float32),
        "terminations": last,
        "truncations": np.zeros(rows, bool),
    }


@pytest.fixture
def no_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an environment was made")

    monkeypatch.setattr(gym, "make", refuse)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.npz"
    np.savez(path, **clinic())  # type: ignore[arg-type]
    return path


def parameters(agent: Any) -> list[NDArray[Any]]:
    return [p.detach().numpy().copy() for p in agent.algorithm.parameters()]


@pytest.mark.usefixtures("no_environments")
def test_three_lines_and_everything_after_them(log: Path, tmp_path: Path) -> None:
    agent = BC(dataset=log, output_dir=tmp_path, **SMALL)
    result = agent.learn(total_updates=20, progress=False)
    assert result.run_dir.name.startswith("bc-clinic-s0-")
    assert result.last_eval is None
    assert any("Discrete(4) from 0" in note for note in result.data_notes)
    stored = yaml.safe_load((result.run_dir / "config.yaml").read_text())
    assert stored["env_id"] is None
    spaces = stored["dataset"]["spaces"]
    assert spaces["obs_dim"] == 3
    kind = {"kind": "discrete", "n": 4, "start": 0}
    assert {key: spaces["actions"][key] for key in kind} == kind
    obs = clinic()["observations"]
    actions, _ = agent.predict(obs)
    assert set(actions) <= set(range(4))
    for path in (result.run_dir, agent.save(tmp_path / "kept")):
        again = rl_training.load(path)
        assert (again.predict(obs)[0] == actions).all()
    again.learn(total_updates=5, output_dir=str(tmp_path), progress=False)
    for call in (again.evaluate, lambda: again.collect(1), lambda: again.record_video("x.gif")):
        with pytest.raises(ConfigError, match=r"^env_id: .*no environment"):
            call()
    summary = json.loads((result.run_dir / "result.json").read_text())
    assert summary["status"] == "finished"
    assert summary["last_eval"] is None


@pytest.mark.usefixtures("no_environments")
def test_killed_and_resumed_it_is_the_same_bit_for_bit(log: Path, tmp_path: Path) -> None:
    made: dict[str, Any] = {"output_dir": tmp_path, "dataset": log, "seed": 3, **SMALL}
    whole = AWR(**made)
    whole.learn(total_updates=30, progress=False)
    half = AWR(**made)
    run = half.learn(total_updates=15, progress=False).run_dir
    resumed = AWR.resume(run, total_updates=30, progress=False)
    for one, other in zip(parameters(whole), parameters(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("no_environments")
def test_several_seeds(log: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"output_dir": str(tmp_path), "total_updates": 10, **SMALL}
    config = BC(dataset=log, **options).config
    result = rl_training.learn_seeds(config, 2, progress=False)
    assert sorted(result.results) == [0, 1]
    again = rl_training.resume_seeds(result.run_dir, total_updates=20, progress=False)
    assert [r.updates for r in again.results.values()] == [20, 20]
    obs = clinic()["observations"]
    rl_training.load(result.run_dir / "seed-1").predict(obs)


@pytest.mark.usefixtures("no_environments")
def test_bounds_of_box_actions_are_said_or_refused(tmp_path: Path) -> None:
    arrays = clinic(discrete=False)
    agent = IQL(dataset=arrays, output_dir=tmp_path, **SMALL)
    low, high = arrays["actions"].min(0), arrays["actions"].max(0)
    np.testing.assert_allclose(agent.algorithm.spaces.action_low, low)
    np.testing.assert_allclose(agent.algorithm.spaces.action_high, high)
    notes = agent.learn(total_updates=5, progress=False).data_notes
    assert any("smallest and largest values that occur" in note for note in notes)
    assert rl_training.load(agent.run_dir or "").algorithm.spaces == agent.algorithm.spaces
    given = {"actions": {"kind": "box", "low": -1, "high": [2, 3]}}
    wide = IQL(dataset=arrays, spaces=given, output_dir=tmp_path, **SMALL)
    assert wide.algorithm.spaces.action_low == (-1.0, -1.0)
    assert wide.algorithm.spaces.action_high == (2.0, 3.0)
    assert "as dataset.spaces says" in wide.learn(5, progress=False).data_notes[-1]
    arrays["actions"][:, 1] = 0.5
    with pytest.raises(DataError, match=r"component 1 .*0\.5 throughout.*dataset\.spaces"):
        IQL(dataset=arrays, **SMALL)
    IQL(dataset=arrays, spaces=given, **SMALL)
    for wrong, message in (
        ({"actions": {"kind": "box", "low": 0, "high": 0}}, "below its 'high'"),
        ({"actions": {"kind": "box", "low": [0, 0, 0], "high": 1}}, "3 components .* has 2"),
        ({"actions": {"kind": "discrete"}}, "needs the key 'n'"),
        ({"actions": {"kind": "box", "low": 1, "high": 2}}, "outside"),
        ({**given, "obs_dim": 4}, "is 3 wide but"),
        ({"obs_dm": 4}, "did you mean 'obs_dim'"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            IQL(dataset=arrays, spaces=wrong, **SMALL)


def test_what_needs_an_environment_says_so(log: Path) -> None:
    for make, message in (
        (lambda: SAC(), r"^env_id: SAC learns in the environment"),
        (lambda: BC(), r"^dataset: bc learns from data"),
        (lambda: BC(dataset=log, env_kwargs={"g": 1}), r"^env_kwargs: there is no environment"),
        (lambda: BC(dataset={"kind": "random"}), r"^dataset.kind: random data"),
        (lambda: BC("Pendulum-v1", dataset=log, spaces={}), r"^dataset.spaces: the environment"),
        (
            lambda: MOPO(dataset=clinic(discrete=False), **SMALL).learn(1, progress=False),
            r"^algo_kwargs.termination: without an environment",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            make()


def test_from_the_shell_in_a_process_without_environments(
    cli: Command, log: Path, tmp_path: Path
) -> None:
    command = ["rl-training", "train", "bc", "env_id=null", f"dataset={log}", "total_updates=10"]
    command += ["tensorboard=false", f"output_dir={tmp_path}", "algo_kwargs.hidden_sizes=[8]"]
    script = (
        "import gymnasium, sys\n"
        "def refuse(*a, **k): raise SystemExit('an environment was made')\n"
        "gymnasium.make = refuse\n"
        "from rl_training.cli.main import main\n"
        f"sys.argv = {command!r}\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "action space inferred from the data: Discrete(4) from 0" in " ".join(
        done.stderr.split()
    )
    (run,) = tmp_path.glob("bc-clinic-*")
    assert cli("predict", run, "[0.1, 0.2, 0.3]").code == 0
    assert_refused(cli("eval", run), "env_id", "no environment")


def test_arrays_of_a_data_set_with_known_spaces_keep_them(log: Path) -> None:
    data = load_transition_dataset(log, spaces=None)
    assert BC(dataset=data, **SMALL).algorithm.spaces == data.spaces
