"""Worlds of MuJoCo Warp beside Gymnasium's environments.

Warp compiles its kernels for the CPU at the first use, which takes minutes: the comparison runs
where RL_TRAINING_WARP_TESTS names models, as in RL_TRAINING_WARP_TESTS=Hopper,Ant.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import pytest
import torch

from rl_training import TrainConfig
from rl_training.envs.device import warp
from rl_training.envs.device.compared import differences
from rl_training.envs.device.register import LOCOMOTION, device_task
from rl_training.envs.make import env_spaces
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError, MissingExtraError
from rl_training.runtime.build import build_algorithm, build_loop, task_spaces

MODELS = [name for name in os.environ.get("RL_TRAINING_WARP_TESTS", "").split(",") if name]
needs_warp = pytest.mark.skipif(
    importlib.util.find_spec("mujoco_warp") is None, reason="needs the extra warp"
)


@needs_warp
@pytest.mark.skipif(not MODELS, reason="RL_TRAINING_WARP_TESTS names no model")
def test_steps_are_those_of_mujoco_on_the_cpu() -> None:
    for model in MODELS:
        in_space = model in ("Ant", "Humanoid")  # see locomotion.py
        found = differences(f"warp/{model}-v5", 4, 10, CPU, elliptic_cones=in_space)
        for step, (obs, reward) in enumerate(found):
            # forces of contacts, which those two see, are the most sensitive numbers; the contacts
            # of HalfCheetah amplify rounding
            loose = in_space or (model == "HalfCheetah" and step > 6)
            assert obs < (1e-3 if loose else 1e-4), (model, step)
            assert reward < 1e-3, (model, step)  # a change of place, divided by the time step


CPU = torch.device("cpu")


@pytest.mark.gpu
@needs_warp
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_steps_agree_with_eager_ones_and_with_the_cpu() -> None:
    """One that waits for nothing, with resets and, for Ant, work of Warp at every reset."""
    for model in ("Hopper", "Ant"):
        found = []
        for engine in ("eager", "graph"):
            torch.manual_seed(0)
            knobs = {"rollout_length": 20, "batch_size": 160, "hidden_sizes": [8]}
            config = TrainConfig(
                algo="ppo",
                env_id=f"warp/{model}-v5",
                num_envs=64,
                total_timesteps=100_000,
                device="cuda",
                engine=engine,
                algo_kwargs=knobs,
            )
            loop: Any = build_loop(config, build_algorithm(config, task_spaces(config)))
            torch.cuda.manual_seed(0)
            gathering = loop.gathering
            assert gathering.experience.steps(12) == 12
            assert gathering.experience.engine.mode == engine
            assert not loop.link.notes
            found.append([x.cpu() for x in gathering.worlds.tensors().values()])
            gathering.experience.steps(100)  # resets
            assert gathering.worlds.totals()[0].episodes > 0
            loop.close()
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    differing = differences("warp/Hopper-v5", 16, 10, torch.device("cuda"))
    assert max(obs for obs, _ in differing) < 1e-4


def test_the_ids_are_evaluated_in_gymnasium() -> None:
    for name in LOCOMOTION:
        task = device_task(f"warp/{name}")
        assert task is not None
        assert task.evaluated_in == name
        assert not task.runs_on_cpu
    assert env_spaces("warp/Hopper-v5") == env_spaces("Hopper-v5")


def test_what_cannot_be_simulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(algo="ppo", env_id="warp/Hopper-v5", total_timesteps=10_000)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"simulated on a GPU.*none; use env_id=Hopper-v5"):
            build_loop(config, build_algorithm(config, task_spaces(config)))
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    with pytest.raises(MissingExtraError, match=r"'warp/Hopper-v5'.*warp"):
        warp.WarpWorlds("warp/Hopper-v5", None, 2, CPU, contacts=4, deterministic=True)


@needs_warp
def test_a_model_that_warp_cannot_simulate_is_refused() -> None:
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string("<mujoco><option solver='PGS'/></mujoco>")
    with pytest.raises(
        EnvironmentSetupError, match=r"cannot simulate the model of 'mine/X-v0'.*PGS.*; use"
    ):
        warp.WarpWorlds("mine/X-v0", model, 2, CPU, contacts=4, deterministic=True)
