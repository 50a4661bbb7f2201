"""Whole runs on a GPU: trained, resumed, loaded on the CPU. Needs a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import Callback, ManagedAlgorithm, TrainConfig
from rl_training.envs.toys.catch import CATCH_ID
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.replay.replay import Priorities, ReplayBuffer
from rl_training.runtime.build import build_loop
from rl_training.runtime.callbacks import StepEvent

from ..contract.small_runs import small_config
from ..contract.test_updates import assert_same_state
from ..data.test_image_replay import ImageStream
from ..data.test_replay import GAMMA
from .test_resume import final_state, only_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ON_IMAGES = [
    n
    for n in algorithm_names()
    if "image" in algorithm_class(n).observation_kinds
    and "discrete" in algorithm_class(n).action_kinds
]
CASES = [(algo, None) for algo in algorithm_names()] + [(algo, CATCH_ID) for algo in ON_IMAGES]


class StopAt(Callback):
    def __init__(self, tick: int) -> None:
        self.tick = tick

    def on_step(self, event: StepEvent) -> None:
        if event.tick >= self.tick:
            event.request_stop("stopped by the test")


def gpu_config(
    algo: str, env_id: str | None, folder: Path, engine: str = "auto", **keys: Any
) -> TrainConfig:
    changes: dict[str, Any] = {"device": "cuda", "output_dir": str(folder), "log_interval": 7}
    changes["engine"] = engine
    if env_id:
        changes |= {"env_id": env_id, "algo_kwargs": {"hidden_sizes": [8]}}
        if algorithm_class(algo).loop == "offline":
            changes["dataset"] = {"kind": "random", "steps": 60}
        else:
            changes["num_envs"] = 2
    return small_config(algo, checkpoint_interval=0, final_eval=False, **changes, **keys)


@pytest.mark.parametrize(("algo", "env_id"), CASES)
def test_stopped_and_resumed_equals_uninterrupted(
    algo: str, env_id: str | None, tmp_path: Path
) -> None:
    stop_and_resume(algo, env_id, tmp_path, "auto")


@pytest.mark.parametrize("algo", ["iql", "sac", "rlpd"])
def test_compiled_graphs_resume_exactly_too(algo: str, tmp_path: Path) -> None:
    stop_and_resume(algo, None, tmp_path, "compiled_graph")


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_worker_processes_beside_a_device_in_use_change_nothing(algo: str, tmp_path: Path) -> None:
    found = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        agent = ManagedAlgorithm(gpu_config(algo, CATCH_ID, folder, env_workers=workers))
        agent.evaluate(1)  # uses the device before the processes are started
        agent.learn(progress=False)
        found.append(final_state(only_run(folder)))
    assert_same_state(*found)


@pytest.mark.parametrize("engine", ["auto", "compiled_graph"])
def test_updates_beside_steps_resume_exactly(engine: str, tmp_path: Path) -> None:
    stop_and_resume("dqn", CATCH_ID, tmp_path, engine, env_workers=2, overlap_updates=True)


def stop_and_resume(
    algo: str, env_id: str | None, tmp_path: Path, engine: str, **keys: Any
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    agent = ManagedAlgorithm(gpu_config(algo, env_id, whole, engine, **keys))
    agent.learn(progress=False)
    assert np.isfinite(agent.evaluate(1).return_mean)
    first = ManagedAlgorithm(gpu_config(algo, env_id, parts, engine, **keys))
    first.learn(progress=False, callbacks=[StopAt(1)])
    ManagedAlgorithm.resume(only_run(parts), progress=False)
    assert_same_state(final_state(only_run(whole)), final_state(only_run(parts)))
    here, there = (ManagedAlgorithm.load(only_run(whole), device=d) for d in ("cuda", "cpu"))
    spaces = agent.algorithm.spaces
    obs = np.zeros((5, *spaces.obs_shape), spaces.obs_dtype)
    np.testing.assert_allclose(here.predict(obs)[0], there.predict(obs)[0], atol=1e-3)


def test_a_round_of_updates_is_one_graph(tmp_path: Path) -> None:
    """Twenty critic updates, one policy step and the mixed draw: captured, and as eager is."""
    states = {}
    knobs = {"gradient_updates_per_step": 20.0, "offline_pretrain_updates": 3}
    for mode in ("eager", "graph"):
        config = small_config("rlpd", device="cuda", engine=mode, algo_kwargs=knobs)
        agent = ManagedAlgorithm(config.replace(output_dir=str(tmp_path)))
        torch.manual_seed(1)
        loop: Any = build_loop(agent.config, agent.algorithm)
        loop.advance(3 + 30)
        assert loop.engine.mode == loop.pretraining.engine.mode == mode, loop.engine.notes
        assert loop.progress.updates == int(agent.algorithm.update_count) == 3 + 20 * 18
        assert int(agent.algorithm.optimizers["policy"].steps) == 3 + 18
        states[mode] = {k: v.double().cpu() for k, v in agent.algorithm.state_dict().items()}
        loop.close()
    for key, value in states["eager"].items():
        assert torch.allclose(value, states["graph"][key], rtol=2e-2, atol=2e-3), key


@pytest.mark.parametrize("algo", ["awac", "iql", "cql"])
def test_offline_algorithms_are_captured_online_too(algo: str, tmp_path: Path) -> None:
    knobs = {"offline_pretrain_updates": 3}
    config = small_config(algo, loop="offline_to_online", device="cuda", algo_kwargs=knobs)
    agent = ManagedAlgorithm(config.replace(output_dir=str(tmp_path)))
    loop: Any = build_loop(agent.config, agent.algorithm)
    loop.advance(3 + 30)
    assert loop.engine.mode == loop.pretraining.engine.mode == "graph", loop.engine.notes
    assert loop.progress.updates == int(agent.algorithm.update_count) == 3 + 2 * 18
    loop.close()


@pytest.mark.parametrize("prioritised", [False, True])
def test_images_on_the_gpu_are_those_on_the_cpu(prioritised: bool) -> None:
    stream = ImageStream(2, 4, "reset", longest=6)
    buffers = []
    for name in ("cpu", "cuda"):
        device = torch.device(name)
        priorities = Priorities(80, device) if prioritised else None
        buffers.append(
            ReplayBuffer(80, 2, stream.spaces, device, gamma=GAMMA, n_step=3, priorities=priorities)
        )
    for _ in range(300):
        step = stream.vector_step()
        for buffer in buffers:
            buffer.add(*step)
    on_cpu, on_gpu = buffers
    assert len(on_cpu) == len(on_gpu) > 20
    rows = torch.tensor([(on_cpu._first * 2 + i) % on_cpu.capacity for i in range(len(on_cpu))])
    for a, b in zip(on_cpu.gather(rows), on_gpu.gather(rows.cuda()), strict=True):
        assert a is b is None or torch.equal(a, b.cpu())
    assert on_gpu.sample(32).obs.shape == (32, 4, 3, 2)
