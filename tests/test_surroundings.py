"""Other folders, homes, defaults of torch, terminals: none of them changes what a run does."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rl_training import BC, ManagedAlgorithm, load, load_transition_dataset, resume_seeds
from rl_training.api.seeds import learn_seeds
from rl_training.api.support import version_note
from rl_training.data import scripted
from rl_training.data.convert import save_dataset
from rl_training.experiment.checkpoint import CheckpointInfo
from rl_training.experiment.config import load_config
from rl_training.experiment.config_errors import shortened
from rl_training.experiment.errors import ConfigError, RLTrainingError
from rl_training.experiment.tracking import versions
from tests.conftest import Command
from tests.contract.small_runs import small_config

SMALL: dict[str, Any] = {
    "hidden_sizes": [4],
    "total_updates": 4,
    "checkpoint_interval": 2,
    "final_eval": False,
    "tensorboard": False,
    "lr_schedule": {},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "start" / "data.npz"
    file.parent.mkdir()
    save_dataset(load_transition_dataset("pendulum-expert"), file)
    return file


def test_a_run_is_resumed_from_any_folder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    run = BC("Pendulum-v1", dataset="data.npz", **SMALL).learn(progress=False).run_dir.absolute()
    seeds = learn_seeds(load_config("bc/pendulum"), 2, dataset="data.npz", progress=False, **SMALL)
    several = seeds.run_dir.absolute()
    assert yaml.safe_load((run / "config.yaml").read_text())["dataset"]["path"] == str(data)
    monkeypatch.chdir(tmp_path)
    for updates in (6, 8):
        agent = BC.resume(run, progress=False, total_updates=updates)
        assert agent.result is not None
        assert agent.result.updates == updates
        if updates == 6:  # as runs of earlier versions have it
            config = yaml.safe_load((run / "config.yaml").read_text())
            config["dataset"]["path"] = "data.npz"
            (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert resume_seeds(several, progress=False, total_updates=6).results[1].updates == 6
    data.rename(tmp_path / "moved.npz")
    with pytest.raises(RLTrainingError, match=r"data\.npz' does not exist.*dataset\.path=FILE"):
        BC.resume(run, progress=False, total_updates=9)
    section = {"kind": "npz", "path": str(tmp_path / "moved.npz")}
    assert BC.resume(run, progress=False, total_updates=9, dataset=section).result is not None


def test_a_run_with_its_data_can_be_moved(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = load_transition_dataset(data)
    run = BC("Pendulum-v1", dataset=dataset, **SMALL).learn(progress=False).run_dir
    several = learn_seeds("bc/pendulum", 2, dataset=dataset, progress=False, **SMALL).run_dir
    for folder in (run, several):
        shutil.move(folder, tmp_path / "elsewhere" / folder.name)
    moved = tmp_path / "elsewhere"
    assert BC.resume(moved / run.name, progress=False, total_updates=6).result is not None
    part = moved / several.name / "seed-1"
    assert BC.resume(part, progress=False, total_updates=6).result is not None


@pytest.mark.parametrize("algo", ["awr", "dqn", "ppo"])
def test_what_the_caller_has_set_in_torch_changes_nothing(algo: str, tmp_path: Path) -> None:
    """The default dtype and whether gradients are taken; both are afterwards as they were."""

    def weights(folder: str) -> dict[str, torch.Tensor]:
        config = small_config(algo, output_dir=str(tmp_path / folder))
        agent = ManagedAlgorithm(config)
        agent.learn(progress=False)
        agent.evaluate(1)
        obs = torch.zeros(agent.algorithm.spaces.obs_shape).to(torch.float32).numpy()
        agent.predict(obs)
        return agent.algorithm.state_dict()

    expected = weights("usual")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            found = weights("float64")
            assert torch.get_default_dtype() == torch.float64
            assert not torch.is_grad_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        again = weights("inference")
        assert torch.is_inference_mode_enabled()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
        assert torch.equal(again[name], value), name


def test_a_user_without_a_home(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """No HOME, and a number that no account has: data are made without a cache."""

    def no_account(number: int) -> Any:
        raise KeyError(number)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("RL_TRAINING_CACHE")
    monkeypatch.setattr("pwd.getpwuid", no_account)
    assert scripted.cache_folder() is None
    short = scripted.Recipe("Pendulum-v1", (scripted.Segment("random", 0, 1),))
    monkeypatch.setitem(scripted.SCRIPTED, "short", short)
    assert len(scripted.scripted_arrays("short", 0)["rewards"]) == 200
    assert "set RL_TRAINING_CACHE" in cli("doctor").out


# --- files of strangers on the terminal -----------------------------------------------------------

ESCAPE = "\x1b]0;owned\x07\x1b[31m"


def test_nothing_reaches_the_terminal_that_is_not_printable(cli: Command, tmp_path: Path) -> None:
    for name, result in (
        (f"run{ESCAPE}", {"status": f"finished{ESCAPE}", "updates": 3, "last_eval": None}),
        ("deep", "[" * 100_000),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("")
        text = result if isinstance(result, str) else json.dumps(result)
        (tmp_path / name / "result.json").write_text(text)
    outcome = cli("list", "--runs", tmp_path)
    assert outcome.code == 0
    assert "deep  dead" in outcome.out
    assert "\\x1b[31m" in outcome.out
    refused = cli("eval", tmp_path / f"run{ESCAPE}")
    assert refused.code == 2
    assert "\x1b" not in outcome.out + outcome.err + refused.out + refused.err


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(levels)]
    return "\n".join(lines) + f"\nalgo: bc\nenv_id: *a{levels}\n"


def test_configs_that_are_not_what_they_seem(cli: Command, tmp_path: Path) -> None:
    cases = {
        "a small file of many values": (bomb(9), "more than 100,000 values"),
        "a value that holds itself": ("algo: bc\nenv_kwargs: &a [*a]\n", "holds itself"),
        "bytes": ("algo: bc\nenv_id: X\nenv_kwargs: {a: !!binary /w==}\n", "kind 'binary'"),
        "a set": ("algo: bc\nenv_id: X\nenv_kwargs: {a: !!set {b}}\n", "kind 'set'"),
    }
    for name, (text, reason) in cases.items():
        file = tmp_path / "config.yaml"
        file.write_text(text)
        began = time.process_time()
        outcome = cli("train", file)
        assert outcome.code == 2, name
        (line,) = outcome.err.strip().splitlines()
        assert reason in line, (name, line)
        assert time.process_time() - began < 20.0
    anchored = "algo: bc\nenv_id: Pendulum-v1\nenv_kwargs: &k {g: 9.0}\ntrain_env_kwargs: {}\n"
    (tmp_path / "good.yaml").write_text(anchored)
    assert load_config(tmp_path / "good.yaml").env_kwargs == {"g": 9.0}
    nested: list[Any] = ["x"]
    for _ in range(40):
        nested = [nested] * 10
    assert len(shortened(nested)) <= 100


# --- versions -------------------------------------------------------------------------------------


def test_other_versions_are_said(cli: Command, bc_run: Path, tmp_path: Path) -> None:
    from tests.test_bad_input import newest, rewrite_manifest

    rewrite_manifest(newest(bc_run), lambda m: m["versions"].update(torch="99.0"))
    outcome = cli("resume", bc_run, "total_updates=22")
    assert outcome.code == 0
    said = [line for line in outcome.err.splitlines() if "bit for bit" in line]
    assert len(said) == 1
    assert "torch 99.0, now" in said[0]
    for stored in ({}, {"versions": "x"}, {"versions": versions()}):
        assert version_note(CheckpointInfo(tmp_path, dict(stored))) is None

    rewrite_manifest(newest(bc_run), lambda m: m["config"].update(unheard_of=1))
    rewrite_manifest(newest(bc_run), lambda m: m["versions"].update({"rl-training": "7.0.0"}))
    for command in (["predict", bc_run, "[1, 0, 0]"], ["resume", bc_run, "total_updates=24"]):
        outcome = cli(*command)
        assert outcome.code == 2
        (line,) = outcome.error_lines
        for word in (str(newest(bc_run)), "rl-training 7.0.0", "unheard_of"):
            assert word in line, line


def test_a_key_called_self_is_a_key_like_others(bc_run: Path) -> None:
    from tests.test_bad_input import newest, rewrite_manifest

    rewrite_manifest(newest(bc_run), lambda m: m["config"].update({"self": 1}))
    with pytest.raises(RLTrainingError, match="self: unknown key"):
        load(bc_run)
    with pytest.raises(ConfigError, match="self: unknown key"):
        load_config("bc/pendulum", ["self=1"])
