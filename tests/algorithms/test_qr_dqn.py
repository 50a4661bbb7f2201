"""Quantile-regression DQN, Dabney et al. 2018, and the quantile loss all three share."""

import copy

import numpy as np
import pytest
import torch

from rl_training.algorithms.value_based import quantile_huber_loss

from ..each import each
from .helpers import (
    SEEDS_AND_SIZES,
    as_double,
    assert_loss_equals,
    assert_rejects,
    evaluate,
    f64,
    mlp,
    numeric_gradient,
    random_arrays,
    weights_of,
)
from .test_dqn import VALUE_BAD_KNOBS, batch_for, disagree, huber, learner_for


def quantile_oracle(quantiles, targets, taus, kappa, weight=None, target_weight=None):
    """Loss, mean |delta| per row and gradient, pair by pair.

    For each row: sum over learned i, mean over target j of
    |tau_i - 1{target_j < quantile_i}| Huber(target_j - quantile_i) / kappa.
    """
    rows, n = quantiles.shape
    m = targets.shape[1]
    taus = np.broadcast_to(taus, (rows, n))
    weight = np.ones(rows) if weight is None else weight
    share = np.full((rows, m), 1.0 / m) if target_weight is None else target_weight
    total, errors, gradient = 0.0, np.zeros(rows), np.zeros((rows, n))
    for i in range(n):
        for j in range(m):
            delta = targets[:, j] - quantiles[:, i]
            side = np.abs(taus[:, i] - (delta < 0.0))
            value, slope = huber(delta, kappa)
            total += np.mean(weight * share[:, j] * side * value / kappa)
            gradient[:, i] -= weight * share[:, j] * side * slope / kappa / rows
            errors += share[:, j] * np.abs(delta) / n
    return total, errors, gradient


@each(("seed", "size"), SEEDS_AND_SIZES)
@each(("n", "m"), [(1, 1), (5, 5), (3, 8), (8, 3)])
@each(("scale", "kappa"), [(1.0, 1.0), (1.0, 0.2), (100.0, 1.0), (1.0, 5.0)])
def test_loss(seed, size, n, m, scale, kappa):
    rng = np.random.default_rng(seed)
    inputs = random_arrays(seed, scale, quantiles=(size, n), target_quantiles=(size, m))
    variants = [{"taus": (np.arange(n, dtype="f4") + 0.5) / n}]
    variants += [{"taus": rng.uniform(size=(size, n)).astype("f4")}]
    variants += [{**variants[1], "weight": rng.uniform(0.1, 1.0, size).astype("f4")}]
    shares = rng.dirichlet(np.ones(m), size).astype("f4")
    variants += [{**variants[2], "target_weight": shares}]
    for variant in variants:
        extra = {name: f64(array) for name, array in variant.items()}
        total, errors, gradient = quantile_oracle(
            f64(inputs["quantiles"]), f64(inputs["target_quantiles"]), kappa=kappa, **extra
        )
        assert_loss_equals(
            quantile_huber_loss,
            inputs | variant,
            total,
            {"quantile_loss": total, "td_errors": errors},
            {"quantiles": gradient},
            kappa=kappa,
        )


def test_the_oracles_gradient_is_that_of_its_value():
    x = {k: f64(v) for k, v in random_arrays(4, q=(3, 4), t=(3, 5)).items()}
    taus = np.random.default_rng(0).uniform(size=(3, 4))

    def value(quantiles):
        return quantile_oracle(quantiles, x["t"], taus, 0.7)[0]

    gradient = quantile_oracle(x["q"], x["t"], taus, 0.7)[2]
    np.testing.assert_allclose(gradient, numeric_gradient(value, x["q"]), atol=1e-8)


def test_tau_belongs_to_the_learned_quantiles_and_pulls_up_by_its_size():
    """A quantile at 0 under targets at +1 is pulled up by tau; over targets at -1 it is
    pushed down by 1 - tau. On the wrong axis or with the wrong sign the three are equal
    or swapped."""
    taus = np.array([0.1, 0.5, 0.9])
    for target, pull in ((1.0, -taus), (-1.0, 1.0 - taus)):
        inputs = {"quantiles": np.zeros((1, 3)), "target_quantiles": np.full((1, 3), target)}
        _, gradients = evaluate(quantile_huber_loss, {**inputs, "taus": taus}, kappa=1.0)
        assert gradients["quantiles"][0] == pytest.approx(pull)


def test_sum_over_learned_and_mean_over_target_quantiles():
    """Repeating the targets changes nothing; repeating the learned ones doubles the loss."""
    x = random_arrays(0, quantiles=(6, 4), target_quantiles=(6, 3))
    taus = np.random.default_rng(1).uniform(size=(6, 4))

    def value(quantiles, targets, taus):
        inputs = {"quantiles": quantiles, "target_quantiles": targets, "taus": taus}
        return f64(evaluate(quantile_huber_loss, inputs, kappa=1.0)[0].total)

    once = value(x["quantiles"], x["target_quantiles"], taus)
    assert value(x["quantiles"], np.tile(x["target_quantiles"], 2), taus) == pytest.approx(once)
    twice = value(np.tile(x["quantiles"], 2), x["target_quantiles"], np.tile(taus, 2))
    assert twice == pytest.approx(2.0 * once)


def test_settles_at_the_quantile():
    """Of 1..100 the 0.3-quantile lies between 30 and 31, up to kappa."""
    targets = np.arange(1.0, 101.0)[None]
    for place, sign in ((30.5, 0), (28.5, -1), (32.5, 1)):
        inputs = {"quantiles": np.array([[place]]), "target_quantiles": targets}
        _, gradient = evaluate(quantile_huber_loss, {**inputs, "taus": [0.3]}, kappa=0.1)
        assert np.sign(np.round(gradient["quantiles"], 9)) == sign


@each("name", ["quantiles", "target_quantiles", "taus", "weight"])
def test_wrong_shapes_are_refused(name):
    tensors = {
        "quantiles": torch.zeros(8, 4),
        "target_quantiles": torch.zeros(8, 5),
        "taus": torch.zeros(4),
        "weight": torch.zeros(8),
    }
    tensors[name] = tensors[name].unsqueeze(-1)
    with pytest.raises(AssertionError):
        quantile_huber_loss(**tensors, kappa=1.0)
    with pytest.raises(AssertionError):
        quantile_huber_loss(torch.zeros(8, 4), torch.zeros(8, 5), torch.zeros(5), kappa=1.0)


# --- the learner -----------------------------------------------------------------------------


def quantiles_of(network, obs):
    """(B, N, A) by the network's weights."""
    features = np.maximum(mlp(network.features.net, obs), 0.0)
    values = mlp(network.head.actions, features).reshape(len(obs), *network.head.shape)
    if network.head.value is None:
        return values
    return mlp(network.head.value, features)[..., None] + values - values.mean(-1, keepdims=True)


@each("double", [False, True])
@each("dueling", [False, True])
@each("weighted", [False, True])
def test_update_equals_the_papers_steps(double, dueling, weighted):
    knobs = {"num_quantiles": 5, "lr": 1e-2, "kappa": 0.5, "target_update_interval": 3}
    learner = learner_for("qr_dqn", double=double, dueling=dueling, **knobs).double()
    disagree(learner)
    online, target = copy.deepcopy(learner.network), copy.deepcopy(learner.target_network)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    taus, rows = (np.arange(5) + 0.5) / 5, np.arange(16)
    for step in range(1, 8):
        batch = as_double(batch_for(seed=step, weighted=weighted))
        following = quantiles_of(target, batch.next_obs)
        judge = quantiles_of(online, batch.next_obs) if double else following
        following = following[rows, :, judge.mean(1).argmax(-1)]
        goal = f64(batch.reward)[:, None] + f64(batch.discount)[:, None] * following
        weight = f64(batch.weight) if weighted else None
        quantiles = online(batch.obs)[torch.arange(16), :, batch.action]
        total, errors, gradient = quantile_oracle(f64(quantiles), goal, taus, 0.5, weight)
        optimizer.zero_grad()
        quantiles.backward(torch.from_numpy(gradient))
        optimizer.step()
        if step % 3 == 0:
            target = copy.deepcopy(online)
        metrics = learner.step(batch)
        assert f64(metrics["quantile_loss"]) == pytest.approx(total, rel=1e-5)
        assert f64(metrics["q_mean"]) == pytest.approx(f64(quantiles).mean(), rel=1e-5)
        np.testing.assert_allclose(f64(learner.last_td_errors), errors, rtol=1e-5)
    torch.testing.assert_close(weights_of(learner.network), weights_of(online), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        weights_of(learner.target_network), weights_of(target), rtol=0, atol=1e-6
    )


def exponential(w):
    """Quantile function of an exponential reward with mean 1."""
    return -np.log1p(-w)


def learn_one_state(learner, updates, quantile, size=128):
    """One state, one action, and an episode that ends with a reward of quantile(u)."""
    rng, everywhere = np.random.default_rng(0), torch.ones(size, 4)
    for step in range(updates):
        learner.set_lr_factor(min(1.0, 3.0 * (1.0 - step / updates)))
        evenly = (np.arange(size) + rng.uniform(size=size)) / size
        batch = batch_for(
            size,
            obs=everywhere,
            next_obs=everywhere,
            action=torch.zeros(size, dtype=torch.int64),
            reward=torch.from_numpy(quantile(evenly)).float(),
            discount=torch.zeros(size),
        )
        metrics = learner.step(batch)
    return metrics


def test_finds_the_quantiles_of_a_skewed_reward():
    learner = learner_for("qr_dqn", num_quantiles=5, lr=5e-3, kappa=0.02)
    learn_one_state(learner, 1000, exponential)
    found = f64(learner.network(torch.ones(1, 4))[0, :, 0])
    assert found == pytest.approx(exponential((np.arange(5) + 0.5) / 5), abs=0.05)


def test_every_quantile_counts_alike_for_the_action():
    learner = learner_for("qr_dqn", num_quantiles=7)
    obs = torch.randn(6, 4)
    expected = quantiles_of(learner.network, obs).mean(1)
    np.testing.assert_allclose(f64(learner.network.q_values(obs)), expected, rtol=1e-5, atol=1e-6)
    assert f64(learner.network.tau_hats) == pytest.approx((np.arange(7) + 0.5) / 7)


@each(("key", "value"), [*VALUE_BAD_KNOBS, ("num_quantiles", 0)])
def test_bad_knobs(key, value):
    assert_rejects("qr_dqn", key, value)
