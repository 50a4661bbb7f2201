"""Every registered algorithm acts the same after it was exported; none has a line of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.export.contract import read_contract
from rl_training.export.parity import STEPS, TOLERANCE

from .exporting import LOPSIDED, agent_of, export, same_returns

TASKS = {"box": LOPSIDED, "discrete": "CartPole-v1"}
CATCH = "rl_training/Catch-v0"


@pytest.mark.parametrize("kind", sorted(TASKS))
def test_vectors_with_normalised_observations_and_lopsided_bounds(
    kind: str, tmp_path: Path
) -> None:
    for algo in algorithm_names():
        if kind in algorithm_class(algo).action_kinds:
            agent = agent_of(algo, kind, TASKS[kind])
            assert agent.algorithm.normalizer.active
            result = export(agent, tmp_path / f"{algo}-{kind}")
            assert result.parity.largest_error <= TOLERANCE, algo
            assert set(result.parity.observations) == {"environment", "random"}, algo
            assert result.parity.steps == (STEPS if agent.algorithm.recurrent else 1)
            assert same_returns(result.returns, result.exported_returns), algo
            contract = read_contract(result.folder)
            action = next(port for port in contract["outputs"] if port["name"] == "action")
            assert action["kind"] == kind
            if kind == "box":
                assert action["low"] == list(agent.algorithm.spaces.action_low)
                assert action["high"] == list(agent.algorithm.spaces.action_high)


def test_images_enter_as_bytes(tmp_path: Path) -> None:
    for algo in algorithm_names():
        if "image" not in algorithm_class(algo).observation_kinds:
            continue
        result = export(agent_of(algo, "discrete", CATCH), tmp_path / algo)
        seen = read_contract(result.folder)["inputs"][0]
        assert (seen["dtype"], seen["low"], seen["high"]) == ("uint8", 0, 255)
        assert same_returns(result.returns, result.exported_returns), algo


def test_drawn_actions_are_those_of_the_agent_for_the_same_noise(tmp_path: Path) -> None:
    cases = (("bc", "box"), ("sac", "box"), ("ppo", "discrete"), ("dreamer", "box"))
    for algo, kind in cases:
        agent = agent_of(algo, kind, TASKS[kind])
        result = export(agent, tmp_path / algo, stochastic=True)
        contract = read_contract(result.folder)
        noises = [port for port in contract["inputs"] if port["role"] == "noise"]
        assert noises, algo
        assert result.parity.largest_error <= TOLERANCE, algo
    from rl_training.export.exported import load_policy

    policy = load_policy(tmp_path / "ppo")
    agent = agent_of("ppo", "discrete", TASKS["discrete"])
    obs = np.tile(np.array([0.3, -0.2, 0.1, 0.4], np.float32), (20_000, 1))
    actions, _ = policy(obs, rng=np.random.default_rng(0))
    mine = agent.predict(obs, deterministic=False)[0]
    assert 0.05 < mine.mean() < 0.95
    assert abs(actions.mean() - mine.mean()) < 0.02
