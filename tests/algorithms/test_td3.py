"""Twin delayed deep deterministic policy gradient, Fujimoto et al. 2018."""

import copy

import numpy as np
import pytest
import torch

from rl_training.algorithms import td3_policy_loss
from rl_training.algorithms.td3 import smoothed_action as ours

from .helpers import (
    as_double,
    assert_loss_equals,
    assert_refuses_discrete,
    assert_rejects,
    assert_targets_follow,
    critics_of,
    deterministic_action,
    f64,
    make_learner,
    random_arrays,
    random_batch,
    record_noise,
    smoothed_action,
    squared_td_error,
    weights_of,
)


def test_policy_loss():
    for seed, size in enumerate((1, 2, 33, 256)):
        q = random_arrays(seed, 10.0, q=size)
        expected = -f64(q["q"]).mean()
        gradients = {"q": np.full(size, -1.0 / size)}
        assert_loss_equals(td3_policy_loss, q, expected, {"policy_loss": expected}, gradients)


def test_the_target_action_stays_in_the_box_and_near_the_policy():
    action = torch.tensor([[0.95, -0.2, 0.0]])
    noise = torch.tensor([[5.0, -5.0, 1.0]])
    found = ours(action, noise, 0.2, 0.5)
    np.testing.assert_allclose(f64(found), [[1.0, -0.7, 0.2]], rtol=1e-6)


def test_updates():
    """Critics step every time, the policy and the targets every second time, beginning at once."""
    learner = make_learner("td3", critic_lr=1e-2, policy_lr=1e-2).double()
    noise = record_noise(learner)
    for update in range(4):
        noise.clear()
        before = copy.deepcopy(learner)
        batch = random_batch(seed=update)
        metrics = learner.step(as_double(batch))
        (drawn,) = noise
        action = smoothed_action(before.target_actor, batch.next_obs, drawn, 0.2, 0.5)
        next_q = critics_of(before.target_critics, batch.next_obs, action).min(0)
        target = f64(batch.reward) + f64(batch.discount) * next_q
        values = critics_of(before.critics, batch.obs, batch.action)
        expected, _ = squared_td_error(values, target)
        np.testing.assert_allclose(f64(metrics["critic_loss"]), expected, rtol=1e-6)
        rated = critics_of(
            learner.critics, batch.obs, deterministic_action(before.actor, batch.obs)
        )
        np.testing.assert_allclose(f64(metrics["policy_loss"]), -rated[0].mean(), rtol=1e-6)
        assert not torch.equal(weights_of(before.critics), weights_of(learner.critics))
        same_policy = torch.equal(weights_of(before.actor), weights_of(learner.actor))
        same_targets = torch.equal(
            weights_of(before.target_critics), weights_of(learner.target_critics)
        )
        assert (same_policy, same_targets) == ((update % 2 == 1),) * 2
        if not same_targets:
            for target_net, online in (("target_critics", "critics"), ("target_actor", "actor")):
                assert_targets_follow(
                    getattr(before, target_net),
                    getattr(learner, online),
                    getattr(learner, target_net),
                    5e-3,
                )


def test_they_learn_what_pays_and_nothing_else():
    """A log of random actions, paid by their distance to one that depends on the state."""
    rng = np.random.default_rng(0)
    batch = random_batch(size=4096, seed=1)
    best = 0.8 * torch.tanh(2.0 * batch.obs[:, : batch.action.shape[1]])
    batch = batch._replace(
        reward=-5.0 * (batch.action - best).square().sum(-1), discount=torch.zeros(4096)
    )
    knobs = {"hidden_sizes": (32,), "policy_lr": 4e-3, "critic_lr": 1e-2, "batch_size": 128}
    weak = {"td3_bc": {"alpha": 20.0}, "rebrac": {"policy_penalty": 0.1}}
    for algo in ("td3", "td3_bc", "rebrac"):
        errors = {}
        for twin in ("", "shuffled"):
            learner = make_learner(algo, **knobs, **weak.get(algo, {}))
            order = torch.from_numpy(rng.permutation(4096)) if twin else torch.arange(4096)
            paid = batch._replace(reward=batch.reward[order])
            for _ in range(150):
                rows = torch.from_numpy(rng.integers(4096, size=128))
                learner.step(type(batch)(*(None if x is None else x[rows] for x in paid)))
            found = learner.policy.mode(batch.obs).detach()
            errors[twin] = float((found - best).square().mean())
        no_idea = float(best.square().mean())
        assert errors[""] < 0.4 * no_idea, (algo, errors, no_idea)
        assert errors["shuffled"] > 0.7 * no_idea, (algo, errors, no_idea)


def test_exploration_adds_noise_and_stays_in_the_box():
    learner = make_learner("td3", exploration_noise=0.5)
    obs = torch.randn(2_000, 3)
    mode = learner.act(obs, explore=False).action
    explored = learner.act(obs, explore=True).action
    inside = mode.abs() < 0.3  # hardly ever clipped there
    assert float((explored - mode)[inside].std()) == pytest.approx(0.5, rel=0.1)
    assert float(explored.abs().max()) <= 1.0
    calm = make_learner("td3", exploration_noise=0.0)
    assert torch.equal(calm.act(obs, explore=True).action, calm.act(obs, explore=False).action)


def test_refusals():
    assert_refuses_discrete("td3")
    for key, value in {
        "policy_delay": 0,
        "target_noise": -0.1,
        "target_noise_clip": -1.0,
        "exploration_noise": -0.1,
        "tau": 0.0,
        "policy_lr": 0.0,
        "critic_lr": -1.0,
    }.items():
        assert_rejects("td3", key, value)
