"""What an agent says about observations and actions beside what it would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import AWR, BC, DQN, IQL, TD3BC, Dreamer
from rl_training.experiment.errors import ConfigError, DataError
from tests.conftest import Command
from tests.runtime.test_data_alone import SMALL, clinic
from tests.test_bad_input import assert_refused


def layers(module: torch.nn.Module, member: int, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One network of ReLU layers, computed here; `member` of an ensemble."""
    named = {k: v.detach().double().numpy() for k, v in module.named_parameters()}
    weights = [k for k in named if "weight" in k]
    assert weights
    for i, key in enumerate(weights):
        weight, bias = named[key], named[key.replace("weights", "biases").replace("weight", "bias")]
        if weight.ndim == 3:  # (members, in, out)
            x = x @ weight[member] + bias[member].reshape(1, -1)
        else:
            x = x @ weight.T + bias
        x = np.maximum(x, 0.0) if i + 1 < len(weights) else x
    return x


def trained(cls: Any, discrete: bool, **options: Any) -> Any:
    agent = cls(dataset=clinic(discrete), **SMALL, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # far from what it was initialised with
        for parameter in agent.algorithm.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return agent


def test_probabilities_are_the_policy_s() -> None:
    agent = trained(BC, True)
    obs = clinic()["observations"]
    probabilities = agent.action_probabilities(obs)
    logits = layers(agent.algorithm.policy.net, 0, obs.astype(np.float64))
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-4)
    assert (probabilities.argmax(1) == agent.predict(obs)[0]).all()
    for action in range(4):
        np.testing.assert_allclose(
            np.exp(agent.log_prob(obs, np.full(len(obs), action))), expected[:, action], rtol=1e-4
        )
    assert agent.action_probabilities(obs[0]).shape == (4,)
    assert agent.log_prob(obs[0], 2).shape == ()


def test_densities_are_per_unit_of_the_environment() -> None:
    """Summed over a fine grid of actions they give 1, the share inside the box."""
    arrays = clinic(discrete=False)
    arrays["actions"] = 3.0 * arrays["actions"][:, :1]
    agent = IQL(dataset=arrays, **SMALL, action_distribution="tanh_gaussian")
    low, high = agent.algorithm.spaces.action_low[0], agent.algorithm.spaces.action_high[0]
    grid = np.linspace(low, high, 20_001)[1:-1, None]
    obs = np.repeat(arrays["observations"][:1], len(grid), 0)
    density = np.exp(agent.log_prob(obs, grid))
    assert abs(density.sum() * (high - low) / 20_000 - 1.0) < 2e-2
    best = agent.log_prob(obs[0], agent.predict(obs[0])[0])
    assert best > agent.log_prob(obs[0], [low + 1e-3])


def test_values_are_the_networks() -> None:
    arrays = clinic(discrete=False)
    obs, actions = arrays["observations"], arrays["actions"]
    agent = trained(IQL, False)
    value = layers(agent.algorithm.model.value.net, 0, obs.astype(np.float64))[:, 0]
    np.testing.assert_allclose(agent.value(obs), value, rtol=1e-3, atol=1e-4)
    low, high = actions.min(0), actions.max(0)
    inner = np.clip(2.0 * (actions - low) / (high - low) - 1.0, -1 + 1e-5, 1 - 1e-5)
    pairs = np.concatenate([obs, inner], 1).astype(np.float64)
    critics = [layers(agent.algorithm.critics.net, i, pairs)[:, 0] for i in range(2)]
    assert np.abs(critics[0] - critics[1]).max() > 1e-2  # or else their minimum says nothing
    np.testing.assert_allclose(
        agent.q_values(obs, actions), np.minimum(*critics), rtol=1e-3, atol=1e-4
    )
    # without a value of its own, that of what the policy would do
    other = trained(TD3BC, False)
    np.testing.assert_allclose(
        other.value(obs), other.q_values(obs, other.predict(obs)[0]), rtol=1e-4, atol=1e-4
    )


def test_values_of_every_discrete_action() -> None:
    agent = DQN("CartPole-v1", **{**SMALL, "batch_size": 8})
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    every = agent.q_values(obs)
    assert every.shape == (5, 2)
    for action in range(2):
        np.testing.assert_allclose(agent.q_values(obs, [action] * 5), every[:, action], rtol=1e-5)
    assert (every.argmax(1) == agent.predict(obs)[0]).all()
    np.testing.assert_allclose(agent.value(obs), every.max(1), rtol=1e-5)


def test_what_an_algorithm_cannot_say_is_refused() -> None:
    clone, value, box = trained(BC, True), trained(AWR, True), trained(IQL, False)
    greedy, plain = DQN("CartPole-v1", **SMALL), trained(TD3BC, False)
    dreamer = Dreamer("CartPole-v1", size="1m")
    one = np.zeros(3, np.float32)
    questions = (
        (lambda: clone.value(one), "BC has learned no values of states"),
        (lambda: value.q_values(one), "AWR has learned no values of actions"),
        (lambda: box.action_probabilities(one), "Box actions have densities"),
        (lambda: box.q_values(one), "give the actions to be valued"),
        (lambda: greedy.action_probabilities(np.zeros(4)), "DQN always takes its best action"),
        (lambda: greedy.log_prob(np.zeros(4), 0), "DQN has one action for each"),
        (lambda: plain.log_prob(one, np.zeros(2)), "TD3BC has one action for each"),
        (lambda: dreamer.value(np.zeros(4)), "looks at whole episodes"),
    )
    for question, message in questions:
        with pytest.raises(ConfigError, match=message):
            question()
    mistakes = (
        (lambda: clone.log_prob(one, 4), "whole numbers from 0 to 3"),
        (lambda: clone.log_prob(one, 0.5), "whole numbers from 0 to 3"),
        (lambda: clone.log_prob(one, [0, 1]), "give one per observation"),
        (lambda: box.q_values(one, [9.0, 0.0]), "within the action space"),
        (lambda: box.q_values(one, [np.nan, 0.0]), "finite"),
        (lambda: box.value([np.nan, 0.0, 0.0]), "value: the observation holds NaN"),
    )
    for question, message in mistakes:
        with pytest.raises(DataError, match=message):
            question()


def test_the_command_line_explains(cli: Command, tmp_path: Path) -> None:
    agent = trained(AWR, True)
    path, obs = agent.save(tmp_path / "kept"), clinic()["observations"][:3]
    shown = json.loads(cli("predict", path, str(obs[0].tolist()), "--explain").out)
    assert set(shown) == {"action", "action_probabilities", "log_prob", "value"}
    np.testing.assert_allclose(
        shown["action_probabilities"], agent.action_probabilities(obs[0]), rtol=1e-5
    )
    np.savez(tmp_path / "obs.npz", observations=obs)
    out = tmp_path / "out.npz"
    assert cli("predict", path, "--file", tmp_path / "obs.npz", "--out", out, "--explain").code == 0
    with np.load(out) as written:
        np.testing.assert_allclose(written["value"], agent.value(obs), rtol=1e-5)
        assert (written["actions"] == agent.predict(obs)[0]).all()
    assert_refused(cli("predict", path, "[0, 0, 0]", "--explain", "--stochastic"), "--explain")
