"""Advantage-weighted regression, Peng et al. 2019."""

import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import awr_loss

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
)


def oracle(log_prob, value, returns, *, beta, max_weight, advantage_mean=0.0, advantage_std=1.0):
    """Total, terms and gradients of -mean(min(exp(A / beta), cap) log pi) + mean((R-V)^2) / 2."""
    log_prob, value, returns = f64(log_prob), f64(value), f64(returns)
    advantage = (returns - value - advantage_mean) / advantage_std
    weight = capped_exp(advantage / beta, max_weight)
    policy_loss, d_log_prob = weighted_likelihood(log_prob, weight)
    value_loss, d_value = half_squares(returns, value)
    terms = {"policy_loss": policy_loss, "value_loss": value_loss, "value_mean": value.mean()}
    terms |= weight_spread(weight, max_weight)
    return policy_loss + value_loss, terms, {"log_prob": d_log_prob, "value": d_value}


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("scale", [1.0, 1e3])
@each(
    "knobs",
    [
        {"beta": 1.0, "max_weight": 20.0},
        {"beta": 0.05, "max_weight": 20.0},
        {"beta": 1e-3, "max_weight": 100.0},
        {"beta": 1e3, "max_weight": 20.0},
        {"beta": 1.0, "max_weight": 0.5},
        {"beta": 0.2, "max_weight": 1e6},
        {"beta": 0.5, "max_weight": 20.0, "advantage_mean": 0.3, "advantage_std": 2.0},
        {"beta": 1.0, "max_weight": 3.0, "advantage_mean": -1.0, "advantage_std": 0.1},
    ],
)
def test_loss(seed, size, scale, knobs):
    inputs = random_arrays(seed, scale, value=size, returns=size)
    inputs |= random_arrays(seed + 100, 3.0, log_prob=size)
    expected = oracle(**inputs, **knobs)
    assert_loss_equals(awr_loss, inputs, *expected, free=["returns"], **knobs)


def test_returns_are_a_fixed_target():
    inputs = random_arrays(0, log_prob=8, value=8, returns=8)
    assert not gradient_reaches(awr_loss, inputs, "returns", beta=1.0, max_weight=20.0)


def test_no_gradient_reaches_the_moments():
    inputs = random_arrays(0, log_prob=8, value=8, returns=8, advantage_mean=())
    inputs["advantage_std"] = np.float32(0.7)
    for name in ("advantage_mean", "advantage_std"):
        assert not gradient_reaches(awr_loss, inputs, name, beta=1.0, max_weight=20.0)


@each("cap", [0.5, 1.5, 3.3, 7.0, 20.0, 100.0])
@each("dtype", [torch.float32, torch.float64])
def test_the_cap_is_exact(cap, dtype):
    inputs = {"log_prob": np.ones(1), "value": np.zeros(1), "returns": np.full(1, 1e6)}
    loss, gradients = evaluate(awr_loss, inputs, dtype, beta=1.0, max_weight=cap)
    exact = f64(torch.tensor(cap, dtype=dtype))
    assert f64(loss.metrics["weight_mean"]) == exact
    assert f64(loss.metrics["weight_capped"]) == 1.0
    assert gradients["log_prob"] == -exact


def test_broadcast_is_refused():
    column, row = torch.zeros(4, 1), torch.zeros(4)
    for arguments in ((row, row, column), (row, column, row), (column, row, row)):
        with pytest.raises(AssertionError):
            awr_loss(*arguments, beta=1.0, max_weight=20.0)


def final_returns(learner, batch):
    """R continued by V of the final state where a time limit cut the episode."""
    returns = f64(batch.returns_to_go)
    if batch.final_obs is not None:
        returns = returns + f64(batch.bootstrap_discount) * value_of(
            learner.model.value, batch.final_obs
        )
    return returns


@pytest.mark.parametrize(("normalize", "beta"), [(True, 1.0), (False, 30.0)])
def test_update(pendulum, normalize, beta):
    """Advantages from the value before the step, by moments that have seen this batch."""
    learner = make_learner(
        "awr", pendulum.spaces, normalize_advantages=normalize, temperature=beta
    ).double()
    table = table_for(learner, pendulum)
    mean = square = None
    for _ in range(3):
        batch = table.sample(64)
        value, returns = value_of(learner.model.value, batch.obs), final_returns(learner, batch)
        log_prob = policy_log_prob(learner.policy, batch.obs, batch.action)
        rate = learner.params.advantage_norm_rate
        mean = moved(mean, np.mean(returns - value), rate)
        square = moved(square, np.mean((returns - value) ** 2), rate)
        moments = {"advantage_mean": mean, "advantage_std": np.sqrt(square - mean**2) + 1e-5}
        knobs = {"beta": beta, "max_weight": 20.0} | (moments if normalize else {})
        _, terms, _ = oracle(log_prob, value, returns, **knobs)
        metrics = learner.step(as_double(batch))
        for name, expected in terms.items():
            np.testing.assert_allclose(f64(metrics[name]), expected, rtol=1e-6, err_msg=name)


def test_normalised_advantages_do_not_depend_on_the_reward_scale():
    def mean_weight(normalize, scale):
        learner = make_learner("awr", normalize_advantages=normalize)
        batch = random_batch(size=64)
        return float(
            learner.step(batch._replace(returns_to_go=batch.returns_to_go * scale))["weight_mean"]
        )

    assert mean_weight(True, 1e3) == pytest.approx(mean_weight(True, 1e4), rel=1e-2)
    assert mean_weight(False, 1e3) > 2.0 * mean_weight(True, 1e3)


def test_expert_rows_weigh_more_than_random_ones(pendulum):
    learner = make_learner("awr", pendulum.spaces)
    train(learner, pendulum, 300, batch_size=128)
    batch = table_for(learner, pendulum).gather(torch.arange(0, len(pendulum), 7))
    advantage = final_returns(learner, batch) - value_of(learner.model.value, batch.obs)
    standard = (advantage - float(learner.advantages.mean)) / float(learner.advantages.now.std)
    weight = capped_exp(standard / learner.params.temperature, learner.params.max_weight)
    expert = np.arange(0, len(pendulum), 7) < len(pendulum) // 2
    assert weight[expert].mean() >= 1.5 * weight[~expert].mean()


def test_discrete_loss_falls(cartpole):
    assert_learns_discrete("awr", cartpole, policy_lr=1e-3)


@each(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *GAMMA_BAD_KNOBS,
        *bad_rates("policy_lr", "value_lr"),
        ("temperature", 0.0),
        ("temperature", -1.0),
        ("max_weight", 0.0),
        ("max_weight", -5.0),
        ("max_weight", math.inf),
        ("advantage_norm_rate", -0.1),
        ("advantage_norm_rate", 1.1),
        ("normalize_advantages", "yes"),
    ],
)
def test_bad_knobs(key, value):
    assert_rejects("awr", key, value)
