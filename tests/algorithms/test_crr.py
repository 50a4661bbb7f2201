"""Critic-regularized regression, Wang et al. 2020."""

import copy
import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import crr_loss

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

EXP_MEAN = {"advantage_type": "mean", "weight_type": "exp", "beta": 1.0, "max_weight": 20.0}


def oracle(log_prob, q_data, q_samples, *, advantage_type, weight_type, beta, max_weight):
    """Total, terms and gradients of -mean(w log pi), A = Q(s, a) - mean or max_j Q(s, a_j)."""
    baseline = {"mean": np.mean, "max": np.max}[advantage_type](f64(q_samples), axis=0)
    advantage = f64(q_data) - baseline
    if weight_type == "binary":
        weight = (advantage > 0.0).astype(np.float64)
    else:
        weight = capped_exp(advantage / beta, max_weight)
    total, d_log_prob = weighted_likelihood(f64(log_prob), weight)
    terms = {"policy_loss": total, "advantage_mean": advantage.mean()}
    terms |= weight_spread(weight, max_weight)
    return total, terms, {"log_prob": d_log_prob}


@each(("seed", "size"), SEEDS_AND_SIZES)
@each(("scale", "samples"), [(1.0, 4), (1e3, 1), (1e3, 7)])
@each("advantage_type", ["mean", "max"])
@each(
    "weights",
    [
        {"weight_type": "exp", "beta": 1.0, "max_weight": 20.0},
        {"weight_type": "exp", "beta": 0.2, "max_weight": 1.5},
        {"weight_type": "exp", "beta": 1e4, "max_weight": 0.5},
        {"weight_type": "binary", "beta": 1.0, "max_weight": 20.0},
        {"weight_type": "binary", "beta": 1e-3, "max_weight": 5.0},
    ],
)
def test_loss(seed, size, scale, samples, advantage_type, weights):
    # sums of sixteenths are exact in float32, so that both sides see the same advantage
    inputs = random_arrays(seed, 16.0 * scale, q_data=size, q_samples=(samples, size))
    inputs = {name: np.round(array) / np.float32(16.0) for name, array in inputs.items()}
    inputs |= random_arrays(seed + 100, 3.0, log_prob=size)
    knobs = {"advantage_type": advantage_type, **weights}
    assert_loss_equals(crr_loss, inputs, *oracle(**inputs, **knobs), scale=scale, **knobs)


def test_binary_weights_are_zero_or_one():
    inputs = {
        "log_prob": np.ones(3),
        "q_data": np.array([1.0, 0.0, -1.0]),
        "q_samples": np.zeros((4, 3)),
    }
    knobs = {**EXP_MEAN, "weight_type": "binary"}
    _, gradients = evaluate(crr_loss, inputs, **knobs)
    assert (gradients["log_prob"] == np.array([-1.0, 0.0, 0.0]) / 3).all()


def test_max_is_never_easier_than_mean():
    inputs = random_arrays(0, log_prob=64, q_data=64, q_samples=(4, 64))
    mean, high = (
        evaluate(crr_loss, inputs, **{**EXP_MEAN, "advantage_type": kind})[1]["log_prob"]
        for kind in ("mean", "max")
    )
    assert (high >= mean).all()  # gradients are minus the weights
    assert (high > mean).any()


@each("column", ["log_prob", "q_data", "q_samples", "both"])
def test_a_broadcast_to_a_square_is_refused(column):
    shapes = {"log_prob": (8,), "q_data": (8,), "q_samples": (4, 8)}
    for name in ("q_data", "q_samples") if column == "both" else (column,):
        shapes[name] = (*shapes[name], 1)
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    with pytest.raises(AssertionError):
        crr_loss(**tensors, **EXP_MEAN)


@pytest.mark.parametrize("key", ["advantage_type", "weight_type"])
def test_the_loss_refuses_unknown_words(key):
    tensors = {"log_prob": torch.zeros(2), "q_data": torch.zeros(2), "q_samples": torch.ones(4, 2)}
    with pytest.raises((ValueError, KeyError, AssertionError)):
        crr_loss(**tensors, **{**EXP_MEAN, key: "median"})


@each("advantage_type", ["mean", "max"])
@each("weight_type", ["exp", "binary"])
def test_update(advantage_type, weight_type):
    """Both losses see the networks as the update before left them."""
    learner = make_learner(
        "crr",
        advantage_type=advantage_type,
        weight_type=weight_type,
        temperature=0.1,
        critic_lr=1e-2,
    ).double()
    noise = record_noise(learner)
    for seed in range(3):
        noise.clear()
        before = copy.deepcopy(learner)
        batch = random_batch(seed=seed)
        metrics = learner.step(as_double(batch))
        td_noise, sample_noise = noise
        assert td_noise.shape == (16, 2)
        assert sample_noise.shape == (learner.params.num_action_samples, 16, 2)

        old, critics = before.policy, before.model.critics
        target, _ = policy_td_target(old, before.target_critics, batch, td_noise)
        critic_loss, _ = squared_td_error(critics_of(critics, batch.obs, batch.action), target)
        np.testing.assert_allclose(f64(metrics["critic_loss"]), critic_loss, rtol=1e-6)

        samples, _ = policy_sample(old, batch.obs, sample_noise)
        knobs = {
            name: getattr(learner.params, name)
            for name in ("advantage_type", "weight_type", "max_weight")
        }
        knobs["beta"] = learner.params.temperature
        _, terms, _ = oracle(
            policy_log_prob(old, batch.obs, batch.action),
            critics_of(critics, batch.obs, batch.action).min(0),
            critics_of(critics, batch.obs, samples).min(0),
            **knobs,
        )
        for name, expected in terms.items():
            np.testing.assert_allclose(f64(metrics[name]), expected, rtol=1e-6, err_msg=name)
        assert_targets_follow(
            before.target_critics, learner.model.critics, learner.target_critics, 5e-3
        )


def test_terminal_rows_do_not_bootstrap():
    learner = make_learner("crr").double()
    batch = as_double(random_batch())
    batch = batch._replace(discount=torch.zeros_like(batch.discount))
    expected, _ = squared_td_error(
        critics_of(learner.model.critics, batch.obs, batch.action), f64(batch.reward)
    )
    metrics = learner.step(batch._replace(next_obs=batch.next_obs * 1e3))
    np.testing.assert_allclose(f64(metrics["critic_loss"]), expected, rtol=1e-9)


def test_trains_on_data(pendulum):
    metrics = train(make_learner("crr", pendulum.spaces), pendulum, 20)
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
        ("num_action_samples", 0),
        ("num_action_samples", -3),
        ("advantage_type", "median"),
        ("weight_type", "softmax"),
    ],
)
def test_bad_knobs(key, value):
    assert_rejects("crr", key, value)
