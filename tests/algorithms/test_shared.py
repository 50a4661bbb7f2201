"""What the algorithms share: densities, critics, gradients, moments, and the data table."""

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.critics import data_and_policy
from rl_training.algorithms.critics import policy_td_target as torch_td_target
from rl_training.algorithms.functional import (
    Loss,
    bootstrapped_returns,
    clipped_gradients,
    critic_loss,
    expectile_loss,
    soft_update,
)
from rl_training.algorithms.functional import capped_exp as torch_capped_exp
from rl_training.algorithms.optim import FusedAdam, LaProp
from rl_training.data.dataset import TransitionDataset
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import DataError
from rl_training.experiment.registry import algorithm_class
from rl_training.models import (
    BoundedGaussianPolicy,
    CategoricalPolicy,
    EnsembleCritic,
    MLPSACModel,
    MovingMoments,
    TanhGaussianPolicy,
    ValueNetwork,
    frozen_copy,
)
from rl_training.models.value_networks import QNetwork, QuantileNetwork, ValueLayers
from rl_training.replay.batch import Batch
from rl_training.replay.table import TransitionTable
from rl_training.runtime.build import flushes_denormals
from rl_training.runtime.policy import ActingPolicy

from ..each import each
from .helpers import (
    BOX,
    CPU,
    bounded_gaussian_log_prob,
    bounded_gaussian_sample,
    capped_exp,
    critics_of,
    expectile,
    f64,
    gaussian_of,
    logsumexp,
    make_learner,
    mlp,
    moved,
    normal_log_density,
    policy_td_target,
    random_batch,
    squared_td_error,
    tanh_gaussian_log_prob,
    tanh_gaussian_sample,
    value_of,
    weights_of,
)

ALGORITHMS = ["bc", "awr", "marwil", "crr", "iql", "awac", "cql"]


# --- densities -------------------------------------------------------------------------------


def tanh_gaussian(action_dim=2, state_dependent_std=True, spread=1.0):
    policy = TanhGaussianPolicy(3, action_dim, (16, 16), state_dependent_std).double()
    with torch.no_grad():
        policy.net.layers[-1].weight.mul_(spread)
        if not state_dependent_std:
            policy.log_std.copy_(torch.linspace(-1.0, 0.5, action_dim))
    return policy


@each("state_dependent_std", [True, False])
@each("action_dim", [1, 2, 5])
@each("spread", [1.0, 20.0])
def test_tanh_gaussian_log_prob(action_dim, state_dependent_std, spread):
    policy = tanh_gaussian(action_dim, state_dependent_std, spread)
    obs = torch.randn(32, 3).double()
    action = torch.rand(32, action_dim).double() * 1.98 - 0.99
    expected = tanh_gaussian_log_prob(policy, obs, action)
    found = policy.log_prob(obs, action)
    assert found.shape == (32,)
    np.testing.assert_allclose(f64(found), expected, rtol=1e-9)
    np.testing.assert_allclose(
        f64(policy.float().log_prob(obs.float(), action.float())),
        tanh_gaussian_log_prob(policy, obs.float(), action.float()),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("state_dependent_std", [True, False])
def test_tanh_gaussian_sample_and_density(state_dependent_std):
    policy = tanh_gaussian(3, state_dependent_std)
    obs, noise = torch.randn(8, 3).double(), torch.randn(5, 8, 3).double()
    action, log_prob = policy.rsample(obs, noise)
    expected_action, expected_log_prob = tanh_gaussian_sample(policy, obs, noise)
    assert action.shape == (5, 8, 3)
    assert log_prob.shape == (5, 8)
    np.testing.assert_allclose(f64(action), expected_action, rtol=1e-9)
    np.testing.assert_allclose(f64(log_prob), expected_log_prob, rtol=1e-9)
    # the density of the sample is the density of the action
    np.testing.assert_allclose(
        f64(log_prob), tanh_gaussian_log_prob(policy, obs, expected_action), rtol=1e-6
    )


@pytest.mark.parametrize("state_dependent_std", [True, False])
def test_bounded_gaussian(state_dependent_std):
    policy = BoundedGaussianPolicy(3, 2, (16, 16), state_dependent_std).double()
    obs, noise = torch.randn(8, 3).double(), torch.randn(5, 8, 2).double()
    edges = torch.tensor([-1.0, 1.0]).double()[torch.randint(2, (8, 2))]
    np.testing.assert_allclose(
        f64(policy.log_prob(obs, edges)), bounded_gaussian_log_prob(policy, obs, edges), rtol=1e-9
    )
    action, log_prob = policy.rsample(obs, noise)
    expected_action, expected_log_prob = bounded_gaussian_sample(policy, obs, noise)
    np.testing.assert_allclose(f64(action), expected_action, rtol=1e-9)
    np.testing.assert_allclose(f64(log_prob), expected_log_prob, rtol=1e-9)
    assert (f64(action) == 1.0).any()
    np.testing.assert_allclose(f64(policy.mode(obs)), np.tanh(gaussian_of(policy, obs)[0]))
    assert f64(policy.sample(obs.repeat(100, 1))).max() == 1.0


def test_tanh_gaussian_density_integrates_to_one():
    policy = tanh_gaussian(1)
    grid = torch.linspace(-1.0, 1.0, 200_001).double()[1:-1, None]
    density = policy.log_prob(torch.full((1, 3), 0.3).double(), grid).exp()
    assert f64(torch.trapezoid(density, grid[:, 0])) == pytest.approx(1.0, abs=1e-3)


def test_tanh_gaussian_by_hand():
    """One number with nothing but `math`: mean 0.3, deviation e^-0.5, action 0.6."""
    policy = TanhGaussianPolicy(1, 1, (4,))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        policy.net.layers[-1].bias.copy_(torch.tensor([0.3, -0.5]))
    pre = math.atanh(0.6)
    expected = (
        -0.5 * ((pre - 0.3) / math.exp(-0.5)) ** 2
        + 0.5
        - 0.5 * math.log(2.0 * math.pi)
        - math.log(1.0 - 0.36)
    )
    found = policy.log_prob(torch.zeros(1, 1), torch.tensor([[0.6]]))
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(policy.mode(torch.zeros(1, 1)).detach()) == pytest.approx(math.tanh(0.3))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_actions_at_the_edge_stay_finite(sign):
    policy = tanh_gaussian(2, spread=50.0).float()
    obs = torch.randn(64, 3)
    edge = torch.from_numpy(BOX.from_env(sign * np.tile(np.float32([1.0, 2.0]), (64, 1))))
    assert torch.equal(edge.abs(), torch.full((64, 2), 1.0 - 1e-5))
    log_prob = policy.log_prob(obs, edge)
    np.testing.assert_allclose(f64(log_prob), tanh_gaussian_log_prob(policy, obs, edge), 1e-2)
    log_prob.mean().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in policy.parameters())


@pytest.mark.parametrize("size", [30.0, 1e3])
def test_samples_far_out_have_finite_densities(size):
    policy = TanhGaussianPolicy(3, 2, (8,))
    with torch.no_grad():
        policy.net.layers[-1].bias.copy_(torch.tensor([size, -size, 0.0, 0.0]))
    obs, noise = torch.randn(4, 3), torch.randn(4, 2)
    _, log_prob = policy.rsample(obs, noise)
    np.testing.assert_allclose(f64(log_prob), tanh_gaussian_sample(policy, obs, noise)[1], 1e-4)
    log_prob.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in policy.parameters())


@pytest.mark.parametrize(("raw", "held"), [(-9.0, -5.0), (7.0, 2.0)])
def test_log_standard_deviation_is_bounded(raw, held):
    policy = TanhGaussianPolicy(1, 1, (4,), state_dependent_std=False).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        policy.log_std.fill_(raw)
    action = np.array([[0.01]])
    expected = normal_log_density(np.arctanh(action), 0.0, held) - np.log(1.0 - action**2)
    found = policy.log_prob(torch.zeros(1, 1).double(), torch.from_numpy(action))
    np.testing.assert_allclose(f64(found), expected[0], rtol=1e-9)


def test_samples_follow_the_density():
    policy = tanh_gaussian(1).float()
    obs = torch.full((20_000, 3), 0.3)
    with torch.no_grad():
        inner = torch.atanh(policy.sample(obs)[:, 0])
        mean, log_std = policy(obs[:1])
    assert float(inner.mean()) == pytest.approx(float(mean), abs=0.05)
    assert float(inner.std()) == pytest.approx(float(log_std.exp()), rel=0.05)


def test_categorical_log_prob():
    policy = CategoricalPolicy(3, 4, (16, 16)).double()
    obs, action = torch.randn(32, 3).double(), torch.randint(4, (32,))
    logits = mlp(policy.net, obs)
    expected = logits[np.arange(32), action] - logsumexp(logits, 1)
    found = policy.log_prob(obs, action)
    assert found.shape == (32,)
    np.testing.assert_allclose(f64(found), expected, rtol=1e-9)
    np.testing.assert_array_equal(policy.mode(obs), logits.argmax(1))


def test_categorical_samples_follow_the_probabilities():
    policy = CategoricalPolicy(3, 3, (8,))
    with torch.no_grad():
        policy.net.layers[-1].bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
        counts = torch.bincount(policy.sample(torch.zeros(20_000, 3)), minlength=3)
        expected = policy(torch.zeros(1, 3)).exp()[0]
    torch.testing.assert_close(counts / 20_000, expected, rtol=0.0, atol=0.02)


# --- critics ---------------------------------------------------------------------------------


@each("members", [1, 2, 5])
@each("hidden", [(8,), (16, 8), (8, 8, 8)])
def test_critics_equal_their_members_one_by_one(members, hidden):
    critics = EnsembleCritic(members, 3, 2, hidden).double()
    obs, action = torch.randn(16, 3).double(), torch.randn(16, 2).double()
    values = critics(obs, action)
    assert values.shape == (members, 16)
    np.testing.assert_allclose(f64(values), critics_of(critics, obs, action), rtol=1e-9)
    if members > 1:
        assert not torch.allclose(values[0], values[1])
    samples = torch.randn(4, 16, 2).double()
    found = critics.of_samples(obs, samples)
    assert found.shape == (members, 4, 16)
    np.testing.assert_allclose(f64(found), critics_of(critics, obs, samples), rtol=1e-9)


def test_the_gradient_of_one_member_stays_in_it():
    critics = EnsembleCritic(2, 3, 2, (8,))
    critics(torch.randn(4, 3), torch.randn(4, 2))[0].sum().backward()
    for parameter in critics.parameters():
        assert parameter.grad[0].any()
        assert not parameter.grad[1].any()


def test_value_network():
    network = ValueNetwork(3, (8, 8)).double()
    obs = torch.randn(5, 3).double()
    np.testing.assert_allclose(f64(network(obs)), value_of(network, obs), rtol=1e-9)


def test_td_target_is_the_least_critic_at_a_policy_action():
    model = MLPSACModel(3, 2, (16,)).double()
    target_critics = frozen_copy(EnsembleCritic(2, 3, 2, (16,)).double())
    batch, noise = random_batch(), torch.randn(16, 2)
    batch = batch._replace(obs=batch.obs.double(), next_obs=batch.next_obs.double())
    target, log_prob = torch_td_target(model.policy, target_critics, batch, noise)
    expected, expected_log_prob = policy_td_target(model.policy, target_critics, batch, noise)
    assert target.shape == (16,)
    assert not target.requires_grad
    np.testing.assert_allclose(f64(target), expected, rtol=1e-6)
    np.testing.assert_allclose(f64(log_prob), expected_log_prob, rtol=1e-6)
    terminal = batch.discount == 0
    assert terminal.any()
    assert not terminal.all()
    torch.testing.assert_close(target[terminal].float(), batch.reward[terminal])


def test_values_of_data_and_policy_actions():
    model = MLPSACModel(3, 2, (16,))
    batch, noise = random_batch(), torch.randn(4, 16, 2)
    log_prob, q_samples, share = data_and_policy(model.policy, model.critics, batch, noise)
    assert share is None
    samples, _ = tanh_gaussian_sample(model.policy, batch.obs, noise)
    np.testing.assert_allclose(
        f64(q_samples), critics_of(model.critics, batch.obs, samples).min(0), 1e-4, 1e-6
    )
    torch.testing.assert_close(log_prob, model.policy.log_prob(batch.obs, batch.action))
    assert log_prob.requires_grad
    assert not q_samples.requires_grad


# --- functions -------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_expectile_loss(level):
    error = torch.randn(64).double().requires_grad_()
    loss = expectile_loss(error, level)
    total, gradient = expectile(f64(error), level)
    assert f64(loss) == pytest.approx(total)
    loss.backward()
    np.testing.assert_allclose(error.grad.numpy(), gradient, rtol=1e-7)


def test_critic_loss():
    q, target = torch.randn(3, 16).double().requires_grad_(), torch.randn(16).double()
    loss = critic_loss(q, target)
    total, gradient = squared_td_error(f64(q), f64(target))
    assert f64(loss) == pytest.approx(total)
    loss.backward()
    np.testing.assert_allclose(q.grad.numpy(), gradient, rtol=1e-9)


@pytest.mark.parametrize(("q", "target"), [((2, 8), (8, 1)), ((2, 8), (1, 8)), ((8,), (8,))])
def test_critic_loss_refuses_to_broadcast(q, target):
    with pytest.raises(AssertionError):
        critic_loss(torch.zeros(q), torch.zeros(target))


@pytest.mark.parametrize("cap", [0.5, 20.0, 100.0])
def test_capped_exp(cap):
    exponent = torch.tensor([-1e30, -100.0, -1.0, 0.0, 1.0, 3.0, 80.0, 1000.0, 1e30])
    found = torch_capped_exp(exponent, cap)
    assert torch.isfinite(found).all()
    np.testing.assert_allclose(f64(found), capped_exp(f64(exponent), cap), 1e-6, 1e-40)
    assert (found[-2:] == cap).all()


@each("tau", [0.0, 5e-3, 0.5, 1.0])
def test_soft_update(tau):
    online, target = EnsembleCritic(2, 3, 2, (8,)), frozen_copy(EnsembleCritic(2, 3, 2, (8,)))
    before = {name: f64(p).copy() for name, p in target.named_parameters()}
    unchanged = weights_of(online)
    soft_update(target, online, tau)
    for name, parameter in target.named_parameters():
        expected = (1.0 - tau) * before[name] + tau * f64(online.get_parameter(name))
        np.testing.assert_allclose(f64(parameter), expected, rtol=1e-5, atol=1e-7)
        assert not parameter.requires_grad
    assert torch.equal(weights_of(online), unchanged)


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e6])
def test_clip_gradients(max_norm):
    gradients = [torch.randn(7, 3), torch.randn(4), torch.randn(())]
    reference = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(reference, gradients, strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(reference, max_norm)
    gradients = clipped_gradients(gradients, max_norm)
    for parameter, gradient in zip(reference, gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-9)


def test_clip_leaves_zero_gradients_alone():
    gradients = [torch.zeros(3), torch.zeros(2, 2)]
    gradients = clipped_gradients(gradients, 1.0)
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0])
def test_moving_moments(rate):
    moments = MovingMoments(rate)
    mean = square = None
    for seed in range(4):
        batch = np.random.default_rng(seed).normal(5.0, 3.0, 64).astype(np.float32)
        after = moments.after(torch.from_numpy(batch))
        moments.set(after)
        mean = moved(mean, np.mean(f64(batch)), rate)
        square = moved(square, np.mean(f64(batch) ** 2), rate)
        assert float(moments.mean) == pytest.approx(mean, rel=1e-5)
        assert float(moments.mean_square) == pytest.approx(square, rel=1e-5)
        assert float(after.std) == pytest.approx(np.sqrt(square - mean**2), rel=1e-4)
    assert {"mean", "mean_square", "started"} <= moments.state_dict().keys()


def test_moments_of_a_constant_have_no_standard_deviation():
    moments = MovingMoments(0.1)
    for _ in range(3):
        after = moments.after(torch.full((16,), 1234.567))
        moments.set(after)
    assert float(after.std) < 1.0
    assert math.isfinite(float(after.std))


# --- optimisation ----------------------------------------------------------------------------


def test_laprop_by_hand():
    """Clip by the parameter's norm, divide, then average; the rate warms up."""
    torch.manual_seed(0)
    start = [torch.randn(5, 3), 1e-6 * torch.randn(4)]
    parameters = [torch.nn.Parameter(p.clone()) for p in start]
    optimizer = LaProp(parameters, lr=0.01, clip=0.3, warmup=4)
    expected = [f64(p).copy() for p in start]
    square, average = ([np.zeros(p.shape) for p in start] for _ in range(2))
    for t in range(1, 7):
        gradients = [torch.randn(5, 3) * 10.0, 1e-5 * torch.randn(4)]
        optimizer.step(gradients)
        for i, gradient in enumerate(f64(g) for g in gradients):
            limit = 0.3 * max(1e-3, np.linalg.norm(expected[i]))
            clipped = gradient * min(1.0, limit / np.linalg.norm(gradient))
            square[i] = 0.999 * square[i] + 0.001 * clipped**2
            divided = clipped / np.sqrt(square[i] / (1 - 0.999**t))
            average[i] = 0.9 * average[i] + 0.1 * divided
            rate = 0.01 * min(1.0, t / 4)
            expected[i] = expected[i] - rate * average[i] / (1 - 0.9**t)
    for parameter, wanted in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(f64(parameter), wanted, rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize("eps", [1e-8, 3e-4])
def test_adam_by_hand(eps):
    """Gradients of about the larger epsilon's size, where it halves a step."""
    torch.manual_seed(0)
    start = torch.randn(5)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = FusedAdam([parameter], lr=0.01, eps=eps)
    expected, average, square = f64(start).copy(), np.zeros(5), np.zeros(5)
    for t in range(1, 7):
        gradient = 3e-4 * torch.randn(5)
        optimizer.step([gradient])
        average = 0.9 * average + 0.1 * f64(gradient)
        square = 0.999 * square + 0.001 * f64(gradient) ** 2
        denominator = np.sqrt(square / (1 - 0.999**t)) + eps
        expected -= 0.01 * average / (1 - 0.9**t) / denominator
    np.testing.assert_allclose(f64(parameter), expected, rtol=1e-5, atol=1e-6)


@each("algo", ["dqn", "c51", "qr_dqn", "iqn", "fqf", "ppo"])
def test_adam_eps_reaches_the_optimisers(algo):
    made = algorithm_class(algo)
    algorithm = made(Spaces(4, "discrete", 2), made.Params(adam_eps=0.5))
    own = {"fractions": 1e-8}  # FQF's second optimiser has the default
    for name, optimizer in algorithm.optimizers.items():
        assert optimizer.eps == own.get(name, 0.5), name


@each("size", [1e-10, 3e-18, 1e-18, 1e-19, 0.0])
def test_laprop_takes_no_leap_where_squares_vanish(size):
    """Runs take numbers below the normal range for 0."""
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = LaProp([parameter], lr=1e-3, clip=0.3, warmup=1)
    flushed = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        for _ in range(3):
            optimizer.step([torch.full((4,), size)])
    finally:
        torch.set_flush_denormal(flushed)
    assert 1.0 - 3.01e-3 <= float(parameter.detach().min()) <= 1.0


class Two(Algorithm):
    """Two networks of which each step moves the named ones."""

    action_kinds = frozenset({"box"})

    def __init__(self, params):
        super().__init__(BOX, params)
        self.first, self.second = ValueNetwork(3, (8,)), ValueNetwork(3, (8,))
        self.add_optimizer("first", self.first.parameters(), 1e-2)
        self.add_optimizer("second", self.second.parameters(), 1e-3)


@pytest.mark.parametrize("grad_clip", [None, 0.1])
def test_minimize_is_adam_on_the_named_networks_alone(grad_clip):
    learner = Two(make_learner("bc", grad_clip=grad_clip).params)
    first = copy.deepcopy(learner.first)
    optimizer = torch.optim.Adam(first.parameters(), lr=1e-2)
    untouched = weights_of(learner.second)
    for seed in range(3):
        obs = random_batch(seed=seed).obs

        def loss(network, obs=obs):
            return ((network(obs) - learner.second(obs)) ** 2).mean()

        metrics = learner.minimize(lambda: Loss(loss(learner.first), {"a": obs.sum()}), "first")  # noqa: B023
        assert not metrics["a"].requires_grad
        optimizer.zero_grad()
        loss(first).backward()
        if grad_clip:
            torch.nn.utils.clip_grad_norm_(first.parameters(), grad_clip)
        optimizer.step()
        torch.testing.assert_close(weights_of(learner.first), weights_of(first))
    assert torch.equal(weights_of(learner.second), untouched)


@each("algo", ALGORITHMS)
def test_metrics_are_detached_scalars_and_all_networks_move(algo):
    learner = make_learner(algo)
    before = {name: p.detach().clone() for name, p in learner.named_parameters()}
    for seed in range(2):
        metrics = learner.step(random_batch(seed=seed))
    for name, metric in metrics.items():
        assert metric.shape == (), name
        assert not metric.requires_grad, name
    for name, parameter in learner.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert int(learner.update_count) == 2


@each("algo", ALGORITHMS)
def test_same_seed_same_weights_and_other_seed_other_weights(algo):
    first, same, other = (make_learner(algo, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(weights_of(first), weights_of(same))
    assert not torch.equal(weights_of(first.policy), weights_of(other.policy))


# --- the data table --------------------------------------------------------------------------

GAMMA = 0.9
ENDS = [(4, "truncated"), (3, "terminated"), (1, "truncated"), (6, "truncated"), (1, "terminated")]


def episodes(spaces=BOX, parts=(), seed=0):
    """Episodes of given lengths, each with its own kind of end."""
    rng = np.random.default_rng(seed)
    rows = sum(length for length, _ in ENDS)
    last = np.cumsum([length for length, _ in ENDS]) - 1
    terminations, truncations = np.zeros(rows, bool), np.zeros(rows, bool)
    for row, (_, kind) in zip(last, ENDS, strict=True):
        (terminations if kind == "terminated" else truncations)[row] = True
    if spaces.is_discrete:
        actions = rng.integers(spaces.action_dim, size=rows) + spaces.action_start
    else:
        actions = rng.uniform(spaces.action_low, spaces.action_high, (rows, spaces.action_dim))
        actions = actions.astype(np.float32)
    return TransitionDataset(
        observations=rng.normal(2.0, 5.0, (rows, spaces.obs_dim)).astype(np.float32),
        actions=actions,
        rewards=rng.standard_normal(rows).astype(np.float32),
        next_observations=rng.normal(2.0, 5.0, (rows, spaces.obs_dim)).astype(np.float32),
        terminations=terminations,
        truncations=truncations,
        name="by hand",
        spaces=spaces,
        parts=parts,
    )


def table_of(dataset, **options):
    options = {"gamma": GAMMA, "with_returns": True, **options}
    return TransitionTable(dataset, CPU, **options)


def everything(table):
    return table.gather(torch.arange(len(table)))


def returns_by_loop(data, gamma, value_at_the_cut):
    """Discounted sums backwards in time; `value_at_the_cut` rates the last observation."""
    returns, following = np.zeros(len(data)), 0.0
    for row in reversed(range(len(data))):
        if data.terminations[row]:
            following = 0.0
        elif data.truncations[row]:
            following = value_at_the_cut(data.next_observations[row])
        returns[row] = following = float(data.rewards[row]) + gamma * following
    return returns


def test_discount_is_zero_at_terminal_rows_alone():
    data = episodes()
    batch = everything(table_of(data))
    expected = [0.0 if terminal else GAMMA for terminal in data.terminations]
    np.testing.assert_allclose(batch.discount.numpy(), expected, rtol=1e-6)
    assert (batch.discount == 0).sum() == 2


def test_rows_come_back_as_they_were():
    data = episodes()
    batch = everything(table_of(data))
    np.testing.assert_array_equal(batch.obs.numpy(), data.observations)
    np.testing.assert_array_equal(batch.next_obs.numpy(), data.next_observations)
    np.testing.assert_array_equal(batch.reward.numpy(), data.rewards)
    np.testing.assert_allclose(data.spaces.to_env(batch.action.numpy()), data.actions, atol=1e-4)
    assert batch.action.abs().max() < 1.0


def test_rows_are_gathered_by_number():
    table = table_of(episodes())
    whole, index = everything(table), torch.tensor([7, 0, 7, 14])
    for column, picked in zip(whole, table.gather(index), strict=True):
        assert (picked is column is None) or torch.equal(picked, column[index])


def test_returns_continue_at_a_time_limit_and_stop_at_an_end():
    data = episodes()
    value = ValueNetwork(3, (8,))
    batch = everything(table_of(data))
    expected = returns_by_loop(data, GAMMA, lambda last: value_of(value, last))
    found = bootstrapped_returns(batch, value)
    np.testing.assert_allclose(f64(found), expected, rtol=1e-5, atol=1e-6)
    assert not found.requires_grad


def test_returns_may_be_cut_at_a_time_limit():
    data = episodes()
    batch = everything(table_of(data, at_truncation="cut"))
    expected = returns_by_loop(data, GAMMA, lambda _: 0.0)
    np.testing.assert_allclose(batch.returns_to_go.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert batch.final_obs is None
    found = bootstrapped_returns(batch, ValueNetwork(3, (8,)))
    np.testing.assert_allclose(f64(found), expected, rtol=1e-5, atol=1e-6)


def test_returns_are_made_on_demand():
    batch = everything(table_of(episodes(), with_returns=False))
    assert batch.returns_to_go is None
    assert batch.bootstrap_discount is None
    assert batch.final_obs is None


def test_returns_of_long_data_equal_a_plain_loop(pendulum):
    batch = everything(TransitionTable(pendulum, CPU, gamma=0.99, with_returns=True))
    expected = returns_by_loop(pendulum, 0.99, lambda _: 0.0)
    np.testing.assert_allclose(batch.returns_to_go.numpy(), expected, rtol=1e-5, atol=1e-4)
    to_the_cut = 200 - np.arange(len(pendulum)) % 200
    np.testing.assert_allclose(batch.bootstrap_discount.numpy(), 0.99**to_the_cut, rtol=1e-5)


def test_returns_need_a_whole_episode():
    data = episodes()
    object.__setattr__(data, "has_whole_episode", False)
    table_of(data, with_returns=False)
    with pytest.raises(DataError, match="no whole episode"):
        table_of(data)


@pytest.mark.parametrize("start", [0, 1, -3])
def test_discrete_actions_go_round(start):
    spaces = Spaces(3, "discrete", 5, action_start=start)
    data = episodes(spaces)
    batch = everything(table_of(data))
    assert batch.action.dtype == torch.int64
    assert batch.action.shape == (len(data),)
    assert batch.action.min() >= 0
    assert batch.action.max() < 5
    np.testing.assert_array_equal(spaces.to_env(batch.action.numpy()), data.actions)


def test_observations_are_normalised_everywhere():
    data = episodes()
    batch = everything(table_of(data, normalize_observations=True))
    mean = f64(data.observations).mean(0)
    std = f64(data.observations).std(0) + 1e-3

    def standard(x):
        return (f64(x) - mean) / std

    np.testing.assert_allclose(batch.obs, standard(data.observations), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        batch.next_obs, standard(data.next_observations), rtol=1e-4, atol=1e-5
    )
    ends = np.flatnonzero(data.terminations | data.truncations)
    last = [ends[ends >= row][0] for row in range(len(data))]
    np.testing.assert_allclose(
        batch.final_obs, standard(data.next_observations[last]), rtol=1e-4, atol=1e-5
    )
    assert abs(batch.obs.mean()) < 1e-5


def test_normalised_outliers_are_cut_alike_for_learning_and_acting():
    rows = 400
    observations = np.zeros((rows, 3), np.float32)
    observations[0] = 1e3, -1e3, 0.0  # 20 deviations from the mean
    following = observations[::-1].copy()
    data = TransitionDataset(
        observations=observations,
        actions=np.zeros((rows, BOX.action_dim), np.float32),
        rewards=np.zeros(rows, np.float32),
        next_observations=following,
        terminations=np.zeros(rows, bool),
        truncations=np.arange(rows) == rows - 1,
        name="outliers",
        spaces=BOX,
    )
    table = table_of(data, normalize_observations=True)
    batch = everything(table)
    assert batch.obs[0].tolist() == batch.next_obs[-1].tolist() == [10.0, -10.0, 0.0]
    learner = make_learner("bc")
    learner.normalizer.active = True
    learner.normalizer.set_statistics(*map(torch.from_numpy, table.statistics))
    torch.testing.assert_close(learner.normalizer(torch.from_numpy(observations)), batch.obs)


LOWS, HIGHS = (-2.1, 0.8), (2.7, 2.1)
ODD_BOX = Spaces(3, "box", 2, LOWS, HIGHS)
"""Bounds whose middle and half width, rounded, add up to more than the bound."""


def test_actions_in_the_environments_units_stay_in_the_space():
    space = gym.spaces.Box(*(np.array(x, np.float32) for x in (LOWS, HIGHS)))
    inner = np.array([[1.0, 1.0], [-1.0, -1.0], [5.0, -5.0], [0.5, 0.0]], np.float32)
    assert all(space.contains(action) for action in ODD_BOX.to_env(inner))
    learner = make_learner("bc", ODD_BOX)
    policy = ActingPolicy(learner)
    for edge in (-1e3, 1e3):
        with torch.no_grad():
            learner.policy.net.layers[-1].bias.fill_(edge)
        action, _ = policy(np.zeros((4, 3), np.float32))
        assert all(space.contains(row) for row in action), (edge, action)
        np.testing.assert_allclose(action, ODD_BOX.to_env(np.full((4, 2), np.sign(edge))), 1e-6)


def test_discrete_actions_are_predicted_from_their_first_number():
    learner = make_learner("bc", Spaces(3, "discrete", 4, action_start=-1))
    with torch.no_grad():
        learner.policy.net.layers[-1].bias[2] = 1e3
    action, _ = ActingPolicy(learner)(np.zeros((2, 3), np.float32))
    assert action.tolist() == [1, 1]


def test_the_learner_normalises_what_it_acts_on():
    learner = make_learner("bc")
    learner.normalizer.active = True
    mean, std = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 2.0, 4.0])
    learner.normalizer.set_statistics(mean, std)
    obs = torch.randn(5, 3)
    found = learner.act(obs, explore=False).action
    torch.testing.assert_close(found, learner.policy.mode((obs - mean) / std))


def test_one_part_is_drawn_uniformly():
    table = table_of(episodes())
    counts = torch.bincount(table.draw(30_000), minlength=len(table))
    expected = 30_000 / len(table)
    assert counts.min() > 0.9 * expected
    assert counts.max() < 1.1 * expected


def test_parts_are_drawn_by_weight():
    sizes, weights = (4, 10, 1), (3.0, 1.0, 4.0)
    table = table_of(episodes(parts=tuple(zip(sizes, weights, strict=True))))
    draws = 80_000
    counts = torch.bincount(table.draw(draws), minlength=len(table)).double() / draws
    start = 0
    for size, weight in zip(sizes, weights, strict=True):
        share = weight / sum(weights) / size
        # five deviations of a binomial count
        margin = 5.0 * math.sqrt(share / draws)
        assert (counts[start : start + size] - share).abs().max() < margin
        start += size
    batch = table.sample(64)
    assert isinstance(batch, Batch)
    assert batch.obs.shape == (64, 3)


def test_draws_follow_the_seed():
    table = table_of(episodes())
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(table.draw(50))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_plain_layers_are_the_modules_that_they_stand_for():
    """Value networks leave out the calls of their modules, and no hook; copies are their own."""
    torch.manual_seed(0)
    obs = torch.randn(5, 3)
    for make in (
        lambda sizes: QNetwork(ValueLayers(3, 2, sizes)),
        lambda sizes: QuantileNetwork(ValueLayers(3, 2, sizes), 4),
    ):
        for sizes in ((8,), (8, 6), (8, 6, 4)):
            network, called = make(sizes), []
            found = network(obs)
            wanted = network.head(network.features(obs), None)
            assert torch.equal(found.view(-1), wanted.view(-1))
            twin = copy.deepcopy(network)
            with torch.no_grad():
                network.features.net.layers[0].weight.add_(1.0)
            assert torch.equal(twin(obs), found)
            assert not torch.equal(network(obs), found)
            handle = network.head.actions.register_forward_hook(lambda *_, c=called: c.append(1))
            hooked = network(obs)
            handle.remove()
            assert called == [1]
            assert torch.equal(network(obs), hooked)
