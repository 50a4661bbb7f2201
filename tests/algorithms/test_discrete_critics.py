"""Critics with one output per action: sums over all of them in the place of samples."""

import copy
import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import crr_loss
from rl_training.algorithms.cql import cql_discrete_loss
from rl_training.algorithms.critics import soft_policy_loss
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ConfigError

from ..each import each
from .helpers import (
    DISCRETE,
    as_double,
    assert_loss_equals,
    assert_targets_follow,
    capped_exp,
    expectile,
    f64,
    logsumexp,
    make_learner,
    mlp,
    mlp_forward,
    numeric_gradient,
    random_arrays,
    random_batch,
    record_noise,
    squared_td_error,
    value_of,
    weight_spread,
    weighted_likelihood,
)

ALGORITHMS = ("iql", "awac", "crr", "cql", "sac", "rlpd")


def log_probs_of(policy, obs):
    logits = mlp(policy.net, obs)
    return logits - logsumexp(logits, -1)[..., None]


def values_of(critics, obs):
    """(members, B, actions), one member after the other."""
    net = critics.net
    layers = [
        [(f64(w)[i], f64(b)[i, 0]) for w, b in zip(net.weights, net.biases, strict=True)]
        for i in range(net.num_members)
    ]
    norms = [
        [(f64(s)[i], f64(t)[i, 0]) for s, t in zip(net.norm_scales, net.norm_shifts, strict=True)]
        for i in range(net.num_members)
    ]
    return np.stack(
        [mlp_forward(layer, f64(obs), norm) for layer, norm in zip(layers, norms, strict=True)]
    )


def taken(values, action):
    """Of the actions that were taken, from (..., B, actions)."""
    return values[..., np.arange(len(action)), f64(action).astype(int)]


def expected_target(policy, critics, batch):
    """r + discount * sum_a pi(a|s') min_i Q_i(s', a), and the expected log pi."""
    log_probs = log_probs_of(policy, batch.next_obs)
    least = values_of(critics, batch.next_obs).min(0)
    value = np.einsum("ba,ba->b", np.exp(log_probs), least)
    expected_log_prob = np.einsum("ba,ba->b", np.exp(log_probs), log_probs)
    return f64(batch.reward) + f64(batch.discount) * value, expected_log_prob


def stepped(algo, **knobs):
    """(learner before, batch, metrics, learner after) of updates of a learner in float64."""
    learner = make_learner(algo, DISCRETE, **knobs).double()
    noise = record_noise(learner)
    for seed in range(3):
        before, batch = copy.deepcopy(learner), random_batch(DISCRETE, seed=seed)
        metrics = learner.step(as_double(batch))
        yield before, batch, metrics, learner
    assert algo == "rlpd" or not noise, "an exact sum needs no noise"


def assert_equal(metrics, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(f64(metrics[name]), value, rtol=1e-6, err_msg=name)


def regression_terms(policy, batch, advantage, beta, cap):
    weight = capped_exp(advantage / beta, cap)
    log_prob = taken(log_probs_of(policy, batch.obs), batch.action)
    loss = weighted_likelihood(log_prob, weight)[0]
    spread = weight_spread(weight, cap)
    return {"policy_loss": loss, "advantage_mean": advantage.mean(), **spread}


def test_iql_update():
    for before, batch, metrics, learner in stepped("iql", critic_lr=1e-2):
        q = taken(values_of(before.target_critics, batch.obs), batch.action).min(0)
        value = value_of(before.model.value, batch.obs)
        target = f64(batch.reward) + f64(batch.discount) * value_of(
            before.model.value, batch.next_obs
        )
        found = taken(values_of(before.critics, batch.obs), batch.action)
        assert_equal(
            metrics,
            {
                "value_loss": expectile(q - value, 0.7)[0],
                "critic_loss": squared_td_error(found, target)[0],
                **regression_terms(before.policy, batch, q - value, 1.0 / 3.0, 100.0),
            },
        )
        assert_targets_follow(before.target_critics, learner.critics, learner.target_critics, 5e-3)


@each("algo", ["awac", "crr", "crr max"])
def test_awac_and_crr_updates(algo):
    algo, _, how = algo.partition(" ")
    knobs = {"advantage_type": "max"} if how else {}
    cap = 100.0 if algo == "awac" else 20.0
    for before, batch, metrics, learner in stepped(algo, critic_lr=1e-2, **knobs):
        old, values = before.policy, values_of(before.model.critics, batch.obs)
        target, _ = expected_target(old, before.target_critics, batch)
        least = values.min(0)
        probs = np.exp(log_probs_of(old, batch.obs))
        baseline = least.max(-1) if how else np.einsum("ba,ba->b", probs, least)
        advantage = taken(values, batch.action).min(0) - baseline
        assert_equal(
            metrics,
            {
                "critic_loss": squared_td_error(taken(values, batch.action), target)[0],
                **regression_terms(old, batch, advantage, 1.0, cap),
            },
        )
        assert_targets_follow(
            before.target_critics, learner.model.critics, learner.target_critics, 5e-3
        )
        if not how:  # planted: the least of the expectations is not the expectation of the least
            wrong = np.einsum("ba,mba->mb", probs, values).min(0)
            assert abs((advantage + baseline - wrong).mean() - advantage.mean()) > 1e-6


def test_the_share_of_each_action_weighs_its_value():
    """Planted: a plain mean over the actions is another loss."""
    inputs = random_arrays(0, log_prob=33, q_data=33, q_samples=(4, 33))
    share = np.random.default_rng(1).dirichlet(np.ones(4), 33).T
    knobs = {"weight_type": "exp", "beta": 0.5, "max_weight": 20.0}
    for how, baseline in (
        ("mean", (share * f64(inputs["q_samples"])).sum(0)),
        ("max", f64(inputs["q_samples"]).max(0)),
    ):
        weight = capped_exp((f64(inputs["q_data"]) - baseline) / 0.5, 20.0)
        total, gradient = weighted_likelihood(f64(inputs["log_prob"]), weight)
        assert_loss_equals(
            crr_loss,
            {**inputs, "share": share.astype(np.float32)},
            *(total, {"policy_loss": total}, {"log_prob": gradient}),
            scale=10.0,  # the shares are rounded to float32 on one side
            advantage_type=how,
            **knobs,
        )
    plain = capped_exp((f64(inputs["q_data"]) - f64(inputs["q_samples"]).mean(0)) / 0.5, 20.0)
    right = capped_exp(
        (f64(inputs["q_data"]) - (share * f64(inputs["q_samples"])).sum(0)) / 0.5, 20.0
    )
    assert np.abs(plain - right).max() > 0.1


def cql_oracle(q, action, td_target, weight, multiplier=1.0, threshold=0.0):
    """TD error plus weight * (log sum_a exp Q(s, a) - Q(s, data)), summed over the critics."""
    q = f64(q)
    gap = (logsumexp(q, -1) - taken(q, action)).mean(-1)
    td, _ = squared_td_error(taken(q, action), f64(td_target))
    conservative = float(np.sum(multiplier * (weight * gap - threshold)))
    return td + conservative, {
        "critic_loss": td,
        "conservative_loss": conservative,
        "conservative_gap": gap.mean(),
        "q_mean": taken(q, action).mean(),
    }


@each(("members", "size"), [(1, 1), (2, 7), (5, 33)])
def test_cql_loss(members, size):
    inputs = random_arrays(size, 2.0, q=(members, size, 3), td_target=size)
    action = torch.from_numpy(np.random.default_rng(0).integers(3, size=size))
    knobs = {"min_q_weight": 3.0, "multiplier": 0.5, "lagrange_threshold": 2.0}

    def total(q):
        return cql_oracle(q, action, inputs["td_target"], 3.0, 0.5, 2.0)[0]

    expected, terms = cql_oracle(inputs["q"], action, inputs["td_target"], 3.0, 0.5, 2.0)
    gradient = numeric_gradient(total, f64(inputs["q"]))

    def loss(**tensors):
        return cql_discrete_loss(action=action, **tensors)

    assert_loss_equals(loss, inputs, expected, terms, {"q": gradient}, **knobs)
    # planted: with one action left there is nothing to be careful about
    alone = cql_discrete_loss(
        torch.randn(2, 4, 1), torch.zeros(4).long(), torch.zeros(4), min_q_weight=5.0
    )
    assert float(alone.metrics["conservative_gap"]) == pytest.approx(0.0, abs=1e-6)


@each("backup_action", ["sampled", "mode"])
@each("backup_entropy", [False, True])
def test_cql_update(backup_action, backup_entropy):
    knobs = {"backup_action": backup_action, "backup_entropy": backup_entropy}
    for before, batch, metrics, learner in stepped("cql", policy_lr=1e-2, **knobs):
        temperature = np.exp(f64(before.log_temperature))
        log_probs = log_probs_of(before.policy, batch.obs)
        least = values_of(before.model.critics, batch.obs).min(0)
        entropy = -np.einsum("ba,ba->b", np.exp(log_probs), log_probs)
        value = np.einsum("ba,ba->b", np.exp(log_probs), least)
        # the critics see the policy that its own step left
        target, next_log_prob = expected_target(learner.policy, before.target_critics, batch)
        if backup_action == "mode":
            likeliest = log_probs_of(learner.policy, batch.next_obs).argmax(-1)
            best = values_of(before.target_critics, batch.next_obs).min(0)
            target = f64(batch.reward) + f64(batch.discount) * taken(best, likeliest)
        if backup_entropy:
            target = target - f64(batch.discount) * temperature * next_log_prob
        _, terms = cql_oracle(values_of(before.model.critics, batch.obs), batch.action, target, 5.0)
        policy_loss = np.mean(-temperature * entropy - value)
        assert_equal(metrics, {"policy_loss": policy_loss, "entropy": entropy.mean(), **terms})


def test_sac_and_rlpd_updates():
    for algo in ("sac", "rlpd"):
        knobs = {"num_critics": 2, "batch_size": 16} if algo == "rlpd" else {}
        for before, batch, metrics, learner in stepped(algo, critic_lr=1e-2, **knobs):
            temperature = np.exp(f64(before.log_temperature))
            target, next_log_prob = expected_target(before.policy, before.target_critics, batch)
            target = target - f64(batch.discount) * temperature * next_log_prob
            found = taken(values_of(before.model.critics, batch.obs), batch.action)
            # the policy is rated by the critics that this step left
            values = values_of(learner.model.critics, batch.obs)
            rating = values.min(0) if algo == "sac" else values.mean(0)
            log_probs = log_probs_of(before.policy, batch.obs)
            rated = np.exp(log_probs) * (temperature * log_probs - rating)
            assert_equal(
                metrics,
                {
                    "critic_loss": squared_td_error(found, target)[0],
                    "policy_loss": rated.sum(-1).mean(),
                    "entropy": -(np.exp(log_probs) * log_probs).sum(-1).mean(),
                },
            )
            assert_targets_follow(
                before.target_critics, learner.model.critics, learner.target_critics, 5e-3
            )


def test_the_policys_gradient_is_that_of_the_expectation():
    """By differences of the exact objective, since no sample stands between."""
    learner = make_learner("sac", DISCRETE, fixed_temperature=0.3, hidden_sizes=(4,)).double()
    batch = as_double(random_batch(DISCRETE, size=8))
    loss = soft_policy_loss(learner.policy, learner.model.critics, batch.obs, None, 0.3).total
    bias = learner.policy.net.layers[-1].bias
    (found,) = torch.autograd.grad(loss, bias)
    least = values_of(learner.model.critics, batch.obs).min(0)
    logits = mlp(learner.policy.net, batch.obs) - f64(bias)

    def objective(shift):
        log_probs = logits + shift - logsumexp(logits + shift, -1)[:, None]
        return float((np.exp(log_probs) * (0.3 * log_probs - least)).sum(-1).mean())

    np.testing.assert_allclose(f64(found), numeric_gradient(objective, f64(bias)), atol=1e-8)


def test_target_entropy_of_discrete_actions():
    for algo, share in (("sac", 0.3), ("rlpd", 0.3), ("cql", 0.1)):
        assert make_learner(algo, DISCRETE).target_entropy == pytest.approx(share * math.log(3.0))
        assert make_learner(algo, DISCRETE, target_entropy=0.5).target_entropy == 0.5
        for beyond in (-1.0, 1.2):
            with pytest.raises(ConfigError, match=r"^algo_kwargs.target_entropy: .* from 0 to 1.1"):
                make_learner(algo, DISCRETE, target_entropy=beyond)


def test_knobs_of_box_actions_are_refused():
    refused = {
        "num_action_samples": {"crr": 7, "cql": 7},
        "importance_weights": {"cql": True},
        "action_distribution": dict.fromkeys(
            ("iql", "awac", "crr", "bc", "awr", "marwil"), "tanh_gaussian"
        ),
    }
    for knob, cases in refused.items():
        for algo, value in cases.items():
            with pytest.raises(ConfigError, match=rf"^algo_kwargs.{knob}: .* Box .*Discrete\(3\)"):
                make_learner(algo, DISCRETE, **{knob: value})
            make_learner(algo, **{knob: value})


def test_crr_keeps_something():
    with pytest.raises(ConfigError, match=r"^algo_kwargs.weight_type: .* keep nothing; use exp"):
        make_learner("crr", DISCRETE, weight_type="binary", advantage_type="max")


def test_they_learn_which_action_pays():
    """A log of random actions in which one of them, told by the state, is paid."""
    rng = np.random.default_rng(0)
    batch = random_batch(Spaces(4, "discrete", 3), size=4096, seed=1)
    right = torch.from_numpy((f64(batch.obs)[:, 0] > 0).astype(np.int64)) * 2
    batch = batch._replace(reward=(batch.action == right).float() * 5.0, discount=torch.zeros(4096))
    rates = {"policy_lr": 1e-2, "critic_lr": 1e-2}
    for algo in ALGORITHMS:
        few = {"num_critics": 2} if algo == "rlpd" else {}
        learner = make_learner(algo, DISCRETE, hidden_sizes=(16,), batch_size=128, **few, **rates)
        for _ in range(120):
            rows = torch.from_numpy(rng.integers(4096, size=128))
            learner.step(type(batch)(*(None if x is None else x[rows] for x in batch)))
        share = (learner.policy.mode(batch.obs) == right).float().mean()
        assert share > 0.8, (algo, float(share))
    # the twin: what was paid says nothing about the action
    noise = batch._replace(reward=batch.reward[torch.from_numpy(rng.permutation(4096))])
    for algo in ("iql", "cql"):
        learner = make_learner(algo, DISCRETE, hidden_sizes=(16,), batch_size=128, **rates)
        for _ in range(120):
            rows = torch.from_numpy(rng.integers(4096, size=128))
            learner.step(type(noise)(*(None if x is None else x[rows] for x in noise)))
        share = (learner.policy.mode(batch.obs) == right).float().mean()
        assert share < 0.6, (algo, float(share))
