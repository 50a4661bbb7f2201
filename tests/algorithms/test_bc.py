"""Behaviour cloning: maximum likelihood, or squared error."""

import numpy as np
import pytest
import torch

from rl_training import AWR, BC
from rl_training.algorithms import bc_loss, bc_mse_loss
from rl_training.experiment.errors import ConfigError, DataError

from ..each import each
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
    policy_log_prob,
    random_arrays,
    random_batch,
    train,
)


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("scale", [1.0, 1e4])
def test_likelihood_loss(seed, size, scale):
    inputs = random_arrays(seed, scale, log_prob=size)
    total = -np.mean(f64(inputs["log_prob"]))
    gradients = {"log_prob": np.full(size, -1.0 / size)}
    assert_loss_equals(bc_loss, inputs, total, {"policy_loss": total}, gradients)


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("action_dim", [1, 3])
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


@each("distribution", ["gaussian", "tanh_gaussian"])
@each("loss", ["likelihood", "mse"])
def test_update_minimises_the_loss_of_the_data_actions(loss, distribution):
    learner = make_learner("bc", loss=loss, action_distribution=distribution).double()
    batch = random_batch()
    if loss == "mse":
        expected = np.mean((np.tanh(mlp(learner.policy.net, batch.obs)) - f64(batch.action)) ** 2)
    else:
        expected = -policy_log_prob(learner.policy, batch.obs, batch.action).mean()
    metrics = learner.step(as_double(batch))
    np.testing.assert_allclose(f64(metrics["policy_loss"]), expected, rtol=1e-9)


@pytest.mark.parametrize(("distribution", "error"), [("gaussian", 0.02), ("tanh_gaussian", 0.2)])
def test_what_actions_at_the_edge_do_to_the_mode(distribution, error):
    """Half of the actions are at an edge: a bounded Gaussian's mode is their mean, that of a
    squashed one is dragged towards the edge."""
    learner = make_learner("bc", action_distribution=distribution, lr=3e-3)
    batch = random_batch(size=512)
    action = torch.full_like(batch.action, -0.2)
    action[::2] = 1.0 - 1e-6
    batch = batch._replace(obs=torch.zeros_like(batch.obs), action=action)
    for _ in range(600):
        learner.step(batch)
    found = learner.policy.mode(batch.obs).mean()
    if distribution == "gaussian":
        assert f64(found) == pytest.approx(0.4, abs=error)
    else:
        assert f64(found) > 0.4 + error


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


@each(("key", "value"), [*COMMON_BAD_KNOBS, *bad_rates("lr"), ("loss", "huber"), ("gamma", 0.9)])
def test_bad_knobs(key, value):
    assert_rejects("bc", key, value)


def test_data_need_no_rewards(tmp_path):
    """From arrays and from a file, resumed as well; algorithms that need them refuse."""
    generator = np.random.default_rng(0)
    observations = generator.normal(size=(40, 3)).astype(np.float32)
    arrays = {
        "observations": observations,
        "next_observations": observations,
        "actions": generator.uniform(-2, 2, (40, 1)).astype(np.float32),
        "terminations": np.arange(40) % 10 == 9,
        "truncations": np.zeros(40, bool),
    }
    np.savez(tmp_path / "x.npz", **arrays)
    options = {"hidden_sizes": [8], "tensorboard": False, "eval_episodes": 1}
    for dataset in (arrays, tmp_path / "x.npz"):
        agent = BC("Pendulum-v1", dataset=dataset, output_dir=tmp_path / "runs", **options)
        result = agent.learn(4, progress=False)
        assert "there are no rewards" in result.data_notes
        assert BC.resume(result.run_dir, total_updates=6, progress=False).result.updates == 6
    with pytest.raises(DataError, match="missing key 'rewards'"):
        AWR("Pendulum-v1", dataset=arrays)
    scaled = {"kind": "npz", "path": tmp_path / "x.npz", "rewards": {"scale": 2.0}}
    agent = BC("Pendulum-v1", dataset=scaled, output_dir=tmp_path / "none", **options)
    with pytest.raises(DataError, match="has no rewards, which only cloning and imitation"):
        agent.learn(4, progress=False)
    assert not (tmp_path / "none").exists()
