"""TD3 with behaviour cloning, Fujimoto and Gu 2021."""

import copy

import numpy as np
import pytest
import torch

from rl_training.algorithms import td3_bc_policy_loss
from rl_training.experiment.errors import EnvironmentSetupError

from .helpers import (
    DISCRETE,
    as_double,
    assert_loss_equals,
    assert_rejects,
    critics_of,
    deterministic_action,
    f64,
    make_learner,
    random_arrays,
    random_batch,
    train,
)


def oracle(q, action, data_action, alpha):
    """Total, terms and gradients of mean (pi - a)^2 - alpha / mean|Q| * mean Q."""
    q, action, data_action = f64(q), f64(action), f64(data_action)
    cloning = np.mean((action - data_action) ** 2)
    scale = alpha / np.abs(q).mean()
    total = cloning - scale * q.mean()
    gradients = {
        "q": np.full(q.shape, -scale / q.size),
        "action": 2.0 * (action - data_action) / action.size,
        "data_action": -2.0 * (action - data_action) / action.size,
    }
    return total, {"policy_loss": total, "cloning_error": cloning}, gradients


def test_loss():
    for seed, size in enumerate((1, 2, 33, 256)):
        for alpha in (0.1, 2.5, 100.0):
            inputs = random_arrays(seed, 10.0, q=size)
            inputs |= random_arrays(seed + 9, 0.5, action=(size, 3), data_action=(size, 3))
            assert_loss_equals(
                td3_bc_policy_loss, inputs, *oracle(**inputs, alpha=alpha), alpha=alpha
            )


def test_no_critic_yet_means_cloning():
    q = torch.zeros(4, requires_grad=True)
    action = torch.full((4, 2), 0.5, requires_grad=True)
    loss = td3_bc_policy_loss(q, action, torch.zeros(4, 2), alpha=2.5)
    assert loss.total.item() == pytest.approx(0.25)


def test_update_rates_by_the_first_critic():
    learner = make_learner("td3_bc", alpha=1.5).double()
    before, batch = copy.deepcopy(learner), random_batch()
    metrics = learner.step(as_double(batch))
    action = deterministic_action(before.actor, batch.obs)
    q = critics_of(learner.critics, batch.obs, action)[0]
    _, terms, _ = oracle(q, action, batch.action, 1.5)
    for name, expected in terms.items():
        np.testing.assert_allclose(f64(metrics[name]), expected, rtol=1e-6, err_msg=name)


def test_trains_on_data(pendulum):
    learner = make_learner("td3_bc", pendulum.spaces)
    before = train(learner, pendulum, 1)["cloning_error"]
    after = train(learner, pendulum, 200)["cloning_error"]
    assert after < before


def test_refusals():
    with pytest.raises(EnvironmentSetupError, match=r"^algo: TD3BC .*Discrete"):
        make_learner("td3_bc", DISCRETE)
    for key, value in {"alpha": 0.0, "policy_delay": 0, "exploration_noise": 0.1}.items():
        assert_rejects("td3_bc", key, value)
