"""Starting with another run's policy, and what the command line refuses from offline to online."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import BC, CQL, IQL, PPO, RLPD, SAC, ManagedAlgorithm, RLTrainingError
from rl_training.runtime.build import build_loop

from ..conftest import Command
from ..contract.test_updates import assert_same_state
from .test_offline_to_online import SMALL
from .test_resume import only_run

SIZES = {"hidden_sizes": [8], "device": "cpu"}
DATA: dict[str, Any] = {"dataset": "pendulum-mixed"}
OBS = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)


def saved(agent: ManagedAlgorithm, folder: Path) -> str:
    """Moved away from its first weights, so that nothing is equal by a common seed."""
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in agent.algorithm.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return str(agent.save(folder / "source.ckpt"))


@pytest.mark.parametrize(
    ("cls", "knobs", "squashed"),
    [
        (SAC, {}, True),
        (IQL, {"action_distribution": "tanh_gaussian"}, True),
        (IQL, {"action_distribution": "gaussian"}, False),
        (CQL, {}, True),
    ],
)
def test_the_first_policy_is_the_given_one(
    cls: Any, knobs: dict[str, Any], squashed: bool, tmp_path: Path
) -> None:
    """Mean and deviation, whether or not the latter depends on the state; of a policy that is
    not squashed the mode."""
    data = {} if cls is SAC else DATA
    source = cls("Pendulum-v1", **data, **knobs, **SIZES)
    path = saved(source, tmp_path)
    agent = RLPD("Pendulum-v1", init_from=path, **DATA, **SMALL)
    other = RLPD("Pendulum-v1", **DATA, **SMALL)
    obs = torch.from_numpy(OBS)
    pairs = zip(agent.algorithm.policy(obs), source.algorithm.policy(obs), strict=True)
    for own, given in pairs if squashed else ():
        torch.testing.assert_close(own, given)
    np.testing.assert_allclose(agent.predict(OBS)[0], source.predict(OBS)[0], atol=1e-6)
    assert not np.allclose(agent.predict(OBS)[0], other.predict(OBS)[0])
    assert int(agent.algorithm.update_count) == 0
    critics = agent.algorithm.model.critics.state_dict()
    assert_same_state(dict(critics), dict(other.algorithm.model.critics.state_dict()))


def test_another_rlpd_gives_all_its_networks_and_no_count(tmp_path: Path) -> None:
    source = RLPD("Pendulum-v1", **DATA, **SMALL)
    source.algorithm.update_count += 7
    agent = RLPD("Pendulum-v1", init_from=saved(source, tmp_path), **DATA, **SMALL)
    expected = {**source.algorithm.state_dict(), "update_count": torch.tensor(0)}
    assert_same_state(dict(agent.algorithm.state_dict()), expected)
    fewer = {**SMALL, "num_critics": 2}
    agent = RLPD("Pendulum-v1", init_from=str(tmp_path / "source.ckpt"), **DATA, **fewer)
    np.testing.assert_array_equal(agent.predict(OBS)[0], source.predict(OBS)[0])


def test_it_acts_from_the_first_step(tmp_path: Path) -> None:
    path = saved(SAC("Pendulum-v1", **SIZES), tmp_path)
    agent = RLPD("Pendulum-v1", init_from=path, total_timesteps=30, **DATA, **SMALL)
    loop: Any = build_loop(agent.config, agent.algorithm)
    assert loop.random_steps == 0
    loop.close()


def test_a_resumed_run_needs_the_source_no_more(tmp_path: Path) -> None:
    path = saved(SAC("Pendulum-v1", **SIZES), tmp_path)
    options = {"init_from": path, "checkpoint_interval": 20, **DATA, **SMALL}
    whole = RLPD("Pendulum-v1", output_dir=str(tmp_path / "whole"), **options)
    whole.learn(total_timesteps=60, progress=False)
    part = RLPD("Pendulum-v1", output_dir=str(tmp_path / "part"), **options)
    result = part.learn(total_timesteps=40, progress=False)
    shutil.rmtree(path)
    resumed = RLPD.resume(result.run_dir, total_timesteps=60, progress=False)
    assert_same_state(whole.algorithm.training_state(), resumed.algorithm.training_state())


def test_a_run_without_a_checkpoint_starts_over_from_the_source(tmp_path: Path) -> None:
    path = saved(SAC("Pendulum-v1", **SIZES), tmp_path)
    options = {"init_from": path, "total_timesteps": 40, **DATA, **SMALL}
    agent = RLPD("Pendulum-v1", output_dir=str(tmp_path / "runs"), **options)
    agent.learn(progress=False)
    run_dir = only_run(tmp_path / "runs")
    shutil.rmtree(run_dir / "checkpoints")
    again = RLPD.resume(run_dir, progress=False)
    assert_same_state(agent.algorithm.training_state(), again.algorithm.training_state())
    shutil.rmtree(run_dir / "checkpoints")
    shutil.rmtree(path)
    with pytest.raises(RLTrainingError, match=r"^init_from: "):
        RLPD.resume(run_dir, progress=False)


@pytest.mark.parametrize("cls", [SAC, BC])
def test_other_families_refuse_the_key(cls: Any) -> None:
    with pytest.raises(RLTrainingError, match=rf"^init_from: {cls.__name__} learns"):
        cls("Pendulum-v1", init_from="somewhere")


def refused(path: str, message: str, **options: Any) -> None:
    with pytest.raises(RLTrainingError, match=message) as caught:
        RLPD("Pendulum-v1", init_from=path, **{**DATA, **SMALL, **options})
    assert "\n" not in str(caught.value)


def test_policies_that_do_not_fit(tmp_path: Path) -> None:
    refused(str(tmp_path / "nothing"), "^init_from: ")
    path = saved(SAC("Pendulum-v1", **SIZES), tmp_path)
    fix = r"has hidden layers \[8\], but this run \[9, 8\]; set algo_kwargs.hidden_sizes='\[8\]'"
    refused(path, fix, hidden_sizes=[9, 8])
    shutil.rmtree(path)
    path = saved(PPO("Pendulum-v1", **SIZES), tmp_path)
    refused(path, "^init_from: the PPO policy in '.*' has no Gaussian, which RLPD needs")
    shutil.rmtree(path)
    path = saved(SAC("MountainCarContinuous-v0", **SIZES), tmp_path)
    refused(path, r"^init_from: .* the task has observations \(3,\) .*made for observations \(2,\)")
    shutil.rmtree(path)
    normal = {"kind": "scripted", "name": "pendulum-mixed", "normalize_observations": True}
    path = saved(IQL("Pendulum-v1", dataset=normal, **SIZES), tmp_path)
    refused(path, "because it normalises observations; leave out dataset.normalize_observations")
    shutil.rmtree(path)
    path = saved(SAC("Pendulum-v1", **SIZES), tmp_path)
    refused(path, "because this run normalises observations", dataset=normal)


# --- the command line ------------------------------------------------------------------------

QUICK = (
    "total_timesteps=40",
    "eval_episodes=1",
    "tensorboard=false",
    "device=cpu",
    "algo_kwargs.hidden_sizes=[8]",
    "algo_kwargs.learning_starts=20",
)


def test_fine_tuning_from_the_shell(cli: Command, tmp_path: Path) -> None:
    """An offline run, then the same policy online."""
    data = ("dataset.name=pendulum-mixed", "env_id=Pendulum-v1")
    small = ("total_updates=20", "eval_episodes=1", "algo_kwargs.hidden_sizes=[8]")
    offline = cli("train", "iql/pendulum", *small, "--output-dir", tmp_path / "a", "-q")
    assert offline.code == 0, offline.err
    source = f"init_from={only_run(tmp_path / 'a')}"
    online = ("train", "rlpd/pendulum", *QUICK, *data, source)
    outcome = cli(
        *online, "algo_kwargs.offline_pretrain_updates=15", "--output-dir", tmp_path / "b"
    )
    assert outcome.code == 0, outcome.err
    assert "budget of 55 pretraining updates and env steps spent" in outcome.out
    assert only_run(tmp_path / "b").name.startswith("rlpd-")


@pytest.mark.parametrize(
    ("overrides", "fragment"),
    [
        (("algo_kwargs.offline_batch_ratio=1.5",), "algo_kwargs.offline_batch_ratio: expected"),
        (("algo_kwargs.num_min_critics=6",), "algo_kwargs.num_min_critics: 6 critics cannot be"),
        (("algo_kwargs.batch_size=1",), "algo_kwargs.offline_batch_ratio: a batch_size of 1"),
        (("dataset=null",), "dataset: at algo_kwargs.offline_batch_ratio 0.5 rlpd learns from"),
        (
            ("dataset=null", "algo_kwargs.offline_pretrain_updates=9"),
            "algo_kwargs.offline_pretrain_updates: 9 updates of pretraining need prior data",
        ),
        (("dataset.name=cartpole-mixed",), "is made in CartPole-v1, not in rl_training/Sparse"),
        (("dataset={kind: npz, path: cartpole.npz}",), "cartpole.npz"),
        (("init_from=nowhere",), "init_from: "),
        (("total_updates=5",), "total_updates: RLPD learns from data and in the environment"),
    ],
)
def test_refused_from_the_shell(
    cli: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrides: tuple[str, ...],
    fragment: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    made = cli("data", "make", "cartpole-random", "--out", "cartpole.npz")
    assert made.code == 0
    outcome = cli("train", "rlpd/pendulum", *QUICK, *overrides, "--output-dir", tmp_path / "runs")
    assert outcome.code == 2, outcome
    assert outcome.err.splitlines() == outcome.error_lines
    assert len(outcome.error_lines) == 1
    assert fragment in outcome.err
    assert not (tmp_path / "runs").exists()
