"""SAC: losses against NumPy, order of steps, temperature, terminal rows, bad knobs."""

import copy

import numpy as np
import pytest
import torch

from .helpers import (
    as_double,
    assert_targets_follow,
    critics_of,
    f64,
    make_learner,
    policy_td_target,
    random_batch,
    record_noise,
    squared_td_error,
    tanh_gaussian_sample,
)


def test_update_follows_the_papers_order():
    """Critics first; the policy is rated by the critics that this step left."""
    learner = make_learner("sac", critic_lr=1e-2).double()
    noise = record_noise(learner)
    for seed in range(3):
        noise.clear()
        before = copy.deepcopy(learner)
        batch = random_batch(seed=seed)
        metrics = learner.step(as_double(batch))
        td_noise, policy_noise = noise
        temperature = float(before.log_temperature.detach().exp())
        plain, next_log_prob = policy_td_target(
            before.policy, before.target_critics, batch, td_noise
        )
        target = plain - f64(batch.discount) * temperature * next_log_prob
        values = critics_of(before.model.critics, batch.obs, batch.action)
        expected, _ = squared_td_error(values, target)
        np.testing.assert_allclose(f64(metrics["critic_loss"]), expected, rtol=1e-6)

        new = learner.model.critics
        action, log_prob = tanh_gaussian_sample(before.policy, batch.obs, policy_noise)
        rating = critics_of(new, batch.obs, action).min(0)
        np.testing.assert_allclose(
            f64(metrics["policy_loss"]), np.mean(temperature * log_prob - rating), rtol=1e-6
        )
        np.testing.assert_allclose(f64(metrics["entropy"]), -np.mean(log_prob), rtol=1e-6)
        wanted = np.log(temperature) * (-np.mean(log_prob) - learner.target_entropy)
        np.testing.assert_allclose(f64(metrics["temperature_loss"]), wanted, atol=1e-9)
        assert_targets_follow(before.target_critics, new, learner.target_critics, 5e-3)


def test_the_target_entropy_is_minus_the_action_components():
    assert make_learner("sac").target_entropy == -2.0
    assert make_learner("sac", target_entropy=-3.0).target_entropy == -3.0


def test_temperature_moves_towards_the_target_entropy():
    for target, direction in ((-50.0, -1), (50.0, 1)):
        learner = make_learner("sac", target_entropy=target, temperature_lr=0.1)
        learner.step(random_batch())
        assert np.sign(float(learner.log_temperature)) == direction


def test_a_fixed_temperature_stays():
    learner = make_learner("sac", fixed_temperature=0.2)
    metrics = learner.step(random_batch())
    assert "temperature" not in learner.optimizers
    assert float(metrics["temperature"]) == pytest.approx(0.2)
    assert "temperature_loss" not in metrics
    assert float(learner.log_temperature.exp()) == pytest.approx(0.2)


def test_terminal_rows_do_not_bootstrap():
    learner = make_learner("sac").double()
    batch = as_double(random_batch())
    batch = batch._replace(discount=torch.zeros_like(batch.discount))
    values = critics_of(learner.model.critics, batch.obs, batch.action)
    expected, _ = squared_td_error(values, f64(batch.reward))
    metrics = learner.step(batch)
    np.testing.assert_allclose(f64(metrics["critic_loss"]), expected, rtol=1e-6)
