"""Every registered algorithm acts the same after it was exported; none has a line of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rl_training.api.managed import ManagedAlgorithm
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.export.contract import read_contract
from rl_training.export.exported import load_policy
from rl_training.export.graph import PolicyGraph
from rl_training.export.parity import STEPS, TOLERANCE
from rl_training.export.run_policy import repeat_sample

from ..envs.choices import ENV_ID as CHOICES
from ..envs.masked import register_masked
from .exporting import LAMPS, LOPSIDED, PARTS, agent_of, export, same_returns

TASKS = {
    "vector": {"box": LOPSIDED, "discrete": "CartPole-v1", "multi_discrete": CHOICES},
    "vector with a mask": {"discrete": "masked/Task-v0"},
    "vector of parts": PARTS,
    "image": {"discrete": "rl_training/Catch-v0"},
    "image beside parts": LAMPS,
}
"""Of each kind of observation and of actions."""
LARGEST_AXIS = 1
"""Whole numbers above it are sizes of what is computed, and no part of how."""


class Case(NamedTuple):
    algo: str
    kind: str
    env_id: str
    memory: str
    draws: bool

    def agent(self) -> ManagedAlgorithm:
        knobs = {"memory": self.memory, "memory_size": 8, "sequence_length": 4}
        return agent_of(
            self.algo, self.kind, self.env_id, **(knobs if self.memory != "none" else {})
        )


def cases() -> Iterator[tuple[Case, ManagedAlgorithm]]:
    for algo in algorithm_names():
        cls = algorithm_class(algo)
        memories = ("none", "gru", "lstm") if "memory" in cls.Params.model_fields else ("none",)
        for observed, tasks in TASKS.items():
            taken = observed.partition(" ")[0] in cls.observation_kinds
            if not taken or ("mask" in observed and not cls.takes_masks):
                continue
            for kind in sorted(cls.action_kinds & set(tasks)):
                for memory in memories:
                    case = Case(algo, kind, tasks[kind], memory, draws=False)
                    agent = case.agent()
                    yield case, agent
                    if agent.algorithm.policy.has_density:
                        yield case._replace(draws=True), agent


class Operations(TorchDispatchMode):
    """Keeps what is computed: each operation with its options and the kinds of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.found = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [_form(value) for value in tree_leaves((args, kwargs))]
        self.found.add(f"{func} of {given}")
        return func(*args, **(kwargs or {}))


def _form(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of {value.ndim} axes"
    size = isinstance(value, float) or (isinstance(value, int) and value > LARGEST_AXIS)
    return type(value).__name__ if size else str(value)


def random_feeds(graph: PolicyGraph, rng: np.random.Generator, rows: int) -> list[Any]:
    feeds = list[Any]()
    for port in graph.seen:
        shape = (rows, *port.shape)
        if port.dtype == "uint8":
            feeds.append(rng.integers(0, 256, shape, dtype=np.uint8))
        elif port.dtype == "bool":
            feeds.append(rng.random(shape) < 0.5)
            feeds[-1][:, 1] = True
        elif port.part is not None and port.part.choices:
            starts = port.part.starts
            ends = np.add(starts, port.part.choices)
            feeds.append(rng.integers(starts, ends, (rows, len(starts))).reshape(shape))
        else:
            feeds.append(rng.normal(size=shape).astype(np.float32))
    return feeds


def as_given(graph: PolicyGraph, feeds: list[Any]) -> dict[str, Any]:
    """What `predict` takes for the inputs of the graph: parts lie where their paths say."""
    asked: dict[Any, Any] = {}
    for port, values in zip(graph.seen, feeds, strict=True):
        path = ("action_mask",) if port.dtype == "bool" else ("observation",)
        path += () if port.part is None else port.part.path
        place = asked
        for step in path[:-1]:
            place = place.setdefault(step, {})
        place[path[-1]] = values
    return {key: _with_tuples(value) for key, value in asked.items()}


def _with_tuples(tree: Any) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    inner = {key: _with_tuples(value) for key, value in tree.items()}
    return tuple(inner.values()) if 0 in inner else inner


def operations(case: Case, agent: ManagedAlgorithm) -> set[str]:
    """What the graph of an agent computes, which has to do what the agent does for three steps."""
    graph = PolicyGraph(agent.algorithm, case.draws).eval()
    assert agent.algorithm.normalizer.active or agent.algorithm.spaces.is_image
    rng, rows, state = np.random.default_rng(0), 5, None
    extra = [torch.rand(rows, *port.shape) for port in graph.noises]
    states: Any = [
        torch.zeros(rows, *port.shape, dtype=getattr(torch, port.dtype)) for port in graph.states
    ]
    for _ in range(3 if graph.states else 1):
        feeds = random_feeds(graph, rng, rows)
        with Operations() as recorded, torch.no_grad():
            found, *states = graph(*map(torch.from_numpy, feeds), *states, *extra)
        if not case.draws:
            expected, state = agent.predict(**as_given(graph, feeds), state=state)
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-5, err_msg=str(case))
    return recorded.found


def test_every_policy_is_exported_as_it_acts(tmp_path: Path) -> None:
    """A model is made operation by operation, so models are made until every operation of every
    policy is in one of them that acts as its agent, and every algorithm has one.

    RL_TRAINING_EXPORT_ALL=1 makes the models of all cases, which takes half an hour.
    """
    register_masked()
    left = {case: operations(case, agent) for case, agent in cases()}
    assert {case.algo for case in left} == set(algorithm_names())
    everything = "RL_TRAINING_EXPORT_ALL" in os.environ
    algorithms = set(algorithm_names())
    while left:
        case = max(left, key=lambda one: (len(left[one]), one.algo in algorithms))
        if left[case] or case.algo in algorithms or everything:
            check(case, tmp_path / "-".join(map(str, case)).replace("/", "-"))
            algorithms.discard(case.algo)
        covered = left.pop(case)
        left = {one: missing - covered for one, missing in left.items()}
    assert not algorithms


def check(case: Case, folder: Path) -> None:
    agent = case.agent()
    result = export(agent, folder, stochastic=case.draws)
    recurrent = agent.algorithm.recurrent
    assert result.parity.largest_error <= TOLERANCE, case
    assert set(result.parity.observations) == {"environment", "random"}, case
    assert result.parity.steps == (STEPS if recurrent else 1), case
    assert case.draws or same_returns(result.returns, result.exported_returns), case
    assert repeat_sample(folder) <= TOLERANCE, case
    contract = read_contract(folder)
    states = [port["name"] for port in contract["inputs"] if port["role"] == "state"]
    if case.memory != "none":
        cell = ["state_cell"] if case.memory == "lstm" else []
        assert states == ["state_hidden", *cell]
    assert contract["recurrent"] == recurrent == bool(states)
    assert any(port["role"] == "noise" for port in contract["inputs"]) == case.draws
    assert contract["normalization"]["active"] != agent.algorithm.spaces.is_image
    action = contract["outputs"][0]
    assert action["kind"] == case.kind
    if case.kind == "box":
        assert action["low"] == pytest.approx([-2.1, 0.8])
        assert action["high"] == pytest.approx([2.7, 2.1])


def test_drawn_actions_have_the_probabilities_of_the_policy(tmp_path: Path) -> None:
    agent = agent_of("ppo", "discrete", "CartPole-v1")
    policy = load_policy(export(agent, tmp_path / "ppo", stochastic=True).folder)
    obs = np.tile(np.array([0.3, -0.2, 0.1, 0.4], np.float32), (20_000, 1))
    actions, _ = policy(obs, rng=np.random.default_rng(0))
    mine = agent.predict(obs, deterministic=False)[0]
    assert 0.05 < mine.mean() < 0.95
    assert abs(actions.mean() - mine.mean()) < 0.02
