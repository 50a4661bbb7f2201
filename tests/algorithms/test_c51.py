"""Categorical DQN, Bellemare et al. 2017, and noisy layers, Fortunato et al. 2018."""

import copy
import re

import numpy as np
import pytest
import torch
import yaml

from rl_training.algorithms.c51 import C51Algorithm, c51_loss, c51_projection
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import register
from rl_training.models.architecture import Architecture
from rl_training.models.noisy import NoisyMLP

from ..each import each
from .helpers import (
    SEEDS_AND_SIZES,
    as_double,
    assert_loss_equals,
    assert_rejects,
    f64,
    mlp,
    mlp_forward,
    numeric_gradient,
    random_arrays,
    weights_of,
)
from .test_dqn import VALUE_BAD_KNOBS, VALUE_LEARNERS, batch_for, disagree, learner_for
from .test_qr_dqn import exponential, learn_one_state


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def project(returns, probabilities, atoms):
    """Each return's probability goes to the atom below and the one above, entry by entry."""
    width, last = atoms[1] - atoms[0], len(atoms) - 1
    target = np.zeros((len(returns), len(atoms)))
    for row in range(len(returns)):
        for value, probability in zip(returns[row], probabilities[row], strict=True):
            place = (min(max(value, atoms[0]), atoms[-1]) - atoms[0]) / width
            below = min(int(np.floor(place + 1e-12)), last - 1)
            above_share = place - below
            target[row, below] += probability * (1.0 - above_share)
            target[row, below + 1] += probability * above_share
    return target


def oracle(logits, target, weight):
    """Loss, divergence per row and gradient: softmax minus target."""
    p = softmax(logits)
    cross = -(target * np.log(p)).sum(-1)
    entropy = -np.where(target > 0, target * np.log(np.where(target > 0, target, 1.0)), 0).sum(-1)
    gradient = weight[:, None] * (p * target.sum(-1, keepdims=True) - target) / len(logits)
    return np.mean(weight * cross), cross - entropy, gradient


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("n", [2, 5, 51])
@each("weighted", [False, True])
def test_loss(seed, size, n, weighted):
    rng = np.random.default_rng(seed)
    inputs = random_arrays(seed, 1.0, logits=(size, n))
    inputs["target"] = rng.dirichlet(np.full(n, 0.3), size).astype("f4")
    weight = np.ones(size)
    if weighted:
        inputs["weight"] = weight = rng.uniform(0.1, 1.0, size).astype("f4")
    total, divergence, gradient = oracle(
        f64(inputs["logits"]), f64(inputs["target"]), f64(np.asarray(weight))
    )
    terms = {"categorical_loss": total, "td_errors": divergence}
    assert_loss_equals(c51_loss, inputs, total, terms, {"logits": gradient})


def test_the_oracles_gradient_is_that_of_its_value():
    rng = np.random.default_rng(3)
    logits, target, weight = rng.normal(size=(3, 4)), rng.dirichlet(np.ones(4), 3), rng.random(3)
    found = numeric_gradient(lambda x: oracle(x, target, weight)[0], logits)
    np.testing.assert_allclose(oracle(logits, target, weight)[2], found, atol=1e-8)


@each(("low", "high", "n"), [(-10.0, 10.0, 51), (0.0, 1.0, 2), (-1.0, 3.0, 7)])
def test_projection(low, high, n):
    """Returns inside, outside, on an atom and all at one place: the mean stays where it can."""
    rng, atoms = np.random.default_rng(n), np.linspace(low, high, n)
    probabilities = rng.dirichlet(np.ones(n), 6)
    returns = rng.uniform(low, high, (6, n))
    returns[1] = atoms  # unchanged
    returns[2] = high + 5.0  # all in the last
    returns[3] = low - 5.0
    returns[4] = 0.3 * low + 0.7 * high  # an end without a future
    returns[5] = rng.uniform(low - 2.0, high + 2.0, n)
    found = f64(c51_projection(*map(torch.from_numpy, (returns, probabilities, atoms))))
    np.testing.assert_allclose(found, project(returns, probabilities, atoms), atol=1e-9)
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-9)
    np.testing.assert_allclose(found[1], probabilities[1], atol=1e-9)
    assert found[2, -1] == pytest.approx(1.0)
    assert found[3, 0] == pytest.approx(1.0)
    means = (found * atoms).sum(-1)
    assert means[0] == pytest.approx((returns[0] * probabilities[0]).sum())
    assert means[4] == pytest.approx(returns[4, 0])


# --- the learner -----------------------------------------------------------------------------


def logits_of(network, obs, noise=None):
    """(B, N, A) by the network's weights; `noise` are the random numbers of its noisy layers."""
    features = np.maximum(mlp(network.features.net, obs), 0.0)
    head = network.head
    own = None if noise is None else noise[: head.actions.noise_size]
    values = noisy(head.actions, features, own).reshape(len(obs), *head.shape)
    if head.value is None:
        return values
    rest = None if noise is None else noise[head.actions.noise_size :]
    value = noisy(head.value, features, rest)
    return value[..., None] + values - values.mean(-1, keepdims=True)


def noisy(net, x, noise):
    """Output of layers whose weights are w + s (f(e_out) f(e_in)^T), as matrices."""
    if noise is None:
        return mlp(net, x)
    factors = np.sign(noise) * np.sqrt(np.abs(noise))
    layers, begin = [], 0
    for layer, scale in zip(net.layers, net.scales, strict=True):
        out_dim, in_dim = layer.weight.shape
        into, out_of = np.split(factors[begin : begin + in_dim + out_dim], [in_dim])
        weight = f64(layer.weight) + f64(scale.weight) * np.outer(out_of, into)
        layers.append((weight.T, f64(layer.bias) + f64(scale.bias) * out_of))
        begin += in_dim + out_dim
    assert begin == len(factors)
    return mlp_forward(layers, x)


class NotedNoise(C51Algorithm):
    """Keeps the numbers that its noisy networks take."""

    drawn = []

    def normal(self, *shape):
        self.drawn.append(super().normal(*shape).double())
        return self.drawn[-1]


@pytest.mark.usefixtures("own_names")
@each("double", [False, True])
@each("dueling", [False, True])
@each("weighted", [False, True])
@each("is_noisy", [False, True])
def test_update_equals_the_papers_steps(double, dueling, weighted, is_noisy):
    register("noted_c51", NotedNoise)
    knobs = {"num_atoms": 5, "value_range": (-2.0, 3.0), "lr": 1e-2, "target_update_interval": 3}
    knobs |= {"double": double, "dueling": dueling, "noisy": is_noisy}
    learner = learner_for("noted_c51", **knobs).double()
    disagree(learner)
    online, target = copy.deepcopy(learner.network), copy.deepcopy(learner.target_network)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    drawn = learner.drawn
    atoms, rows = np.linspace(-2.0, 3.0, 5), np.arange(16)
    for step in range(1, 8):
        drawn.clear()
        batch = as_double(batch_for(seed=step, weighted=weighted))
        before = copy.deepcopy(online)
        metrics = learner.step(batch)
        # one for the target network, one for the online network's choice, one for the loss
        assert len(drawn) == (2 + double) * is_noisy
        noise = [x.numpy() for x in drawn] if is_noisy else [None] * 3
        logits = logits_of(target, batch.next_obs, noise[0])
        judge = logits_of(before, batch.next_obs, noise[1]) if double else logits
        q = (softmax(np.swapaxes(judge, 1, 2)) * atoms).sum(-1)
        probabilities = softmax(logits[rows, :, q.argmax(-1)])
        returns = f64(batch.reward)[:, None] + f64(batch.discount)[:, None] * atoms
        goal = project(returns, probabilities, atoms)
        last = torch.from_numpy(noise[-1]) if is_noisy else None
        taken = online(batch.obs, last)[torch.arange(16), :, batch.action]
        expected = logits_of(before, batch.obs, noise[-1])[rows, :, batch.action]
        np.testing.assert_allclose(f64(taken), expected, atol=1e-9)
        weight = f64(batch.weight) if weighted else np.ones(16)
        total, divergence, gradient = oracle(f64(taken), goal, weight)
        optimizer.zero_grad()
        taken.backward(torch.from_numpy(gradient))
        optimizer.step()
        if step % 3 == 0:
            target = copy.deepcopy(online)
        assert f64(metrics["categorical_loss"]) == pytest.approx(total, rel=1e-5)
        mean = (softmax(f64(taken)) * atoms).sum(-1).mean()
        assert f64(metrics["q_mean"]) == pytest.approx(mean, rel=1e-4, abs=1e-6)
        np.testing.assert_allclose(f64(learner.last_td_errors), divergence, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(weights_of(learner.network), weights_of(online), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        weights_of(learner.target_network), weights_of(target), rtol=0, atol=1e-6
    )


def test_finds_the_distribution_of_a_skewed_reward():
    learner = learner_for("c51", num_atoms=11, value_range=(0.0, 5.0), lr=5e-3)
    learn_one_state(learner, 600, exponential)
    atoms = np.linspace(0.0, 5.0, 11)
    evenly = exponential((np.arange(100_000) + 0.5) / 100_000)[None]
    expected = project(evenly, np.full((1, 100_000), 1e-5), atoms)[0]
    found = softmax(f64(learner.network(torch.ones(1, 4))[0, :, 0]))
    np.testing.assert_allclose(found, expected, atol=0.02)
    q = f64(learner.network.q_values(torch.ones(1, 4)))[0, 0]
    assert q == pytest.approx((expected * atoms).sum(), abs=0.03)


@each(
    ("key", "value"),
    [
        *VALUE_BAD_KNOBS,
        ("num_atoms", 1),
        ("value_range", [1.0, 1.0]),
        ("value_range", [1.0]),
        ("value_range", [0.0, 1.0, 2.0]),
        ("noise_scale", 0.0),
    ],
)
def test_bad_knobs(key, value):
    assert_rejects("c51", key, value)


# --- noisy layers ----------------------------------------------------------------------------


def test_noise_starts_at_its_scale_and_is_off_without_numbers():
    net = NoisyMLP(Architecture((8,)), 0.5, 16, 3)
    assert net.noise_size == 16 + 8 + 8 + 3
    for parameter, inputs in zip(net.scales.parameters(), (16, 16, 8, 8), strict=True):
        np.testing.assert_allclose(f64(parameter), 0.5 / np.sqrt(inputs))
    x, noise = torch.randn(6, 16), torch.randn(net.noise_size)
    np.testing.assert_allclose(f64(net(x)), mlp(net, x), atol=1e-5)
    np.testing.assert_allclose(f64(net(x, noise)), noisy(net, f64(x), f64(noise)), atol=1e-5)
    assert torch.equal(net(x, torch.zeros(net.noise_size)), net(x))


@each("algo", VALUE_LEARNERS)
@each("dueling", [False, True])
def test_noise_explores_and_is_learned(algo, dueling):
    """Without epsilon: actions vary while exploring only, and both weights and scales move."""
    learner = learner_for(algo, noisy=True, dueling=dueling, noise_scale=3.0)
    obs = torch.randn(40, 4)
    greedy = learner.act(obs, explore=False).action
    assert torch.equal(learner.act(obs, explore=False).action, greedy)
    assert torch.equal(greedy, learner.policy.q_values(obs).argmax(-1))
    learner.fraction = 0.0  # where epsilon would be 1
    torch.manual_seed(0)
    explored = [learner.act(obs, explore=True).action for _ in range(20)]
    assert len({tuple(action.tolist()) for action in explored}) > 2
    torch.manual_seed(0)
    assert torch.equal(learner.act(obs, explore=True).action, explored[0])
    before = {name: value.clone() for name, value in learner.network.named_parameters()}
    learner.step(batch_for())
    moved = {n for n, value in learner.network.named_parameters() if not value.equal(before[n])}
    assert moved >= {name for name in before if name.startswith("head.")}
    assert learner_for(algo).network.noise_size == 0


def test_epsilon_with_noise_and_noise_with_own_networks_are_refused():
    with pytest.raises(ConfigError, match=r"algo_kwargs.epsilon_end: noisy networks explore"):
        load(epsilon_end=0.01)
    with pytest.raises(ConfigError, match=r"algo_kwargs.noise_scale: C51 reads this key only"):
        load(noisy=False, noise_scale=0.1, dataset={"kind": "random", "steps": 50})


@each(
    ("config", "wanted", "unread", "default"),
    [
        ("dqn/breakout", {"noisy": True}, "epsilon_end", 0.05),
        ("rainbow/breakout", {"memory": "gru"}, "n_step", 1),
    ],
)
def test_what_a_packaged_config_has_set_can_be_taken_back(config, wanted, unread, default):
    """Its keys cannot be removed, so the advice names what to set instead."""
    from rl_training.experiment.config import load_config

    packaged, set_back = load_config(config), {}
    knobs = {**packaged.to_dict()["algo_kwargs"], **wanted}
    advice = r"algo_kwargs\.(\w+): .*; remove this key, or set it to its default, ([\w.]+), or "
    while unread not in set_back:  # a config may have set several such keys
        with pytest.raises(ConfigError, match=advice) as refused:
            packaged.replace(algo_kwargs={**knobs, **set_back})
        ((name, value),) = re.findall(advice, str(refused.value))
        assert name not in set_back, "the advice does not help"
        set_back[name] = yaml.safe_load(value)
    assert set_back[unread] == default
    rest = {"prioritized": False} if "memory" in wanted else {"epsilon_fraction": 0.1}
    packaged.replace(algo_kwargs={**knobs, **rest, **set_back})


def load(noisy=True, dataset=None, **knobs):
    from rl_training import C51

    task = {"total_updates": 3, "dataset": dataset} if dataset else {"total_timesteps": 50}
    return C51("CartPole-v1", noisy=noisy, **task, **knobs)
