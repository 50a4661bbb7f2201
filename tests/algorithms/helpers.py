"""Oracles in float64 NumPy and the checks that every algorithm's file makes with them.

The oracles are written from the papers' equations and share no code with the package.
"""

import math

import numpy as np
import pytest
import torch

from rl_training.algorithms.loops import loop_family
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError
from rl_training.experiment.registry import algorithm_class
from rl_training.models import BoundedGaussianPolicy
from rl_training.replay.batch import Batch
from rl_training.replay.table import TransitionTable
from rl_training.runtime.build import build_algorithm

SEEDS_AND_SIZES = [(0, 1), (1, 2), (2, 33), (3, 256)]
"""Seeds of random inputs with their batch sizes."""
BOX = Spaces(3, "box", 2, (-1.0, -2.0), (1.0, 2.0))
DISCRETE = Spaces(4, "discrete", 3)
CPU = torch.device("cpu")


# --- oracles ---------------------------------------------------------------------------------


def capped_exp(exponent, cap):
    """min(exp(x), cap) without overflow."""
    return np.where(exponent < math.log(cap), np.exp(np.minimum(exponent, math.log(cap))), cap)


def weighted_likelihood(log_prob, weight):
    """Loss -mean(w log pi) and its gradient with respect to log pi at fixed weights."""
    return -np.mean(weight * log_prob), -weight / weight.size


def weight_spread(weight, cap):
    """Mean, share at the cap and Kish's effective share of the weights."""
    effective = weight.sum() ** 2 / max((weight**2).sum() * weight.size, 1e-12)
    return {
        "weight_mean": weight.mean(),
        "weight_capped": np.mean(weight >= cap * (1.0 - 1e-9)),
        "weight_effective": effective,
    }


def half_squares(target, value):
    """Loss mean((target - value)^2) / 2 and its gradient with respect to the value."""
    error = target - value
    return 0.5 * np.mean(error**2), -error / error.size


def expectile(error, level):
    """Mean of |level - 1{u < 0}| u^2, and its gradient with respect to u."""
    side = np.where(error < 0.0, 1.0 - level, level)
    return np.mean(side * error**2), 2.0 * side * error / error.size


def squared_td_error(q, target):
    """Squared error of (members, B) to (B,), summed over members, averaged over the batch."""
    error = q - target
    return np.mean(np.sum(error**2, axis=0)), 2.0 * error / q.shape[1]


def logsumexp(x, axis):
    top = x.max(axis=axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.exp(x - top).sum(axis=axis))


def moved(average, new, rate):
    """A moving average that the first value sets."""
    return new if average is None else average + rate * (new - average)


def numeric_gradient(function, x, step=1e-5):
    """Central differences of a scalar function of one float64 array."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        gradient[place] = (function(up) - function(down)) / (2.0 * step)
    return gradient


def f64(x):
    return np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, dtype=np.float64)


def mlp_forward(layers, x, norms=()):
    """ReLU network from (weight (in, out), bias) pairs, linear at the end.

    `norms` are (scale, shift) pairs of a LayerNorm between each product and its ReLU.
    """
    for i, (weight, bias) in enumerate(layers[:-1]):
        x = x @ weight + bias
        if norms:
            scale, shift = norms[i]
            centred = x - x.mean(-1, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift
        x = np.maximum(x, 0.0)
    weight, bias = layers[-1]
    return x @ weight + bias


def mlp(module, x):
    """Output of an `MLP`, by its weights and plain matrix products."""
    return mlp_forward([(f64(layer.weight).T, f64(layer.bias)) for layer in module.layers], f64(x))


def value_of(network, obs):
    return mlp(network.net, obs)[..., 0]


def critics_of(critics, obs, action):
    """(members, ...) values, one member after the other."""
    x = np.concatenate(
        [np.broadcast_to(f64(obs), (*np.shape(action)[:-1], np.shape(obs)[-1])), f64(action)], -1
    )
    return np.stack(
        [
            mlp_forward(
                [
                    (f64(weight)[member], f64(bias)[member, 0])
                    for weight, bias in zip(critics.net.weights, critics.net.biases, strict=True)
                ],
                x,
                [
                    (f64(scale)[member], f64(shift)[member])
                    for scale, shift in zip(
                        critics.net.norm_scales, critics.net.norm_shifts, strict=True
                    )
                ],
            )[..., 0]
            for member in range(critics.net.num_members)
        ]
    )


def gaussian_of(policy, obs):
    """Mean and log-deviation before the squashing, the latter held in [-5, 2]."""
    out = mlp(policy.net, obs)
    if policy.log_std is None:
        mean, log_std = np.split(out, 2, axis=-1)
    else:
        mean, log_std = out, np.broadcast_to(f64(policy.log_std), out.shape)
    return mean, np.clip(log_std, -5.0, 2.0)


def normal_log_density(x, mean, log_std):
    return -0.5 * ((x - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2.0 * np.pi)


def tanh_gaussian_log_prob(policy, obs, action):
    """Change of variables: log N(atanh a) - sum log(1 - a^2)."""
    action = f64(action)
    mean, log_std = gaussian_of(policy, obs)
    density = normal_log_density(np.arctanh(action), mean, log_std)
    return np.sum(density - np.log((1.0 - action) * (1.0 + action)), axis=-1)


def tanh_gaussian_sample(policy, obs, noise):
    """Action tanh(mean + std * noise) and its log-density, with log(1 - tanh^2) = -2 log cosh."""
    mean, log_std = gaussian_of(policy, obs)
    pre = mean + np.exp(log_std) * f64(noise)
    log_cosh = np.logaddexp(pre, -pre) - math.log(2.0)
    density = normal_log_density(pre, mean, log_std)
    return np.tanh(pre), np.sum(density + 2.0 * log_cosh, axis=-1)


def bounded_gaussian_log_prob(policy, obs, action):
    """log N(a) around the tanh of the network's mean."""
    mean, log_std = gaussian_of(policy, obs)
    return np.sum(normal_log_density(f64(action), np.tanh(mean), log_std), axis=-1)


def bounded_gaussian_sample(policy, obs, noise):
    """Action tanh(mean) + std * noise, clipped, and its log-density before the clipping."""
    mean, log_std = gaussian_of(policy, obs)
    drawn = np.tanh(mean) + np.exp(log_std) * f64(noise)
    density = normal_log_density(drawn, np.tanh(mean), log_std)
    return np.minimum(np.maximum(drawn, -1.0), 1.0), np.sum(density, axis=-1)


def policy_log_prob(policy, obs, action):
    """By the policy's kind."""
    bounded = isinstance(policy, BoundedGaussianPolicy)
    return (bounded_gaussian_log_prob if bounded else tanh_gaussian_log_prob)(policy, obs, action)


def policy_sample(policy, obs, noise):
    """By the policy's kind."""
    bounded = isinstance(policy, BoundedGaussianPolicy)
    return (bounded_gaussian_sample if bounded else tanh_gaussian_sample)(policy, obs, noise)


def policy_td_target(policy, target_critics, batch, noise):
    """r + discount * min_i Q_i(s', a'), a' from the policy at s', and log pi(a'|s')."""
    action, log_prob = policy_sample(policy, batch.next_obs, noise)
    q = critics_of(target_critics, batch.next_obs, action).min(0)
    return f64(batch.reward) + f64(batch.discount) * q, log_prob


def deterministic_action(policy, obs):
    """tanh of the network's output."""
    return np.tanh(mlp(policy.net, obs))


def smoothed_action(policy, obs, noise, std, clip):
    """The policy's action with clipped noise, inside the box; TD3, eq. 14."""
    shaken = deterministic_action(policy, obs) + np.clip(std * f64(noise), -clip, clip)
    return np.clip(shaken, -1.0, 1.0)


# --- comparing a loss with its oracle --------------------------------------------------------


def random_arrays(seed, scale=1.0, **shapes):
    """Normal float32 values by name, times `scale`."""
    rng = np.random.default_rng(seed)
    return {
        name: (scale * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def evaluate(loss_fn, inputs, dtype=torch.float64, **knobs):
    """The Loss at given inputs and its gradients; 0 where none flows."""
    leaves = {
        name: torch.tensor(array, dtype=dtype, requires_grad=True) for name, array in inputs.items()
    }
    loss = loss_fn(**leaves, **knobs)
    gradients = torch.autograd.grad(loss.total, list(leaves.values()), allow_unused=True)
    return loss, {
        name: np.zeros(leaf.shape) if gradient is None else f64(gradient)
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }


def assert_loss_equals(loss_fn, inputs, total, terms, gradients, free=(), scale=1.0, **knobs):
    """Total, named terms and gradients in float64 and in float32.

    Inputs without an entry in `gradients` must receive none, except those in `free`.
    """
    # a sum of large terms of both signs is known to the size of its terms, not to its own
    size = sum(np.abs(gradients[name] * f64(inputs[name])).sum() for name in gradients)
    for dtype, rtol in ((torch.float64, 1e-7), (torch.float32, 1e-5)):
        atol = rtol * max(1.0, scale, size)
        loss, found = evaluate(loss_fn, inputs, dtype, **knobs)
        assert loss.total.shape == ()
        np.testing.assert_allclose(f64(loss.total), total, rtol, atol, err_msg=f"total, {dtype}")
        for name, expected in terms.items():
            np.testing.assert_allclose(
                f64(loss.metrics[name]), expected, rtol, atol, err_msg=f"{name}, {dtype}"
            )
        for name in set(inputs) - set(free):
            if name not in gradients:
                assert not found[name].any(), f"a gradient reaches {name}"
                continue
            expected = gradients[name]
            np.testing.assert_allclose(
                found[name],
                expected,
                rtol,
                rtol * max(np.abs(expected).max(), 1e-3),
                err_msg=f"gradient of {name}, {dtype}",
            )


def gradient_reaches(loss_fn, inputs, name, **knobs):
    return bool(evaluate(loss_fn, inputs, **knobs)[1][name].any())


# --- learners --------------------------------------------------------------------------------


def make_config(algo, env_id="Pendulum-v1", seed=0, **knobs):
    name = "pendulum-mixed" if env_id == "Pendulum-v1" else "cartpole-mixed"
    loop = loop_family(algorithm_class(algo).loop)
    keys = {"total_timesteps": 10_000} if loop.needs_env else {"total_updates": 10}
    if loop.needs_data:
        keys["dataset"] = {"kind": "scripted", "name": name}
    return TrainConfig(algo=algo, env_id=env_id, seed=seed, device="cpu", algo_kwargs=knobs, **keys)


def make_learner(algo, spaces=BOX, seed=0, hidden_sizes=(32, 32), **knobs):
    """A small learner on the CPU."""
    return build_algorithm(make_config(algo, seed=seed, hidden_sizes=hidden_sizes, **knobs), spaces)


def table_for(learner, dataset):
    return TransitionTable(
        dataset,
        CPU,
        gamma=learner.gamma,
        with_returns=learner.needs_returns,
        with_next_actions=learner.needs_next_actions,
    )


def train(learner, dataset, updates, batch_size=64, seed=0):
    """Update on batches that depend on the seed alone, and give back the last metrics."""
    table = table_for(learner, dataset)
    rows = np.random.default_rng(seed).integers(len(table), size=(updates, batch_size))
    for index in torch.from_numpy(rows):
        metrics = learner.step(table.gather(index))
    return metrics


def random_batch(spaces=BOX, size=16, seed=0, gamma=0.9):
    """Transitions of which every third is terminal."""
    rng = np.random.default_rng(seed)
    action = (
        torch.from_numpy(rng.integers(spaces.action_dim, size=size))
        if spaces.is_discrete
        else torch.from_numpy(rng.uniform(-0.9, 0.9, (size, spaces.action_dim))).float()
    )
    return Batch(
        obs=torch.from_numpy(rng.standard_normal((size, spaces.obs_dim))).float(),
        action=action,
        reward=torch.from_numpy(rng.standard_normal(size)).float(),
        next_obs=torch.from_numpy(rng.standard_normal((size, spaces.obs_dim))).float(),
        discount=torch.where(torch.arange(size) % 3 == 0, 0.0, gamma),
        returns_to_go=torch.from_numpy(rng.standard_normal(size)).float(),
        next_action=None if spaces.is_discrete else action.roll(1, 0),
        has_next_action=(torch.arange(size) % 4 != 0).float(),
    )


def record_noise(learner):
    """Let the learner draw as it does, and keep what it drew, in order."""
    drawn = []

    def keeping(source):
        def draw(*shape):
            drawn.append(source(*shape))
            return drawn[-1]

        return draw

    learner.normal = keeping(learner.normal)
    learner.uniform = keeping(learner.uniform)
    return drawn


def weights_of(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def assert_rejects(algo, key, value):
    """A bad knob is refused by its full name."""
    with pytest.raises(ConfigError) as caught:
        make_config(algo, **{key: value})
    for line in str(caught.value).splitlines():
        assert line.startswith((f"algo_kwargs.{key}:", f"algo_kwargs.{key}."))


COMMON_BAD_KNOBS = [
    ("hidden_sizes", []),
    ("hidden_sizes", [0]),
    ("batch_size", 0),
    ("grad_clip", 0.0),
    ("grad_clip", -1.0),
    ("no_such_knob", 1),
]
GAMMA_BAD_KNOBS = [("gamma", 1.5), ("gamma", -0.1), ("gamma", math.nan)]
TARGET_BAD_KNOBS = [*GAMMA_BAD_KNOBS, ("tau", 0.0), ("tau", 1.5)]


def bad_rates(*names):
    return [(name, value) for name in names for value in (0.0, -1e-3, math.nan, math.inf)]


def assert_refuses_discrete(algo, knobs=None):
    """Learners for Box actions name themselves when they refuse a Discrete task."""
    with pytest.raises(
        EnvironmentSetupError, match=rf"^algo: {algorithm_class(algo).name()} .*Discrete"
    ):
        make_learner(algo, DISCRETE, **(knobs or {}))


def assert_learns_discrete(algo, cartpole, **knobs):
    """A few hundred updates fit the expert's actions, and the returns where there is a value."""
    learner = make_learner(algo, cartpole.spaces, **knobs)
    table = table_for(learner, cartpole)
    everywhere = table.gather(torch.arange(0, len(table), 97))
    expert = table.gather(torch.arange(0, 25_000, 97))  # 50 episodes of 500 steps come first

    def misfit():
        with torch.no_grad():
            fit = {"actions": -learner.policy.log_prob(expert.obs, expert.action).mean()}
            if learner.needs_returns:
                error = learner.model.value(everywhere.obs) - everywhere.returns_to_go
                fit["returns"] = error.square().mean()
        return fit

    before = misfit()
    metrics = train(learner, cartpole, 300)
    assert all(torch.isfinite(metric) for metric in metrics.values())
    for name, after in misfit().items():
        assert after < 0.8 * before[name], name


def as_double(batch):
    """The batch in float64, for a learner in float64."""
    return Batch(*(x.double() if x is not None and x.is_floating_point() else x for x in batch))


def assert_targets_follow(before, online, after, tau):
    """target <- (1 - tau) target + tau online."""
    old, new, found = (f64(weights_of(module)) for module in (before, online, after))
    np.testing.assert_allclose(found, (1.0 - tau) * old + tau * new, rtol=1e-6, atol=1e-9)
    assert np.abs(found - old).max() > 0.0
