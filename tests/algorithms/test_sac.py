"""SAC: losses against NumPy, order of steps, temperature, terminal rows, bad knobs."""

import copy

import numpy as np
import pytest
import torch

from rl_training.algorithms.sac import sac_loss

from ..each import each
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


def tensors(seed, members=2, size=12):
    rng = np.random.default_rng(seed)
    shapes = {
        "q": (members, size),
        "reward": (size,),
        "discount": (size,),
        "next_q": (members, size),
        "next_log_prob": (size,),
        "log_prob": (size,),
        "q_policy": (members, size),
        "log_temperature": (),
    }
    return {name: torch.tensor(rng.normal(size=shape)) for name, shape in shapes.items()}


def oracle(x, target_entropy):
    """The three objectives of the paper, in NumPy."""
    temperature = np.exp(x["log_temperature"])
    target = x["reward"] + x["discount"] * (x["next_q"].min(0) - temperature * x["next_log_prob"])
    critics = sum(np.mean((q - target) ** 2) for q in x["q"])
    policy = np.mean(temperature * x["log_prob"] - x["q_policy"].min(0))
    return critics, policy, x["log_temperature"] * (-x["log_prob"].mean() - target_entropy)


@each("seed", range(4))
@each("target_entropy", [-3.0, 0.5])
def test_losses(seed, target_entropy):
    inputs = tensors(seed)
    losses = sac_loss(**inputs, target_entropy=target_entropy)
    expected = oracle({k: v.numpy() for k, v in inputs.items()}, target_entropy)
    for loss, value in zip(losses, expected, strict=True):
        assert f64(loss.total) == pytest.approx(value, rel=1e-9)


def test_gradients_go_where_they_belong():
    inputs = {k: v.requires_grad_() for k, v in tensors(0).items()}
    losses = sac_loss(**inputs, target_entropy=-1.0)
    reached = {
        name: {
            key
            for key, tensor in inputs.items()
            if torch.autograd.grad(loss.total, tensor, retain_graph=True, allow_unused=True)[0]
            is not None
        }
        for name, loss in zip(("critics", "policy", "temperature"), losses, strict=True)
    }
    assert reached == {
        "critics": {"q"},
        "policy": {"log_prob", "q_policy"},
        "temperature": {"log_temperature"},
    }


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
