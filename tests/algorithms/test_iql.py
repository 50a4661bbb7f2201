"""Implicit Q-learning, Kostrikov et al. 2021."""

import copy
import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import iql_loss
from rl_training.algorithms.iql import iql_policy_loss, iql_value_loss

from ..each import each
from .helpers import (
    COMMON_BAD_KNOBS,
    SEEDS_AND_SIZES,
    TARGET_BAD_KNOBS,
    as_double,
    assert_loss_equals,
    assert_rejects,
    bad_rates,
    capped_exp,
    evaluate,
    expectile,
    f64,
    make_learner,
    random_arrays,
    random_batch,
    squared_td_error,
    train,
    weight_spread,
    weighted_likelihood,
    weights_of,
)

KNOBS = {"expectile": 0.7, "beta": 3.0, "max_weight": 100.0}


def value_oracle(q, value, level):
    """Eq. 5: mean of |level - 1{u < 0}| u^2 with u = Q - V."""
    total, d_error = expectile(f64(q) - f64(value), level)
    terms = {"value_loss": total, "value_mean": f64(value).mean()}
    return total, terms, {"value": -d_error}


def policy_oracle(log_prob, q, value, beta, max_weight):
    """Eq. 7 with the cap: -mean(min(exp(beta (Q - V)), cap) log pi)."""
    advantage = f64(q) - f64(value)
    weight = capped_exp(beta * advantage, max_weight)
    total, d_log_prob = weighted_likelihood(f64(log_prob), weight)
    terms = {"policy_loss": total, "advantage_mean": advantage.mean()}
    return total, terms | weight_spread(weight, max_weight), {"log_prob": d_log_prob}


def critic_oracle(q, td_target):
    """Eq. 6, summed over the critics."""
    total, d_q = squared_td_error(f64(q), f64(td_target))
    return total, {"critic_loss": total}, {"q": d_q}


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("scale", [1.0, 1e3])
@each("level", [0.001, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_value_loss(seed, size, scale, level):
    inputs = random_arrays(seed, scale, q=size, value=size)
    expected = value_oracle(**inputs, level=level)
    assert_loss_equals(iql_value_loss, inputs, *expected, expectile=level)


def test_value_goes_up_faster_than_down():
    for gap, rate in ((1.0, 0.9), (-1.0, 0.1)):
        inputs = {"q": np.full(4, gap), "value": np.zeros(4)}
        loss, gradients = evaluate(iql_value_loss, inputs, expectile=0.9)
        assert f64(loss.total) == pytest.approx(rate)
        assert gradients["value"] == pytest.approx(np.full(4, -2.0 * rate * gap / 4))


def test_the_value_settles_at_the_expectile():
    """Of {0, 1} in equal shares it is the level itself: level (1 - v) = (1 - level) v."""
    inputs = {"q": np.tile([0.0, 1.0], 50), "value": np.full(100, 0.8)}
    _, gradients = evaluate(iql_value_loss, inputs, expectile=0.8)
    assert abs(gradients["value"].sum()) < 1e-12


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("scale", [1.0, 1e3])
@each(
    ("beta", "max_weight"),
    [(3.0, 100.0), (10.0, 100.0), (0.0, 100.0), (1e-3, 100.0), (1e3, 20.0), (1.0, 0.5), (3.0, 1e6)],
)
def test_policy_loss(seed, size, scale, beta, max_weight):
    inputs = random_arrays(seed, scale, q=size, value=size)
    inputs |= random_arrays(seed + 100, 3.0, log_prob=size)
    knobs = {"beta": beta, "max_weight": max_weight}
    expected = policy_oracle(**inputs, **knobs)
    assert_loss_equals(iql_policy_loss, inputs, *expected, scale=scale, **knobs)


def test_beta_multiplies():
    inputs = {"log_prob": np.ones(1), "q": np.ones(1), "value": np.zeros(1)}
    loss, _ = evaluate(iql_policy_loss, inputs, beta=3.0, max_weight=100.0)
    assert f64(loss.metrics["weight_mean"]) == pytest.approx(np.exp(3.0))


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("members", [1, 2, 5])
def test_the_three_objectives_together(seed, size, members):
    inputs = random_arrays(
        seed, log_prob=size, q_target=size, value=size, q=(members, size), td_target=size
    )
    expected = {
        "value": value_oracle(inputs["q_target"], inputs["value"], 0.7),
        "policy": policy_oracle(
            inputs["log_prob"], inputs["q_target"], inputs["value"], 3.0, 100.0
        ),
        "critics": critic_oracle(inputs["q"], inputs["td_target"]),
    }
    for part, values in expected.items():

        def one(part=part, **arguments):
            return getattr(iql_loss(**arguments), part)

        assert_loss_equals(one, inputs, *values, **KNOBS)


def test_a_broadcast_to_a_square_is_refused_by_the_value_loss():
    with pytest.raises(AssertionError):
        iql_value_loss(torch.zeros(8), torch.zeros(8, 1), expectile=0.7)


@pytest.mark.parametrize("column", ["log_prob", "q", "value"])
def test_a_broadcast_to_a_square_is_refused(column):
    tensors = {name: torch.zeros(8) for name in ("log_prob", "q", "value")}
    tensors[column] = torch.zeros(8, 1)
    with pytest.raises(AssertionError):
        iql_policy_loss(**tensors, beta=3.0, max_weight=100.0)


class Replica:
    """The same weights, moved by the paper's equations one step at a time."""

    def __init__(self, learner):
        self.params = learner.params
        self.nets = copy.deepcopy(
            {
                "value": learner.model.value,
                "policy": learner.policy,
                "critics": learner.critics,
                "target": learner.target_critics,
            }
        )
        self.optimizers = {
            name: torch.optim.Adam(
                self.nets[name].parameters(), lr=learner.optimizers[name].base_lr
            )
            for name in ("value", "policy", "critics")
        }

    def descend(self, name, loss):
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()

    def step(self, batch, stale_policy=True, stale_critics=True):
        p = self.params
        value, policy, critics, target = self.nets.values()
        old = copy.deepcopy(value)
        q = torch.minimum(*target(batch.obs, batch.action))
        u = q - value(batch.obs)
        self.descend("value", (torch.abs(p.expectile - (u < 0).double()) * u**2).mean())

        with torch.no_grad():
            advantage = q - (old if stale_policy else value)(batch.obs)
            weight = torch.exp(p.inverse_temperature * advantage).clamp(max=p.max_weight)
            next_value = (old if stale_critics else value)(batch.next_obs)
            goal = batch.reward + batch.discount * next_value
        self.descend("policy", -(weight * policy.log_prob(batch.obs, batch.action)).mean())

        first, second = critics(batch.obs, batch.action)
        self.descend("critics", ((first - goal) ** 2 + (second - goal) ** 2).mean())

        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critics.parameters(), strict=True):
                slow.copy_((1.0 - p.tau) * slow + p.tau * fast)

    def distance(self, learner):
        found = {
            "value": learner.model.value,
            "policy": learner.policy,
            "critics": learner.critics,
            "target": learner.target_critics,
        }
        return {
            name: float((weights_of(net) - weights_of(found[name])).abs().max())
            for name, net in self.nets.items()
        }


def test_update_takes_the_papers_steps_from_the_same_networks():
    knobs = {
        "value_lr": 1e-2,
        "policy_lr": 1e-2,
        "critic_lr": 1e-2,
        "tau": 0.1,
        "inverse_temperature": 1.5,
    }
    learner = make_learner("iql", **knobs).double()
    replica, late_policy, late_critics = (Replica(learner) for _ in range(3))
    for seed in range(4):
        batch = as_double(random_batch(seed=seed, size=32))
        learner.step(batch)
        replica.step(batch)
        late_policy.step(batch, stale_policy=False)
        late_critics.step(batch, stale_critics=False)
    for name, distance in replica.distance(learner).items():
        assert distance < 1e-6, name
    assert late_policy.distance(learner)["policy"] > 1e-4
    assert late_critics.distance(learner)["critics"] > 1e-4


def test_larger_beta_is_greedier():
    batch = random_batch(size=64)
    spread = [
        float(make_learner("iql", inverse_temperature=beta).step(batch)["weight_effective"])
        for beta in (0.0, 1.0, 10.0)
    ]
    assert spread[0] == pytest.approx(1.0)
    assert spread[0] > spread[1] > spread[2]


def test_trains_on_data(pendulum):
    metrics = train(make_learner("iql", pendulum.spaces), pendulum, 20)
    assert all(torch.isfinite(metric) for metric in metrics.values())


def test_starts_orthogonal_with_one_standard_deviation_for_all_states():
    learner = make_learner("iql", hidden_sizes=(16, 16))
    hidden = learner.model.value.net.layers[1].weight.detach()
    torch.testing.assert_close(hidden @ hidden.T, 2.0 * torch.eye(16), rtol=1e-4, atol=1e-4)
    for member in learner.critics.net.weights[1].detach():
        torch.testing.assert_close(member @ member.T, 2.0 * torch.eye(16), rtol=1e-4, atol=1e-4)
    assert learner.policy.log_std.shape == (2,)
    assert torch.equal(weights_of(learner.critics), weights_of(learner.target_critics))


@each(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *TARGET_BAD_KNOBS,
        *bad_rates("policy_lr", "critic_lr", "value_lr"),
        ("inverse_temperature", -1.0),
        ("max_weight", 0.0),
        ("max_weight", -5.0),
        ("max_weight", math.inf),
        ("expectile", 0.0),
        ("expectile", 1.0),
        ("expectile", -0.5),
        ("expectile", 1.5),
    ],
)
def test_bad_knobs(key, value):
    assert_rejects("iql", key, value)
