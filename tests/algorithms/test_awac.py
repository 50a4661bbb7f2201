"""Advantage-weighted actor-critic, Nair et al. 2020."""

import copy
import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import awac_loss

from ..each import each
from .helpers import (
    COMMON_BAD_KNOBS,
    SEEDS_AND_SIZES,
    TARGET_BAD_KNOBS,
    as_double,
    assert_loss_equals,
    assert_rejects,
    assert_targets_follow,
    bad_rates,
    capped_exp,
    critics_of,
    evaluate,
    f64,
    logsumexp,
    make_learner,
    policy_log_prob,
    policy_sample,
    policy_td_target,
    random_arrays,
    random_batch,
    record_noise,
    squared_td_error,
    train,
    weight_spread,
    weighted_likelihood,
)

EXP = {"weight_type": "exp", "beta": 1.0, "max_weight": 100.0}


def oracle(log_prob, q_data, q_policy, *, beta, weight_type, max_weight):
    """Total, terms and gradients of -mean(w log pi), A = Q(s, a) - Q(s, a')."""
    advantage = f64(q_data) - f64(q_policy)
    if weight_type == "softmax":
        exponent = advantage / beta
        weight = advantage.size * np.exp(exponent - logsumexp(exponent, 0))
    else:
        weight = capped_exp(advantage / beta, max_weight)
    total, d_log_prob = weighted_likelihood(f64(log_prob), weight)
    spread = weight_spread(weight, max_weight)
    if weight_type == "softmax":
        del spread["weight_capped"]  # this form has no cap
    terms = {"policy_loss": total, "advantage_mean": advantage.mean(), **spread}
    return total, terms, {"log_prob": d_log_prob}


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("scale", [1.0, 1e3])
@each("weight_type", ["exp", "softmax"])
@each(
    ("beta", "max_weight"), [(1.0 / 3.0, 100.0), (1.0, 1.5), (0.01, 20.0), (1e4, 0.5), (2.0, 1e6)]
)
def test_loss(seed, size, scale, weight_type, beta, max_weight):
    # sums of sixteenths are exact in float32, so that both sides see the same advantage
    inputs = random_arrays(seed, 16.0 * scale, q_data=size, q_policy=size)
    inputs = {name: np.round(array) / np.float32(16.0) for name, array in inputs.items()}
    inputs |= random_arrays(seed + 100, 3.0, log_prob=size)
    knobs = {"beta": beta, "weight_type": weight_type, "max_weight": max_weight}
    assert_loss_equals(awac_loss, inputs, *oracle(**inputs, **knobs), scale=scale, **knobs)


@each("scale", [0.0, 1.0, 1e6])
@each("size", [1, 7, 256])
def test_softmax_weights_sum_to_the_batch_size(scale, size):
    inputs = random_arrays(0, scale, q_data=size, q_policy=size)
    inputs["log_prob"] = np.ones(size, np.float32)
    knobs = {**EXP, "weight_type": "softmax"}
    _, gradients = evaluate(awac_loss, inputs, torch.float32, **knobs)
    assert -gradients["log_prob"].sum() * size == pytest.approx(size, rel=1e-5)


def test_exp_weights_do_not_depend_on_the_rest_of_the_batch():
    inputs = random_arrays(0, log_prob=8, q_data=8, q_policy=8)
    other = {**inputs, "q_data": inputs["q_data"] + np.float32(np.arange(8) > 0)}
    for weight_type, same in (("exp", True), ("softmax", False)):
        knobs = {**EXP, "weight_type": weight_type}
        first, second = (
            evaluate(awac_loss, values, **knobs)[1]["log_prob"][0] for values in (inputs, other)
        )
        assert (first == second) == same


@pytest.mark.parametrize("column", ["log_prob", "q_data", "q_policy"])
def test_a_broadcast_to_a_square_is_refused(column):
    tensors = {name: torch.zeros(8) for name in ("log_prob", "q_data", "q_policy")}
    tensors[column] = torch.zeros(8, 1)
    with pytest.raises(AssertionError):
        awac_loss(**tensors, **EXP)


def test_the_loss_refuses_unknown_words():
    with pytest.raises((ValueError, KeyError, AssertionError)):
        awac_loss(torch.zeros(2), torch.zeros(2), torch.zeros(2), **{**EXP, "weight_type": "max"})


@pytest.mark.parametrize("weight_type", ["exp", "softmax"])
def test_update(weight_type):
    """Both losses see the networks as the update before left them."""
    learner = make_learner("awac", weight_type=weight_type, critic_lr=1e-2).double()
    noise = record_noise(learner)
    for seed in range(3):
        noise.clear()
        before = copy.deepcopy(learner)
        batch = random_batch(seed=seed)
        metrics = learner.step(as_double(batch))
        td_noise, action_noise = noise
        assert action_noise.shape == (1, 16, 2)

        old, critics = before.policy, before.model.critics
        target, _ = policy_td_target(old, before.target_critics, batch, td_noise)
        critic_loss, _ = squared_td_error(critics_of(critics, batch.obs, batch.action), target)
        np.testing.assert_allclose(f64(metrics["critic_loss"]), critic_loss, rtol=1e-6)

        action, _ = policy_sample(old, batch.obs, action_noise[0])
        _, terms, _ = oracle(
            policy_log_prob(old, batch.obs, batch.action),
            critics_of(critics, batch.obs, batch.action).min(0),
            critics_of(critics, batch.obs, action).min(0),
            **{**EXP, "weight_type": weight_type},
        )
        for name, expected in terms.items():
            np.testing.assert_allclose(f64(metrics[name]), expected, rtol=1e-6, err_msg=name)
        assert_targets_follow(
            before.target_critics, learner.model.critics, learner.target_critics, 5e-3
        )


def test_trains_on_data(pendulum):
    metrics = train(make_learner("awac", pendulum.spaces), pendulum, 20)
    assert all(torch.isfinite(metric) for metric in metrics.values())


@each(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *TARGET_BAD_KNOBS,
        *bad_rates("policy_lr", "critic_lr"),
        ("temperature", 0.0),
        ("temperature", -1.0),
        ("max_weight", 0.0),
        ("max_weight", -5.0),
        ("max_weight", math.inf),
        ("weight_type", "binary"),
    ],
)
def test_bad_knobs(key, value):
    assert_rejects("awac", key, value)
