"""Behaviour cloning: maximum likelihood, or squared error."""

import numpy as np
import pytest
import torch

from rl_training.algorithms import bc_loss, bc_mse_loss
from rl_training.experiment.errors import ConfigError

from .helpers import (
    COMMON_BAD_KNOBS,
    DISCRETE,
    SEEDS_AND_SIZES,
    as_double,
    assert_learns_discrete,
    assert_loss_equals,
    assert_rejects,
    bad_rates,
    f64,
    make_learner,
    mlp,
    random_arrays,
    random_batch,
    tanh_gaussian_log_prob,
    train,
)


@pytest.mark.parametrize(("seed", "size"), SEEDS_AND_SIZES)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_likelihood_loss(seed, size, scale):
    inputs = random_arrays(seed, scale, log_prob=size)
    total = -np.mean(f64(inputs["log_prob"]))
    gradients = {"log_prob": np.full(size, -1.0 / size)}
    assert_loss_equals(bc_loss, inputs, total, {"policy_loss": total}, gradients)


@pytest.mark.parametrize(("seed", "size"), SEEDS_AND_SIZES)
@pytest.mark.parametrize("action_dim", [1, 3])
def test_squared_error_loss(seed, size, action_dim):
    inputs = random_arrays(seed, predicted=(size, action_dim), action=(size, action_dim))
    error = f64(inputs["predicted"]) - f64(inputs["action"])
    total = np.mean(error**2)
    gradients = {"predicted": 2.0 * error / error.size}
    assert_loss_equals(
        bc_mse_loss, inputs, total, {"policy_loss": total}, gradients, free=["action"]
    )


def test_squared_error_refuses_to_broadcast():
    with pytest.raises(AssertionError):
        bc_mse_loss(torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize("loss", ["likelihood", "mse"])
def test_update_minimises_the_loss_of_the_data_actions(loss):
    learner = make_learner("bc", loss=loss).double()
    batch = random_batch()
    if loss == "mse":
        expected = np.mean((np.tanh(mlp(learner.policy.net, batch.obs)) - f64(batch.action)) ** 2)
    else:
        expected = -tanh_gaussian_log_prob(learner.policy, batch.obs, batch.action).mean()
    metrics = learner.step(as_double(batch))
    np.testing.assert_allclose(f64(metrics["policy_loss"]), expected, rtol=1e-9)


@pytest.mark.parametrize("loss", ["likelihood", "mse"])
def test_box_loss_falls(pendulum, loss):
    learner = make_learner("bc", pendulum.spaces, loss=loss, lr=1e-3)
    first = train(learner, pendulum, 1, batch_size=2048)["policy_loss"]
    train(learner, pendulum, 200, seed=1)
    last = train(learner, pendulum, 1, batch_size=2048)["policy_loss"]
    assert last < 0.9 * first


def test_discrete_loss_falls(cartpole):
    assert_learns_discrete("bc", cartpole, lr=1e-3)


def test_squared_error_is_refused_on_discrete_actions():
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.loss:"):
        make_learner("bc", DISCRETE, loss="mse")


@pytest.mark.parametrize(
    ("key", "value"), [*COMMON_BAD_KNOBS, *bad_rates("lr"), ("loss", "huber"), ("gamma", 0.9)]
)
def test_bad_knobs(key, value):
    assert_rejects("bc", key, value)
