"""Policies over several choices: NumPy oracles that planted mistakes fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from rl_training.models import MultiCategoricalPolicy

from ..contract.small_runs import small_config, small_learner
from .helpers import f64, mlp

CHOICES = (3, 2, 4)


def oracle(logits: Any, action: Any, mistake: str = "") -> tuple[Any, Any, Any]:
    """(B,) log-probabilities and entropies and (B, parts) modes, part by part in a loop."""
    log_prob, entropy = np.zeros(len(logits)), np.zeros(len(logits))
    modes = np.zeros((len(logits), len(CHOICES)), int)
    ends = np.cumsum(CHOICES)
    for i, end in enumerate(ends):
        part = logits[:, end - CHOICES[i] : end]
        if mistake == "one softmax over all parts":
            part = part - logsumexp(logits, 1)[:, None]
        else:
            part = part - logsumexp(part, 1)[:, None]
        chosen = action[:, 0] if mistake == "the first part everywhere" else action[:, i]
        log_prob += part[np.arange(len(part)), np.minimum(chosen, CHOICES[i] - 1)]
        scale = 1.0 / len(CHOICES) if mistake == "mean over the parts" else 1.0
        entropy -= scale * (np.exp(part) * part).sum(1)
        modes[:, i] = part.argmax(1)
    if mistake == "the last part is missing":
        log_prob -= part[np.arange(len(part)), action[:, -1]]
    return log_prob, entropy, modes


def test_log_probabilities_and_entropies_are_sums_over_the_parts() -> None:
    torch.manual_seed(0)
    policy = MultiCategoricalPolicy(3, CHOICES, (16, 16)).double()
    obs = torch.randn(32, 3).double()
    action = torch.stack([torch.randint(n, (32,)) for n in CHOICES], 1)
    logits = mlp(policy.net, obs)
    found = [f64(x) for x in policy.log_prob_and_entropy(obs, action)]
    for got, want in zip(found, oracle(logits, action.numpy()), strict=False):
        np.testing.assert_allclose(got, want, rtol=1e-9)
    np.testing.assert_array_equal(policy.mode(obs), oracle(logits, action.numpy())[2])
    torch.testing.assert_close(policy.log_prob(obs, action), torch.from_numpy(found[0]))
    for mistake in (
        "one softmax over all parts",
        "the first part everywhere",
        "mean over the parts",
        "the last part is missing",
    ):
        wrong = oracle(logits, action.numpy(), mistake)[:2]
        assert any(not np.allclose(a, b, rtol=1e-5) for a, b in zip(found, wrong, strict=True)), (
            mistake
        )


def test_draws_are_independent_and_follow_the_probabilities() -> None:
    torch.manual_seed(0)
    policy = MultiCategoricalPolicy(2, (3, 2), (8,))
    with torch.no_grad():
        policy.net.layers[-1].bias.copy_(torch.tensor([0.0, 1.0, 2.0, 0.5, -0.5]))
        drawn, log_prob = policy.draw(torch.zeros(20_000, 2))
        first, second = (part[0] for part in policy.parts(policy(torch.zeros(1, 2)).exp()))
    assert drawn.dtype == torch.int64
    joint = torch.zeros(3, 2)
    joint.index_put_((drawn[:, 0], drawn[:, 1]), torch.ones(20_000), accumulate=True)
    torch.testing.assert_close(joint / 20_000, torch.outer(first, second), rtol=0.0, atol=0.02)
    expected = (first[drawn[:, 0]] * second[drawn[:, 1]]).log()
    torch.testing.assert_close(log_prob, expected, rtol=1e-5, atol=1e-6)


# with which all weights are 1
EQUAL_WEIGHTS: dict[str, dict[str, float]] = {
    "bc": {},
    "awr": {"temperature": 1e9},
    "marwil": {"inverse_temperature": 0.0},
}


def test_losses_of_every_algorithm_use_the_joint_probability() -> None:
    for algo, knobs in EQUAL_WEIGHTS.items():
        config = small_config(algo, "multi_discrete", algo_kwargs=knobs)
        algorithm, table = small_learner(config)
        batch = table.sample(64)
        assert batch.action.shape == (64, 2)
        assert batch.action.dtype == torch.int64
        logits = mlp(algorithm.policy.net, batch.obs)
        first, second = logits[:, :3], logits[:, 3:]
        rows, taken = np.arange(64), batch.action.numpy()
        log_prob = first[rows, taken[:, 0]] - logsumexp(first, 1)
        log_prob = log_prob + second[rows, taken[:, 1]] - logsumexp(second, 1)
        loss = float(algorithm.step(batch)["policy_loss"])
        assert loss == pytest.approx(-log_prob.mean(), rel=1e-5), algo
