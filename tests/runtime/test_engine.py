"""How updates are executed changes the speed, not the result."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import algorithm_class
from rl_training.runtime.agents import SingleLearner, VmapLearner
from rl_training.runtime.build import flushes_denormals, run_scope
from rl_training.runtime.compiling import separate
from rl_training.runtime.engine import (
    COMPILE_FROM_UPDATES,
    COMPILE_PIECES_FROM_UPDATES,
    RECORD_FROM_UPDATES,
    Engine,
    choose_mode,
)
from rl_training.runtime.recording import Recorded

from ..contract.small_runs import small_config, small_learner

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)


@needs_compiler
@pytest.mark.parametrize(
    ("algo", "slices", "knobs"),
    [
        ("iql", 1, {}),
        ("rlpd", 3, {}),
        ("bc", 1, {"networks": "tests.contract.own_networks:all_of_them"}),
    ],
)
def test_compiled_and_eager_agree(algo: str, slices: int, knobs: dict[str, Any]) -> None:
    """One graph, or one per piece that a step repeats, sampling outside it; the same batches
    give the same weights."""
    states = {}
    for mode in ("eager", "compile"):
        algorithm, table = small_learner(
            small_config(algo, algo_kwargs={"grad_clip": 1.0, **knobs})
        )
        torch.manual_seed(0)
        rows = slices * algorithm.params.batch_size
        draw = lambda _, table=table, rows=rows: table.sample(rows)  # noqa: E731
        runner = Engine(SingleLearner(algorithm, draw), mode, 30)
        metrics = runner.run(30)
        states[mode] = algorithm.state_dict()
        assert int(algorithm.update_count) == 30 * slices
        assert set(algorithm.losses) <= set(metrics)
    for name, value in states["eager"].items():
        assert torch.allclose(
            value.double(), states["compile"][name].double(), rtol=1e-3, atol=1e-5
        ), name


def test_the_batched_update_of_a_long_run_is_recorded_and_gives_the_same_bits() -> None:
    """Also after another learning rate, and with a policy that waits for its critics."""
    for algo in ("awr", "td3_bc"):
        states = []
        for total in (RECORD_FROM_UPDATES - 1, RECORD_FROM_UPDATES):
            config = small_config(algo, algo_kwargs={"grad_clip": 1.0})
            _, table = small_learner(config)
            agents = [small_learner(config.replace(seed=seed))[0] for seed in (4, 7)]
            draw = lambda agent, table=table: table.sample(32, agent.random)  # noqa: E731
            learner = VmapLearner(agents, draw, (4, 7))
            runner = Engine(learner, "auto", total)
            assert isinstance(learner._whole, Recorded) == (total == RECORD_FROM_UPDATES)
            runner.run(5)
            if isinstance(learner._whole, Recorded):  # nothing of it is left to Python
                assert {run.__name__ for run in learner._whole._ready.values()} == {"run"}
            for agent in agents:
                agent.set_lr_factor(0.1)
            metrics = runner.run(4)
            values = [value for agent in agents for value in agent.state_dict().values()]
            states.append([*values, *metrics.values()])
        for one, other in zip(*states, strict=True):
            assert torch.equal(one, other)


def test_the_choice_and_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g++").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_mode("eager", CPU, 10**9) == ("eager", "asked for")
    assert choose_mode("compile", CPU, 1) == ("compile", "asked for")
    assert choose_mode("auto", CPU, COMPILE_FROM_UPDATES)[0] == "compile"
    mode, reason = choose_mode("auto", CPU, COMPILE_FROM_UPDATES - 1)
    assert mode == "eager"
    assert "50,000" in reason
    assert choose_mode("auto", CUDA, COMPILE_FROM_UPDATES - 1)[0] == "graph"
    assert choose_mode("auto", CUDA, COMPILE_FROM_UPDATES)[0] == "compiled_graph"
    for device, expected in ((CPU, "eager"), (CUDA, "graph")):
        mode, reason = choose_mode("auto", device, 10**9, slow_to_compile=True)
        assert mode == expected
        assert "so many operations" in reason
    assert choose_mode("compile", CPU, 1, slow_to_compile=True)[0] == "compile"
    assert algorithm_class("dreamer").slow_to_compile
    few, many = COMPILE_PIECES_FROM_UPDATES - 1, COMPILE_PIECES_FROM_UPDATES
    for device, updates, expected in (
        (CUDA, few, "graph"),
        (CUDA, many, "compiled_graph"),
        (CPU, 10**9, "eager"),
    ):
        assert choose_mode("auto", device, updates, True, in_pieces=True)[0] == expected


def test_every_agent_has_compiled_pieces_of_its_own() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    for size in range(2, 12):
        own = torch.compile(separate(twice), dynamic=False, fullgraph=True, backend="eager")
        assert torch.equal(own(torch.ones(size)), torch.full((size,), 2.0))
    assert separate(algorithm_class("bc").name)() == "BC"


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for device, expected in ((CPU, "eager"), (CUDA, "graph")):
        mode, reason = choose_mode("auto", device, 10**9)
        assert mode == expected
        assert "compiler" in reason
    with pytest.raises(ConfigError, match=r"engine: 'compile' needs a C\+\+ compiler"):
        choose_mode("compile", CPU, 1)


@pytest.mark.parametrize("mode", ["graph", "compiled_graph"])
def test_graphs_need_a_gpu(mode: str) -> None:
    with pytest.raises(ConfigError, match=f"engine: '{mode}' needs a CUDA device"):
        choose_mode(mode, CPU, 1)


def test_a_run_flushes_denormals_and_leaves_the_caller_alone() -> None:
    config = small_config("bc")
    algorithm, _ = small_learner(config)
    assert not flushes_denormals()
    with run_scope(config, algorithm.spaces):
        assert flushes_denormals()
    assert not flushes_denormals()
