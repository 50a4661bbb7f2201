"""What files of a stranger can make this machine do: nothing that they name is imported unasked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml

from rl_training import BC, MBPO, ManagedAlgorithm, load, load_transition_dataset
from rl_training.data.convert import save_dataset
from rl_training.experiment.checkpoint import MANIFEST, manifest_checksum
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.tracking import resume_command
from rl_training.experiment.trust import modules_named, refuse_unknown_modules
from tests.conftest import Command
from tests.contract.small_runs import small_config

SOURCE = """
from pathlib import Path
Path({marker!r}).touch()

def ends(next_obs):
    return next_obs[:, 2] > 100.0
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that the import of the module 'a_strangers' makes."""
    file = tmp_path / "was-imported"
    (tmp_path / "a_strangers.py").write_text(SOURCE.format(marker=str(file)))
    monkeypatch.syspath_prepend(tmp_path)
    yield file
    sys.modules.pop("a_strangers", None)


def rename_environment(run: Path, env_id: str) -> None:
    """Let every file of a run name another environment, with checksums made right again."""
    for path in run.glob(f"checkpoints/*/{MANIFEST}"):
        manifest = json.loads(path.read_text())
        manifest["config"]["env_id"] = env_id
        manifest["checksum"] = manifest_checksum(manifest)
        path.write_text(json.dumps(manifest))
    config = yaml.safe_load((run / "config.yaml").read_text())
    # scripted data belong to one environment id, so the renamed run gets some of its own
    data = run / "data.npz"
    save_dataset(load_transition_dataset("pendulum-expert"), data)
    config |= {"env_id": env_id, "dataset": {"kind": "npz", "path": str(data)}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def test_modules_named_by_a_run_or_checkpoint_need_a_word(
    cli: Command, bc_run: Path, marker: Path, tmp_path: Path
) -> None:
    rename_environment(bc_run, "a_strangers:Pendulum-v1")
    target = tmp_path / "data.npz"
    commands: list[list[Any]] = [
        ["eval", bc_run, "-n", 1],
        ["data", "collect", bc_run, "-n", 1, "--out", target],
        ["resume", bc_run, "total_updates=22"],
    ]
    for command in commands:
        outcome = cli(*command)
        assert outcome.code == 2
        (line,) = outcome.error_lines
        assert all(word in line for word in ("a_strangers", "env_id", "--trust")), line
        assert not marker.exists(), command
    assert cli("predict", bc_run, "[1, 0, 0]").code == 0, "which needs no environment"
    agent = load(bc_run)
    for use in (
        lambda: agent.evaluate(1),
        lambda: agent.collect(1),
        lambda: agent.record_video(tmp_path / "a.gif"),
        lambda: agent.learn(1, progress=False),
        lambda: BC.resume(bc_run, progress=False),
    ):
        with pytest.raises(ConfigError, match=r"module 'a_strangers'.*trust=True"):
            use()
    assert not marker.exists()
    assert not target.exists()
    assert resume_command(bc_run).endswith(" --trust")
    assert cli("eval", bc_run, "-n", 1, "--trust").code == 0
    assert marker.exists()
    # from now on it is imported, which somebody in this process has wanted
    assert load(bc_run).evaluate(1).episodes == 1


def test_terminations_named_by_a_run_need_a_word(marker: Path, tmp_path: Path) -> None:
    knobs = {"termination": "a_strangers:ends"}
    config = small_config("mbpo", output_dir=str(tmp_path / "runs"), algo_kwargs=knobs)
    agent = ManagedAlgorithm(config)  # the user's own word
    run = agent.learn(progress=False).run_dir
    assert marker.exists()
    marker.unlink()
    del sys.modules["a_strangers"]
    with pytest.raises(ConfigError, match=r"algo_kwargs\.termination names .* 'a_strangers'"):
        MBPO.resume(run, progress=False)
    assert not marker.exists()
    assert MBPO.resume(run, progress=False, trust=True).result is not None
    assert marker.exists()


def test_which_modules_are_known() -> None:
    def refused(env_id: str, **more: Any) -> bool:
        try:
            refuse_unknown_modules({"env_id": env_id, **more}, "x")
        except ConfigError:
            return True
        return False

    for env_id in ("Pendulum-v1", "ALE/Pong-v5", "gymnasium.envs.classic_control:CartPole-v1"):
        assert not refused(env_id), env_id
    assert not refused("tests.conftest:X-v0"), "already imported"
    for env_id in ("antigravity:X-v0", "os:X-v0", "nowhere:X-v0", "gymnasiumx:X-v0"):
        assert refused(env_id), env_id
    inner = {"env_id": "nowhere:Old-v0"}  # an environment that makes another one
    assert refused("GymV26Environment-v0", env_kwargs=inner)
    assert refused("Ant-v5", train_env_kwargs={"parts": [inner]})
    named = modules_named({"env_kwargs": {"xml_file": "C:\\ant.xml", "url": "http://x", "n": 3}})
    assert named == []


def test_a_loaded_agent_trains_where_the_caller_is(
    bc_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the folder that the checkpoint names."""
    monkeypatch.chdir(tmp_path)
    stored = json.loads(next(bc_run.glob(f"checkpoints/*/{MANIFEST}")).read_text())
    assert stored["config"]["output_dir"] not in ("runs", str(tmp_path / "runs"))
    run = load(bc_run).learn(2, progress=False, final_eval=False).run_dir
    assert run.resolve().parent == tmp_path / "runs"


def test_converting_a_minari_data_set_imports_nothing_it_names(
    marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    save_dataset(load_transition_dataset("pendulum-expert"), "minari:some/data-v0")
    folder = tmp_path / "minari" / "some" / "data-v0"
    (metadata,) = folder.rglob("metadata.json")
    values = json.loads(metadata.read_text())
    spec = json.loads(values["env_spec"]) | {"id": "a_strangers:Pendulum-v1"}
    values["env_spec"] = json.dumps(spec)
    metadata.write_text(json.dumps(values))
    dataset = load_transition_dataset("minari:some/data-v0")
    assert dataset.env_id == "a_strangers:Pendulum-v1"
    save_dataset(dataset, "minari:some/copy-v0")
    assert not marker.exists()
    again = minari.load_dataset("some/copy-v0")
    assert again.total_steps == len(dataset)
    assert isinstance(again.action_space, gym.spaces.Box)
    assert np.isfinite(again.action_space.high).all()
