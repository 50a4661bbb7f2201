"""Every registered algorithm acts the same after it was exported; none has a line of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.api.managed import ManagedAlgorithm
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.export import write
from rl_training.export.contract import read_contract
from rl_training.export.exported import load_policy
from rl_training.export.graph import PolicyGraph, traced
from rl_training.export.parity import STEPS, TOLERANCE

from .exporting import LOPSIDED, PARTS, agent_of, export, same_returns

VECTORS = {"box": LOPSIDED, "discrete": "CartPole-v1"}
CATCH = "rl_training/Catch-v0"


class Programs:
    """Traces every policy and exports one of each program: the model is made from the program
    and the weights alone, so an algorithm that acts by the same operations as another one is
    compared with its agent in PyTorch."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch, self.known = folder, monkeypatch, set[str]()

    def compare(self, agent: ManagedAlgorithm) -> None:
        name, recurrent = agent.algorithm.name(), agent.algorithm.recurrent
        graph = PolicyGraph(agent.algorithm, draws=False).eval()
        program = traced(graph)
        text = operations(program)
        if text not in self.known:
            self.known.add(text)
            self.monkeypatch.setattr(write, "traced", lambda _: program)  # once is enough
            result = export(agent, self.folder / f"{len(self.known)}")
            assert result.parity.largest_error <= TOLERANCE, name
            assert set(result.parity.observations) == {"environment", "random"}, name
            assert result.parity.steps == (STEPS if recurrent else 1), name
            assert same_returns(result.returns, result.exported_returns), name
        same_action(agent, graph, program.module())


def operations(program: torch.export.ExportedProgram) -> str:
    """What a program does, with the shapes of what it is done to and without names."""
    nodes = [node for node in program.graph.nodes if node.users or node.op == "output"]
    number = {node: str(i) for i, node in enumerate(nodes)}
    kept = []
    for node in nodes:
        given = torch.fx.node.map_arg((node.args, node.kwargs), number.__getitem__)
        target = str(node.target) if node.op == "call_function" else ""
        kept.append((node.op, target, str(given), str(getattr(node.meta.get("val"), "shape", ""))))
    return str(kept)


def same_action(agent: ManagedAlgorithm, graph: PolicyGraph, acting: Any) -> None:
    """What the graph does for five random observations is what the agent does."""
    rng, feeds = np.random.default_rng(0), list[Any]()
    for port in graph.seen:
        shape = (5, *port.shape)
        if port.dtype == "uint8":
            feeds.append(rng.integers(0, 256, shape, dtype=np.uint8))
        elif port.part is not None and port.part.choices:
            starts = port.part.starts
            feeds.append(rng.integers(starts, np.add(starts, port.part.choices), (5, len(starts))))
            feeds[-1] = feeds[-1].reshape(shape)
        else:
            feeds.append(rng.normal(size=shape).astype(np.float32))
    expected, _ = agent.predict(graph.observation([torch.from_numpy(x) for x in feeds]).numpy())
    states = [
        torch.zeros(5, *port.shape, dtype=getattr(torch, port.dtype)) for port in graph.states
    ]
    with torch.no_grad():
        found = acting(*map(torch.from_numpy, feeds), *states)[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=agent.algorithm.name())


@pytest.mark.parametrize("kind", sorted(PARTS))
def test_parts_and_vectors_with_normalised_observations_and_lopsided_bounds(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = Programs(tmp_path, monkeypatch)
    for algo in algorithm_names():
        if kind in algorithm_class(algo).action_kinds:
            agent = agent_of(algo, kind, PARTS[kind])
            assert agent.algorithm.normalizer.active
            programs.compare(agent)
            plain = agent_of(algo, kind, VECTORS[kind])
            graph = PolicyGraph(plain.algorithm, draws=False).eval()
            same_action(plain, graph, graph)
    assert programs.known
    for folder in tmp_path.iterdir():
        contract = read_contract(folder)
        names = [port["name"] for port in contract["inputs"] if port["role"] == "observation"]
        assert sorted(names) == [
            *("observation.flags", "observation.pair.0", "observation.pair.1"),
            *("observation.table", "observation.ward"),
        ]
        action = contract["outputs"][0]
        assert action["kind"] == kind
        if kind == "box":
            assert action["low"] == pytest.approx([-2.1, 0.8])
            assert action["high"] == pytest.approx([2.7, 2.1])


def test_policies_with_memory_carry_their_state(tmp_path: Path) -> None:
    for algo, kind, memory, env_id in (
        ("ppo", "box", "gru", LOPSIDED),
        ("dqn", "discrete", "lstm", "CartPole-v1"),
    ):
        agent = agent_of(algo, kind, env_id, memory=memory, memory_size=8, sequence_length=4)
        result = export(agent, tmp_path / f"{algo}-{kind}-{memory}")
        assert result.parity.largest_error <= TOLERANCE, algo
        assert result.parity.steps == STEPS
        assert same_returns(result.returns, result.exported_returns), algo
        states = [p["name"] for p in read_contract(result.folder)["inputs"] if p["role"] == "state"]
        parts = ("state_hidden", "state_cell") if memory == "lstm" else ("state_hidden",)
        assert states == list(parts)


def test_images_enter_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs(tmp_path, monkeypatch)
    for algo in algorithm_names():
        if algorithm_class(algo).loop != "offline" and (
            "image" in algorithm_class(algo).observation_kinds
        ):
            programs.compare(agent_of(algo, "discrete", CATCH))
    for folder in tmp_path.iterdir():
        seen = read_contract(folder)["inputs"][0]
        assert (seen["dtype"], seen["low"], seen["high"]) == ("uint8", 0, 255)


def test_drawn_actions_are_those_of_the_agent_for_the_same_noise(tmp_path: Path) -> None:
    cases = (("sac", "box"), ("ppo", "discrete"), ("dreamer", "box"))
    for algo, kind in cases:
        agent = agent_of(algo, kind, VECTORS[kind])
        result = export(agent, tmp_path / algo, stochastic=True)
        contract = read_contract(result.folder)
        noises = [port for port in contract["inputs"] if port["role"] == "noise"]
        assert noises, algo
        assert result.parity.largest_error <= TOLERANCE, algo
    policy = load_policy(tmp_path / "ppo")
    agent = agent_of("ppo", "discrete", VECTORS["discrete"])
    obs = np.tile(np.array([0.3, -0.2, 0.1, 0.4], np.float32), (20_000, 1))
    actions, _ = policy(obs, rng=np.random.default_rng(0))
    mine = agent.predict(obs, deterministic=False)[0]
    assert 0.05 < mine.mean() < 0.95
    assert abs(actions.mean() - mine.mean()) < 0.02
