"""Revisited behaviour-regularised actor-critic, Tarasov et al. 2023."""

import copy

import numpy as np
import torch

from rl_training.algorithms import rebrac_policy_loss
from rl_training.algorithms.rebrac import penalised_next_value

from .helpers import (
    as_double,
    assert_loss_equals,
    assert_refuses_discrete,
    assert_rejects,
    critics_of,
    deterministic_action,
    f64,
    make_learner,
    random_arrays,
    random_batch,
    record_noise,
    smoothed_action,
    squared_td_error,
    table_for,
    train,
)


def oracle(q, action, data_action, penalty):
    """Total, terms and gradients of mean(penalty |pi - a|^2 - Q / mean|Q|)."""
    q, action, data_action = f64(q), f64(action), f64(data_action)
    distance = ((action - data_action) ** 2).sum(-1)
    scale = np.abs(q).mean()
    total = np.mean(penalty * distance - q / scale)
    slope = 2.0 * penalty * (action - data_action) / q.size
    gradients = {"q": np.full(q.shape, -1.0 / scale / q.size), "action": slope}
    gradients["data_action"] = -slope
    return total, {"policy_loss": total, "cloning_error": distance.mean()}, gradients


def test_loss():
    for seed, size in enumerate((1, 2, 33, 256)):
        for penalty in (0.0, 0.05, 3.0):
            inputs = random_arrays(seed, 10.0, q=size)
            inputs |= random_arrays(seed + 9, 0.5, action=(size, 3), data_action=(size, 3))
            expected = oracle(**inputs, penalty=penalty)
            assert_loss_equals(rebrac_policy_loss, inputs, *expected, penalty=penalty)


def test_the_target_is_penalised_only_where_the_next_action_is_known():
    q = torch.tensor([[3.0, 3.0], [2.0, 4.0]])
    action, data = torch.tensor([[1.0, 0.0]] * 2), torch.zeros(2, 2)
    found = penalised_next_value(q, action, data, torch.tensor([1.0, 0.0]), 0.5)
    assert found.tolist() == [1.5, 3.0]


def test_update():
    learner = make_learner("rebrac", policy_penalty=0.3, critic_penalty=0.7).double()
    noise = record_noise(learner)
    before, batch = copy.deepcopy(learner), random_batch()
    metrics = learner.step(as_double(batch))
    (drawn,) = noise
    next_action = smoothed_action(before.target_actor, batch.next_obs, drawn, 0.2, 0.5)
    distance = ((next_action - f64(batch.next_action)) ** 2).sum(-1)
    next_q = critics_of(before.target_critics, batch.next_obs, next_action).min(0)
    value = next_q - 0.7 * f64(batch.has_next_action) * distance
    target = f64(batch.reward) + f64(batch.discount) * value
    expected, _ = squared_td_error(critics_of(before.critics, batch.obs, batch.action), target)
    np.testing.assert_allclose(f64(metrics["critic_loss"]), expected, rtol=1e-6)
    action = deterministic_action(before.actor, batch.obs)
    q = critics_of(learner.critics, batch.obs, action).min(0)
    _, terms, _ = oracle(q, action, batch.action, 0.3)
    for name, value in terms.items():
        np.testing.assert_allclose(f64(metrics[name]), value, rtol=1e-6, err_msg=name)
    assert len(learner.critics.net.norm_scales) == 2, "the critics have LayerNorm"


def test_batches_hold_the_next_action_of_the_data(pendulum):
    table = table_for(make_learner("rebrac", pendulum.spaces), pendulum)
    batch = table.everything()
    ended = pendulum.terminations | pendulum.truncations
    assert torch.equal(batch.has_next_action == 0.0, torch.from_numpy(ended))
    assert torch.equal(batch.next_action[:-1], batch.action[1:])


def test_trains_on_data(pendulum):
    metrics = train(make_learner("rebrac", pendulum.spaces), pendulum, 20)
    assert all(torch.isfinite(metric) for metric in metrics.values())


def test_refusals():
    assert_refuses_discrete("rebrac")
    for key, value in {"policy_penalty": -0.1, "critic_penalty": -1.0, "policy_delay": 0}.items():
        assert_rejects("rebrac", key, value)
