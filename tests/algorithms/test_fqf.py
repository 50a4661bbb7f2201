"""Fully parameterised quantile function, Yang et al. 2019."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch

from rl_training.algorithms.fqf import fqf_fraction_loss
from rl_training.models.value_networks import MLPFQFNetwork, ValueLayers

from ..each import each
from .helpers import (
    SEEDS_AND_SIZES,
    as_double,
    assert_loss_equals,
    assert_rejects,
    bad_rates,
    evaluate,
    f64,
    numeric_gradient,
    random_arrays,
    weights_of,
)
from .test_dqn import VALUE_BAD_KNOBS, batch_for, disagree, learner_for
from .test_iqn import implicit_quantiles
from .test_qr_dqn import learn_one_state, quantile_oracle


def fractions_from(logits):
    """Cumulated softmax with a 0 in front, and the midpoints."""
    widths = np.exp(logits - logits.max(-1, keepdims=True))
    widths /= widths.sum(-1, keepdims=True)
    taus = np.concatenate([np.zeros((*widths.shape[:-1], 1)), widths.cumsum(-1)], -1)
    return taus, 0.5 * (taus[..., 1:] + taus[..., :-1])


def wasserstein(taus, quantile, points=20_001):
    """Integral of |F(w) - F(tau_hat_i)| over each [tau_i, tau_{i+1}], summed."""
    total = 0.0
    for low, high in itertools.pairwise(taus):
        w = np.linspace(low, high, points)
        total += np.trapezoid(np.abs(quantile(w) - quantile(0.5 * (low + high))), w)
    return total


def fourth_power(w):
    return w**4


# --- the fraction loss -----------------------------------------------------------------------


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("n", [2, 5, 32])
@each(("scale", "entropy_coef"), [(1.0, 0.0), (1.0, 0.5), (100.0, 1e-3)])
@each("weighted", [False, True])
def test_fraction_loss(seed, size, n, scale, entropy_coef, weighted):
    inputs = random_arrays(seed, scale, quantiles_at_taus=(size, n - 1), quantiles_hat=(size, n))
    logits = np.random.default_rng(seed + 1).standard_normal((size, n))
    inputs["taus"] = fractions_from(logits)[0].astype("f4")
    taus, at_taus, hat = (f64(inputs[k]) for k in ("taus", "quantiles_at_taus", "quantiles_hat"))
    priority = 1.0
    if weighted:
        inputs["weight"] = np.random.default_rng(seed + 2).uniform(0.1, 1.0, size).astype("f4")
        priority = f64(inputs["weight"])
    total, gradient = 0.0, np.zeros_like(taus)
    for i in range(1, n):
        slope = priority * (2.0 * at_taus[:, i - 1] - hat[:, i] - hat[:, i - 1])
        total += np.mean(slope * taus[:, i])
        gradient[:, i] += slope / size
    widths = np.diff(taus)
    entropy = np.mean(np.sum(-widths * np.log(widths), -1))
    d_width = entropy_coef * (np.log(widths) + 1.0) / size  # of -coef * entropy
    gradient[:, 1:] += d_width
    gradient[:, :-1] -= d_width
    shift = np.abs(taus - np.arange(n + 1) / n).max(-1).mean()
    terms = {"fraction_loss": total, "fraction_entropy": entropy, "fraction_shift": shift}
    expected = (total - entropy_coef * entropy, terms, {"taus": gradient})
    assert_loss_equals(fqf_fraction_loss, inputs, *expected, scale=n, entropy_coef=entropy_coef)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_gradient_is_that_of_the_wasserstein_error(n):
    """For F(w) = w^4, against the numeric derivative of the integral."""
    taus = np.sort(np.random.default_rng(n).uniform(size=n - 1))
    whole = np.concatenate([[0.0], taus, [1.0]])
    hat = 0.5 * (whole[1:] + whole[:-1])
    inputs = {
        "taus": whole[None],
        "quantiles_at_taus": fourth_power(taus)[None],
        "quantiles_hat": fourth_power(hat)[None],
    }
    _, found = evaluate(fqf_fraction_loss, inputs, entropy_coef=0.0)
    expected = numeric_gradient(
        lambda inner: wasserstein(np.concatenate([[0.0], inner, [1.0]]), fourth_power), taus, 1e-4
    )
    np.testing.assert_allclose(found["taus"][0, 1:-1], expected, atol=1e-6)


def settle(n, sign=1.0, updates=500):
    """Fractions of a network's own layer that learn against F(w) = w^4."""
    network = MLPFQFNetwork(ValueLayers(2, 2, (8,)), n, 4).double()
    features = torch.ones(1, 8, dtype=torch.float64)
    optimizer = torch.optim.Adam(network.fractions.parameters(), lr=5e-3)
    for _ in range(updates):
        taus, tau_hats = network.propose(features)
        loss = fqf_fraction_loss(
            taus,
            fourth_power(taus[:, 1:-1].detach()),
            fourth_power(tau_hats),
            entropy_coef=0.0,
        )
        optimizer.zero_grad()
        (sign * loss.total).backward()
        optimizer.step()
    return f64(taus[0]), {name: float(value.detach()) for name, value in loss.metrics.items()}


def test_settles_at_the_closed_form_of_four_fractions():
    taus, _ = settle(4)
    assert taus == pytest.approx(np.array([0.0, 0.549, 0.746, 0.887, 1.0]), abs=1e-3)
    equal = np.linspace(0.0, 1.0, 5)
    assert wasserstein(equal, fourth_power) == pytest.approx(0.0615, abs=1e-4)
    assert wasserstein(taus, fourth_power) == pytest.approx(0.0416, abs=1e-4)


def test_settles_at_the_closed_form_of_eight_fractions():
    taus, metrics = settle(8)
    assert taus[1] == pytest.approx(0.413, abs=1e-3)
    assert wasserstein(np.linspace(0.0, 1.0, 9), fourth_power) == pytest.approx(0.0311, abs=1e-4)
    assert wasserstein(taus, fourth_power) == pytest.approx(0.0204, abs=1e-4)
    assert metrics["fraction_shift"] == pytest.approx(0.311, abs=2e-3)


def test_with_the_wrong_sign_the_first_fraction_vanishes():
    taus, _ = settle(4, sign=-1.0)
    assert taus[1] < 0.05


@pytest.mark.parametrize("name", ["taus", "quantiles_at_taus", "quantiles_hat"])
def test_wrong_shapes_are_refused(name):
    tensors = {
        "taus": torch.zeros(3, 6),
        "quantiles_at_taus": torch.zeros(3, 4),
        "quantiles_hat": torch.zeros(3, 5),
    }
    tensors[name] = tensors[name][:, :-1]
    with pytest.raises(AssertionError):
        fqf_fraction_loss(**tensors, entropy_coef=0.0)


def test_a_collapsed_fraction_keeps_the_entropy_finite():
    taus = torch.tensor([[0.0, 1.0, 1.0, 1.0]], requires_grad=True)
    loss = fqf_fraction_loss(taus, torch.zeros(1, 2), torch.zeros(1, 3), entropy_coef=1.0)
    (gradient,) = torch.autograd.grad(loss.total, taus)
    assert float(loss.metrics["fraction_entropy"].detach()) == 0.0
    assert torch.isfinite(gradient).all()


# --- the network -----------------------------------------------------------------------------


@pytest.mark.parametrize("dueling", [False, True])
def test_the_network(dueling):
    network = learner_for("fqf", num_fractions=5, num_cosines=6, dueling=dueling).network
    torch.nn.init.normal_(network.fractions.weight)
    obs = torch.randn(7, 4)
    output = network(obs)
    quantiles_hat, taus, tau_hats = output
    assert quantiles_hat.shape == (7, 5, 3)
    assert taus.shape == (7, 6)
    assert tau_hats.shape == (7, 5)
    assert (taus[:, 0] == 0.0).all()
    assert (taus[:, -1] == 1.0).all()
    assert (taus.diff() > 0).all()
    features = f64(network.features(obs))
    layer = network.fractions
    expected, midpoints = fractions_from(features @ f64(layer.weight).T + f64(layer.bias))
    np.testing.assert_allclose(f64(taus), expected, atol=1e-5)
    np.testing.assert_allclose(f64(tau_hats), midpoints, atol=1e-5)
    at_midpoints = implicit_quantiles(network, obs, midpoints)
    np.testing.assert_allclose(f64(quantiles_hat), at_midpoints, rtol=1e-3, atol=1e-4)
    q = np.sum(np.diff(expected)[..., None] * at_midpoints, 1)
    np.testing.assert_allclose(f64(output.q_values), q, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(f64(network.q_values(obs)), q, rtol=1e-3, atol=1e-4)
    assert not np.allclose(q, at_midpoints.mean(1), atol=1e-3)  # a sum by widths, not a mean


def test_fractions_start_out_equal():
    learner = learner_for("fqf")
    _, taus, _ = learner.network(torch.randn(50, 4))
    assert f64(taus) == pytest.approx(np.broadcast_to(np.linspace(0, 1, 33), (50, 33)), abs=2e-3)
    assert not learner.network.fractions.bias.any()
    metrics = learner.step(batch_for())
    assert float(metrics["fraction_entropy"]) == pytest.approx(math.log(32), abs=1e-3)
    assert float(metrics["fraction_shift"]) < 2e-3


def test_neither_loss_reaches_the_others_parameters():
    network = learner_for("fqf", num_fractions=6, dueling=True).network
    fractions, rest = list(network.fractions.parameters()), network.quantile_parameters()
    assert len(fractions) + len(rest) == len(list(network.parameters()))
    output = network(torch.randn(8, 4))
    assert not output.tau_hats.requires_grad
    for value, own, others in (
        (output.quantiles_hat.square().sum(), rest, fractions),
        (output.q_values.square().sum(), rest, fractions),
        (output.taus.square().sum(), fractions, rest),
    ):
        found = torch.autograd.grad(value, own, retain_graph=True, allow_unused=True)
        assert all(gradient is not None for gradient in found)
        if value.requires_grad:
            found = torch.autograd.grad(value, others, retain_graph=True, allow_unused=True)
            assert all(gradient is None for gradient in found)


# --- the update ------------------------------------------------------------------------------


@each("double", [False, True])
@each("dueling", [False, True])
@each("weighted", [False, True])
def test_update_equals_the_papers_steps(double, dueling, weighted):
    knobs = {
        "num_fractions": 4,
        "num_cosines": 8,
        "lr": 1e-2,
        "fraction_lr": 3e-2,
        "entropy_coef": 0.05,
        "kappa": 0.5,
        "target_update_interval": 2,
    }
    learner = learner_for("fqf", double=double, dueling=dueling, **knobs).double()
    disagree(learner)
    online, target = copy.deepcopy(learner.network), copy.deepcopy(learner.target_network)
    quantile_adam = torch.optim.Adam(online.quantile_parameters(), lr=1e-2)
    fraction_adam = torch.optim.Adam(online.fractions.parameters(), lr=3e-2)
    rows, index = np.arange(16), torch.arange(16)

    def proposal(network, obs):
        features = f64(network.features(obs))
        layer = network.fractions
        return fractions_from(features @ f64(layer.weight).T + f64(layer.bias))

    for step in range(1, 8):
        batch = as_double(batch_for(seed=step, weighted=weighted))
        action = f64(batch.action).astype(int)
        next_taus, next_hats = proposal(target, batch.next_obs)
        following = implicit_quantiles(target, batch.next_obs, next_hats)
        next_widths = np.diff(next_taus)
        next_q = np.sum(next_widths[..., None] * following, 1)
        if double:
            judge_taus, judge_hats = proposal(online, batch.next_obs)
            judged = implicit_quantiles(online, batch.next_obs, judge_hats)
            best = np.sum(np.diff(judge_taus)[..., None] * judged, 1).argmax(-1)
        else:
            best = next_q.argmax(-1)
        following = following[rows, :, best]
        np.testing.assert_allclose(np.sum(next_widths * following, 1), next_q[rows, best])
        goal = f64(batch.reward)[:, None] + f64(batch.discount)[:, None] * following

        taus, hats = proposal(online, batch.obs)
        at = np.concatenate([hats, taus[:, 1:-1]], -1)  # quantiles are learned at both
        features = online.features(batch.obs)
        quantiles = online.quantiles(features, torch.from_numpy(at))[index, :, batch.action]
        by_hand = implicit_quantiles(online, batch.obs, at)[rows, :, action]
        np.testing.assert_allclose(f64(quantiles), by_hand, rtol=1e-4, atol=1e-5)
        hat, at_taus = by_hand[:, :4], by_hand[:, 4:]
        weight = f64(batch.weight) if weighted else None
        total, errors, gradient = quantile_oracle(by_hand, goal, at, 0.5, weight, next_widths)

        slope = torch.from_numpy(2.0 * at_taus - hat[:, 1:] - hat[:, :-1])
        widths = online.fractions(features.detach()).softmax(-1)
        inner = widths.cumsum(-1)[:, :-1]
        entropy = -(widths * widths.log()).sum(-1).mean()
        per_row = (slope * inner).sum(-1)
        fraction_loss = (per_row * batch.weight if weighted else per_row).mean()

        quantile_adam.zero_grad()
        fraction_adam.zero_grad()
        quantiles.backward(torch.from_numpy(gradient))
        (fraction_loss - 0.05 * entropy).backward()
        quantile_adam.step()
        fraction_adam.step()
        if step % 2 == 0:
            target = copy.deepcopy(online)

        metrics = learner.step(batch)
        assert f64(metrics["quantile_loss"]) == pytest.approx(total, rel=1e-4)
        assert f64(metrics["fraction_loss"]) == pytest.approx(fraction_loss.item(), abs=1e-5)
        assert f64(metrics["fraction_entropy"]) == pytest.approx(entropy.item(), rel=1e-5)
        q_mean = np.mean(np.sum(np.diff(taus) * hat, 1))
        assert f64(metrics["q_mean"]) == pytest.approx(q_mean, rel=1e-4, abs=1e-6)
        np.testing.assert_allclose(f64(learner.last_td_errors), errors, rtol=1e-4)
    torch.testing.assert_close(weights_of(learner.network), weights_of(online), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        weights_of(learner.target_network), weights_of(target), rtol=0, atol=1e-5
    )


def test_the_fractions_have_an_optimiser_of_their_own():
    for still, moving in (("fractions", "quantiles"), ("quantiles", "fractions")):
        learner = learner_for("fqf")
        before = copy.deepcopy(learner.network)
        learner.set_lr_factor(0.0, only=(still,))
        for seed in range(3):
            learner.step(batch_for(seed=seed))
        moved = {
            "fractions": not torch.equal(
                weights_of(before.fractions), weights_of(learner.network.fractions)
            ),
            "quantiles": not torch.equal(
                weights_of(before.features), weights_of(learner.network.features)
            ),
        }
        assert moved[moving]
        assert not moved[still]


def test_fractions_move_to_where_a_skewed_reward_needs_them():
    """Reward 2 u^4, u uniform, so that F(w) = 2 w^4: the best eight fractions have 0.66 of
    the error of equal ones. Quantiles are exact meanwhile, and so is their weighted sum."""

    def quantile(w):
        return 2.0 * w**4

    learner = learner_for("fqf", num_fractions=8, num_cosines=16, lr=3e-3, kappa=0.02)
    metrics = learn_one_state(learner, 700, quantile, size=64)
    output = learner.network(torch.ones(1, 4))
    taus, found = f64(output.taus[0]), f64(output.quantiles_hat[0, :, 0])
    assert found == pytest.approx(quantile(f64(output.tau_hats[0])), abs=0.05)
    assert f64(output.q_values[0, 0]) == pytest.approx(0.4, abs=0.02)
    equal = np.linspace(0.0, 1.0, 9)
    assert wasserstein(taus, quantile) < 0.85 * wasserstein(equal, quantile)
    assert float(metrics["fraction_shift"]) > 0.05
    assert 0.7 * math.log(8) < float(metrics["fraction_entropy"]) < 0.995 * math.log(8)


def test_entropy_holds_fractions_together():
    shifts = []
    for entropy_coef in (0.0, 10.0):
        learner = learner_for("fqf", num_fractions=4, fraction_lr=1e-2, entropy_coef=entropy_coef)
        metrics = learn_one_state(learner, 60, np.square, size=32)
        shifts.append(float(metrics["fraction_shift"]))
    assert shifts[1] < 0.01 < 0.05 < shifts[0]


@each(
    ("key", "value"),
    [
        *VALUE_BAD_KNOBS,
        *bad_rates("fraction_lr"),
        ("num_fractions", 1),
        ("num_cosines", 0),
        ("entropy_coef", -1.0),
        ("entropy_coef", math.inf),
    ],
)
def test_bad_knobs(key, value):
    assert_rejects("fqf", key, value)
