"""Monotonic advantage re-weighted imitation learning, Wang et al. 2018."""

import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import marwil_loss

from ..each import each
from .helpers import (
    COMMON_BAD_KNOBS,
    GAMMA_BAD_KNOBS,
    SEEDS_AND_SIZES,
    as_double,
    assert_learns_discrete,
    assert_loss_equals,
    assert_rejects,
    bad_rates,
    capped_exp,
    evaluate,
    f64,
    gradient_reaches,
    half_squares,
    make_learner,
    moved,
    policy_log_prob,
    random_arrays,
    random_batch,
    table_for,
    train,
    value_of,
    weight_spread,
    weighted_likelihood,
    weights_of,
)

KNOBS = {"beta": 1.0, "max_weight": 20.0, "value_coef": 1.0}


def oracle(log_prob, value, returns, squared_advantage_norm, *, beta, max_weight, value_coef):
    """Total, terms and gradients of -mean(exp(beta A / c) log pi) + value_coef mean(A^2) / 2."""
    log_prob, value, returns = f64(log_prob), f64(value), f64(returns)
    norm = 1e-8 + np.sqrt(f64(squared_advantage_norm))
    exponent = beta * (returns - value) / norm
    weight = capped_exp(exponent, max_weight)
    policy_loss, d_log_prob = weighted_likelihood(log_prob, weight)
    value_loss, d_value = half_squares(returns, value)
    terms = {"policy_loss": policy_loss, "value_loss": value_loss, "value_mean": value.mean()}
    terms |= weight_spread(weight, max_weight)
    gradients = {"log_prob": d_log_prob, "value": value_coef * d_value}
    return policy_loss + value_coef * value_loss, terms, gradients


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("scale", [1.0, 1e3])
@each("norm", [1e-4, 1.0, 1e6])
@each(
    "knobs",
    [
        KNOBS,
        {"beta": 0.0, "max_weight": 20.0, "value_coef": 1.0},
        {"beta": 1e-3, "max_weight": 20.0, "value_coef": 0.1},
        {"beta": 50.0, "max_weight": 1e4, "value_coef": 10.0},
        {"beta": 1.0, "max_weight": 1.5, "value_coef": 0.5},
    ],
)
def test_loss(seed, size, scale, norm, knobs):
    inputs = random_arrays(seed, scale, value=size, returns=size)
    inputs |= random_arrays(seed + 100, 3.0, log_prob=size)
    inputs["squared_advantage_norm"] = np.float32(norm)
    expected = oracle(**inputs, **knobs)
    assert_loss_equals(marwil_loss, inputs, *expected, free=["returns"], **knobs)


def test_returns_are_a_fixed_target():
    inputs = random_arrays(0, log_prob=8, value=8, returns=8)
    assert not gradient_reaches(marwil_loss, inputs, "returns", squared_advantage_norm=1.0, **KNOBS)


def test_norm_may_be_a_number():
    inputs = random_arrays(0, log_prob=8, value=8, returns=8)
    as_number, _ = evaluate(marwil_loss, inputs, squared_advantage_norm=4.0, **KNOBS)
    inputs["squared_advantage_norm"] = np.float32(4.0)
    as_tensor, _ = evaluate(marwil_loss, inputs, **KNOBS)
    torch.testing.assert_close(as_number.total, as_tensor.total)


def test_advantages_that_are_all_zero_give_weight_one():
    zero = np.zeros(4)
    loss, _ = evaluate(
        marwil_loss,
        {"log_prob": np.ones(4), "value": zero, "returns": zero},
        squared_advantage_norm=0.0,
        **KNOBS,
    )
    assert f64(loss.total) == -1.0


@each("cap", [1.0, 1.5, 3.3, 7.0, 20.0, 100.0])
@each("dtype", [torch.float32, torch.float64])
def test_the_cap_holds_the_exponent(cap, dtype):
    inputs = {"log_prob": np.ones(8), "value": np.zeros(8), "returns": np.full(8, 1e6)}
    loss, gradients = evaluate(
        marwil_loss,
        inputs,
        dtype,
        squared_advantage_norm=1.0,
        beta=1.0,
        max_weight=cap,
        value_coef=1.0,
    )
    np.testing.assert_allclose(gradients["log_prob"], -cap / 8, rtol=1e-6)
    assert float(loss.metrics["weight_capped"]) == 1.0


def test_broadcast_is_refused():
    column, row = torch.zeros(4, 1), torch.zeros(4)
    for arguments in ((row, row, column), (row, column, row), (column, row, row)):
        with pytest.raises(AssertionError):
            marwil_loss(*arguments, 1.0, **KNOBS)


def test_the_norm_starts_from_the_first_batch_then_moves():
    rate = 0.25
    learner = make_learner("marwil", advantage_norm_rate=rate, lr=1e-2)
    expected = None
    for seed in range(4):
        batch = random_batch(seed=seed)
        advantage = f64(batch.returns_to_go) - value_of(learner.model.value, batch.obs)
        expected = moved(expected, np.mean(advantage**2), rate)
        metrics = learner.step(batch)
        np.testing.assert_allclose(f64(metrics["advantage_norm"]), np.sqrt(expected), rtol=1e-5)
        state = learner.training_state()["modules"]["advantages.mean_square"]
        np.testing.assert_allclose(f64(state), expected, rtol=1e-5)


def test_the_norm_returns_with_the_state():
    learner = make_learner("marwil")
    learner.step(random_batch())
    other = make_learner("marwil", seed=1)
    other.load_training_state(learner.training_state())
    batch = random_batch(seed=1)
    expected, found = learner.step(batch), other.step(batch)
    assert expected.keys() == found.keys()
    for name in expected:
        assert torch.equal(expected[name], found[name]), name


def test_update_scales_advantages_by_the_moved_norm():
    learner = make_learner("marwil").double()
    for seed in range(2):
        batch = random_batch(seed=seed, size=32)
        value = value_of(learner.model.value, batch.obs)
        log_prob = policy_log_prob(learner.policy, batch.obs, batch.action)
        metrics = learner.step(as_double(batch))
        _, terms, _ = oracle(
            log_prob, value, batch.returns_to_go, learner.advantages.mean_square, **KNOBS
        )
        for name, expected in terms.items():
            np.testing.assert_allclose(f64(metrics[name]), expected, rtol=1e-6, err_msg=name)


def test_returns_continue_with_the_value_at_a_time_limit(pendulum):
    learner = make_learner("marwil", pendulum.spaces).double()
    batch = table_for(learner, pendulum).sample(64)
    assert (batch.bootstrap_discount > 0).all()
    value, final = (value_of(learner.model.value, obs) for obs in (batch.obs, batch.final_obs))
    returns = f64(batch.returns_to_go) + f64(batch.bootstrap_discount) * final
    metrics = learner.step(as_double(batch))
    expected = 0.5 * np.mean((returns - value) ** 2)
    np.testing.assert_allclose(f64(metrics["value_loss"]), expected, rtol=1e-6)


@pytest.mark.parametrize("data", ["pendulum", "cartpole"])
def test_beta_zero_is_behaviour_cloning_to_the_last_bit(data, request):
    dataset = request.getfixturevalue(data)
    cloned = make_learner("bc", dataset.spaces, seed=3, lr=1e-3)
    weighted = make_learner("marwil", dataset.spaces, seed=3, lr=1e-3, inverse_temperature=0.0)
    greedy = make_learner("marwil", dataset.spaces, seed=3, lr=1e-3, inverse_temperature=1.0)
    start = weights_of(cloned.policy)
    for learner in (cloned, weighted, greedy):
        train(learner, dataset, 50)
    assert torch.equal(weights_of(cloned.policy), weights_of(weighted.policy))
    assert not torch.equal(weights_of(cloned.policy), weights_of(greedy.policy))
    assert not torch.equal(weights_of(cloned.policy), start)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_value_coef_acts_on_the_value_and_through_it_alone(pendulum, beta):
    learners = [
        make_learner("marwil", pendulum.spaces, inverse_temperature=beta, value_coef=coef)
        for coef in (0.1, 1.0)
    ]
    for learner in learners:
        train(learner, pendulum, 20)
    assert not torch.allclose(*(weights_of(learner.model.value) for learner in learners))
    assert torch.equal(*(weights_of(learner.policy) for learner in learners)) == (beta == 0.0)


def test_discrete_loss_falls(cartpole):
    assert_learns_discrete("marwil", cartpole, lr=1e-3)


@each(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *GAMMA_BAD_KNOBS,
        *bad_rates("lr"),
        ("inverse_temperature", -1.0),
        ("max_weight", 0.0),
        ("max_weight", -5.0),
        ("max_weight", 0.9),
        ("max_weight", math.inf),
        ("value_coef", 0.0),
        ("value_coef", -1.0),
        ("advantage_norm_rate", 0.0),
        ("advantage_norm_rate", 1.1),
    ],
)
def test_bad_knobs(key, value):
    assert_rejects("marwil", key, value)
