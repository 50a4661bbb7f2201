"""Implicit quantile networks, Dabney et al. 2018."""

import copy

import numpy as np
import pytest
import torch

from ..each import each
from .helpers import as_double, assert_rejects, f64, mlp, record_noise, weights_of
from .test_dqn import VALUE_BAD_KNOBS, batch_for, disagree, learner_for
from .test_qr_dqn import learn_one_state, quantile_oracle


def implicit_quantiles(network, obs, taus):
    """(B, N, A) at (B, N) fractions: head(features * relu(W cos(pi i tau) + b)), i = 1..n."""
    features = np.maximum(mlp(network.features.net, obs), 0.0)
    layer = network.embedding.layer
    cosines = np.cos(np.pi * np.arange(1, layer.in_features + 1) * f64(taus)[..., None])
    embedded = np.maximum(cosines @ f64(layer.weight).T + f64(layer.bias), 0.0)
    mixed = features[:, None] * embedded
    values = mlp(network.head.actions, mixed)
    if network.head.value is None:
        return values
    return mlp(network.head.value, mixed) + values - values.mean(-1, keepdims=True)


def midpoints(n, rows):
    return np.broadcast_to((np.arange(n) + 0.5) / n, (rows, n))


@each("sizes", [(8,), (8, 6), (8, 7, 6)])
@each("dueling", [False, True])
def test_the_network(sizes, dueling):
    knobs = {"hidden_sizes": sizes, "dueling": dueling, "num_cosines": 5, "num_action_quantiles": 9}
    network = learner_for("iqn", **knobs).network
    obs, taus = torch.randn(6, 4), torch.rand(6, 3)
    expected = implicit_quantiles(network, obs, taus)
    np.testing.assert_allclose(f64(network(obs, taus)), expected, rtol=1e-4, atol=1e-5)
    q = implicit_quantiles(network, obs, midpoints(9, 6)).mean(1)
    np.testing.assert_allclose(f64(network.q_values(obs)), q, rtol=1e-4, atol=1e-5)


@each("double", [False, True])
@each("dueling", [False, True])
@each("weighted", [False, True])
def test_update_equals_the_papers_steps(double, dueling, weighted):
    knobs = {
        "num_quantiles": 4,
        "num_target_quantiles": 6,
        "num_action_quantiles": 5,
        "num_cosines": 8,
        "lr": 1e-2,
        "kappa": 0.5,
        "target_update_interval": 2,
    }
    learner = learner_for("iqn", double=double, dueling=dueling, **knobs).double()
    disagree(learner)
    online, target = copy.deepcopy(learner.network), copy.deepcopy(learner.target_network)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    drawn, rows = record_noise(learner), np.arange(16)
    for step in range(1, 6):
        batch = as_double(batch_for(seed=step, weighted=weighted))
        drawn.clear()
        metrics = learner.step(batch)
        taus, next_taus = drawn
        assert taus.shape == (16, 4)
        assert next_taus.shape == (16, 6)
        judge = online if double else target
        best = implicit_quantiles(judge, batch.next_obs, midpoints(5, 16)).mean(1).argmax(-1)
        following = implicit_quantiles(target, batch.next_obs, next_taus)[rows, :, best]
        goal = f64(batch.reward)[:, None] + f64(batch.discount)[:, None] * following
        weight = f64(batch.weight) if weighted else None
        quantiles = online(batch.obs, taus)[torch.arange(16), :, batch.action]
        total, errors, gradient = quantile_oracle(f64(quantiles), goal, f64(taus), 0.5, weight)
        optimizer.zero_grad()
        quantiles.backward(torch.from_numpy(gradient))
        optimizer.step()
        if step % 2 == 0:
            target = copy.deepcopy(online)
        assert f64(metrics["quantile_loss"]) == pytest.approx(total, rel=1e-4)
        np.testing.assert_allclose(f64(learner.last_td_errors), errors, rtol=1e-4)
    torch.testing.assert_close(weights_of(learner.network), weights_of(online), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        weights_of(learner.target_network), weights_of(target), rtol=0, atol=1e-5
    )


def test_fractions_are_fresh_at_every_update():
    learner = learner_for("iqn")
    drawn = record_noise(learner)
    for _ in range(2):
        learner.step(batch_for())
    assert len(drawn) == 4
    assert len({float(taus[0, 0]) for taus in drawn}) == 4
    assert all(0.0 <= float(taus.min()) <= float(taus.max()) < 1.0 for taus in drawn)


def test_finds_the_quantile_function_of_a_skewed_reward():
    """Reward 2 u^4, u uniform, so that F(w) = 2 w^4 and the mean is 0.4."""
    knobs = {"num_quantiles": 16, "num_target_quantiles": 1, "num_cosines": 8}
    learner = learner_for("iqn", lr=3e-3, kappa=0.02, **knobs)
    learn_one_state(learner, 800, lambda u: 2.0 * u**4, size=64)
    state, taus = torch.ones(1, 4), torch.tensor([[0.1, 0.3, 0.5, 0.7, 0.9]])
    found = f64(learner.network(state, taus)[0, :, 0])
    assert found == pytest.approx(2.0 * f64(taus[0]) ** 4, abs=0.05)
    assert f64(learner.network.q_values(state)[0, 0]) == pytest.approx(0.4, abs=0.02)


def test_acts_without_noise():
    learner = learner_for("iqn")
    obs = torch.randn(50, 4)
    drawn = record_noise(learner)
    first = learner.act(obs, explore=False).action
    assert torch.equal(first, learner.act(obs, explore=False).action)
    assert not drawn


@each(
    ("key", "value"),
    [
        *VALUE_BAD_KNOBS,
        ("num_quantiles", 0),
        ("num_target_quantiles", 0),
        ("num_action_quantiles", 0),
        ("num_cosines", 0),
    ],
)
def test_bad_knobs(key, value):
    assert_rejects("iqn", key, value)
