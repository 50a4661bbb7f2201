"""PPO: loss and advantages against NumPy, clipping, schedules, normalisation, bad knobs."""

import copy

import numpy as np
import pytest
import torch

from rl_training.algorithms.ppo import ppo_loss
from rl_training.envs.make import env_spaces
from rl_training.experiment.errors import ConfigError
from rl_training.models import ObservationNormalizer, RewardScale
from rl_training.replay.rollout import RolloutBatch, generalized_advantages
from rl_training.runtime.build import build_algorithm
from rl_training.runtime.loops.on_policy import OnPolicyLoop

from ..contract.small_runs import small_config, small_learner
from ..each import each
from .helpers import BOX, DISCRETE, f64, make_learner, random_arrays, weights_of

NAMES = ("log_prob", "old_log_prob", "advantage", "entropy", "value", "old_value", "returns")
KNOBS = {"clip": 0.2, "value_clip": None, "value_coef": 0.5, "entropy_coef": 0.01}


def oracle(x, clip, value_clip, value_coef, entropy_coef):
    """Row by row, as the paper writes it."""
    surrogate, errors = [], []
    for i in range(len(x["log_prob"])):
        ratio = np.exp(x["log_prob"][i] - x["old_log_prob"][i])
        a = x["advantage"][i]
        kept = min(max(ratio, 1 - clip), 1 + clip)
        surrogate.append(min(ratio * a, kept * a))
        v, old, target = x["value"][i], x["old_value"][i], x["returns"][i]
        error = (v - target) ** 2
        if value_clip is not None:
            near = old + np.clip(v - old, -value_clip, value_clip)
            error = max(error, (near - target) ** 2)
        errors.append(error)
    policy, value = -np.mean(surrogate), 0.5 * np.mean(errors)
    return policy + value_coef * value - entropy_coef * x["entropy"].mean(), policy, value


@each("seed", range(3))
@each("value_clip", [None, 0.3])
@each("clip", [0.05, 0.5])
def test_loss(seed, value_clip, clip):
    arrays = random_arrays(seed, **dict.fromkeys(NAMES, 64))
    knobs = {**KNOBS, "clip": clip, "value_clip": value_clip}
    loss = ppo_loss(**{k: torch.as_tensor(v) for k, v in arrays.items()}, **knobs)
    total, policy, value = oracle({k: np.asarray(v) for k, v in arrays.items()}, **knobs)
    assert f64(loss.total) == pytest.approx(total, rel=1e-6)
    assert f64(loss.metrics["policy_loss"]) == pytest.approx(policy, rel=1e-6)
    assert f64(loss.metrics["value_loss"]) == pytest.approx(value, rel=1e-6)


def test_what_a_loss_says_of_the_policys_step():
    """Estimates of KL(old, new) from its own samples, and who has left the clip range."""
    ratio = np.array([0.5, 0.75, 1.0, 1.25, 1.9])
    zeros = torch.zeros(5).double()
    loss = ppo_loss(
        torch.tensor(np.log(ratio)),
        zeros,
        zeros,
        torch.arange(5).double(),
        zeros,
        zeros,
        zeros,
        **{**KNOBS, "clip": 0.3},
    )
    expected = np.mean([r - 1.0 - np.log(r) for r in ratio])
    assert f64(loss.metrics["approx_kl"]) == pytest.approx(expected)
    assert f64(loss.metrics["clip_fraction"]) == pytest.approx(2 / 5)  # one on either side
    assert f64(loss.metrics["entropy"]) == pytest.approx(2.0)
    assert f64(loss.total) == pytest.approx(-0.01 * 2.0)


def test_no_gradient_past_the_clip():
    """A ratio that has gone far enough in the good direction is left alone."""
    log_prob = torch.tensor([0.5, -0.5, 0.5, -0.5], requires_grad=True)
    zeros = torch.zeros(4)
    advantage = torch.tensor([1.0, -1.0, -1.0, 1.0])
    ppo_loss(log_prob, zeros, advantage, zeros, zeros, zeros, zeros, **KNOBS).total.backward()
    assert (log_prob.grad[:2] == 0).all()
    assert (log_prob.grad[2:] != 0).all()


def test_generalized_advantages_by_hand():
    """Three environments: one runs on, one terminates, one is cut in the middle."""
    rng = np.random.default_rng(0)
    reward, value, next_value = rng.normal(size=(3, 6, 3))
    terminated, truncated = np.zeros((2, 6, 3), bool)
    terminated[2, 1] = truncated[3, 2] = True
    gamma, lam = 0.9, 0.7
    expected = np.zeros((6, 3))
    for e in range(3):
        for t in range(6):
            factor = 1.0
            for k in range(t, 6):
                bootstrap = 0.0 if terminated[k, e] else next_value[k, e]
                expected[t, e] += factor * (reward[k, e] + gamma * bootstrap - value[k, e])
                if terminated[k, e] or truncated[k, e]:
                    break
                factor *= gamma * lam
    found = generalized_advantages(
        *(torch.as_tensor(x) for x in (reward, value, next_value, terminated, truncated)),
        gamma=gamma,
        gae_lambda=lam,
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_lambda_one_is_the_return_and_zero_the_td_error():
    reward = torch.ones(4, 1).double()
    value = torch.arange(4.0).double().unsqueeze(1)
    next_value = torch.cat([value[1:], torch.tensor([[7.0]]).double()])
    flags = torch.zeros(4, 1, dtype=torch.bool)
    one = generalized_advantages(reward, value, next_value, flags, flags, gamma=0.5, gae_lambda=1.0)
    returns = 1 + 0.5 * (1 + 0.5 * (1 + 0.5 * (1 + 0.5 * 7.0)))
    assert float(one[0]) == pytest.approx(returns - 0.0)
    zero = generalized_advantages(
        reward, value, next_value, flags, flags, gamma=0.5, gae_lambda=0.0
    )
    torch.testing.assert_close(zero, reward + 0.5 * next_value - value)


def rollout(learner, size=64, dtype=torch.float32):
    obs = torch.randn(size, learner.spaces.obs_dim, dtype=dtype)
    action, log_prob, value = learner.collect(obs)
    advantage = torch.randn(size, dtype=dtype)
    return RolloutBatch(obs, action, log_prob, value, advantage, advantage + value)


def test_first_update_sees_ratio_one():
    learner = make_learner("ppo")
    metrics = learner.step(rollout(learner))
    assert float(metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(metrics["clip_fraction"]) == 0.0


@each("spaces", [BOX, DISCRETE], ids=["box", "discrete"])
@each("normalize", [True, False])
@each("shared", [False, True])
def test_update_equals_the_papers_steps(spaces, normalize, shared):
    """Five steps on one minibatch, by torch's distributions, norms and Adam."""
    knobs = {"lr": 1e-2, "clip": 0.1, "value_clip": 0.2, "value_coef": 0.25, "entropy_coef": 0.1}
    learner = make_learner(
        "ppo",
        spaces,
        grad_clip=0.02,
        normalize_advantages=normalize,
        shared_layers=shared,
        **knobs,
    ).double()
    batch = rollout(learner, dtype=torch.float64)
    actor, critic = copy.deepcopy(learner.actor), copy.deepcopy(learner.value)
    groups = [(actor.parameters(), 1e-2), (critic.parameters(), 0.5e-2)]  # half of 0.5, half of lr
    if shared:
        groups = [([*actor.parameters(), *critic.parameters()], 1e-2)]
    steps = [torch.optim.Adam(parameters, lr=lr) for parameters, lr in groups]
    advantage = f64(3.0 * batch.advantage + 2.0)
    batch = batch._replace(advantage=torch.from_numpy(advantage))
    if normalize:
        advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
    weight = torch.from_numpy(advantage)
    for _step in range(5):
        outputs = actor.net(batch.obs)
        if spaces.is_discrete:
            policy = torch.distributions.Categorical(logits=outputs)
            log_prob, entropy = policy.log_prob(batch.action), policy.entropy()
        else:
            policy = torch.distributions.Normal(outputs, actor.log_std.exp())
            log_prob, entropy = policy.log_prob(batch.action).sum(-1), policy.entropy().sum(-1)
        ratio = (log_prob - batch.log_prob).exp()
        surrogate = torch.minimum(ratio * weight, ratio.clamp(0.9, 1.1) * weight)
        seen = batch.obs
        for layer in actor.net.layers[:-1] if shared else critic.net.layers[:-1]:
            seen = torch.relu(seen @ layer.weight.T + layer.bias)
        last = critic.net.layers[-1]
        value = (seen @ last.weight.T + last.bias).squeeze(-1)
        near = batch.value + (value - batch.value).clamp(-0.2, 0.2)
        error = torch.maximum((value - batch.returns) ** 2, (near - batch.returns) ** 2)
        loss = -surrogate.mean() + 0.25 * 0.5 * error.mean() - 0.1 * entropy.mean()
        for optimizer in steps:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in steps:
            (group,) = optimizer.param_groups
            assert torch.nn.utils.clip_grad_norm_(group["params"], 0.02) > 0.02
            optimizer.step()
        metrics = learner.step(batch)
        assert f64(metrics["policy_loss"]) == pytest.approx(-f64(surrogate).mean(), rel=1e-6)
        assert f64(metrics["entropy"]) == pytest.approx(f64(entropy).mean(), rel=1e-6)
    assert float(metrics["clip_fraction"]) > 0.1
    torch.testing.assert_close(weights_of(learner.actor), weights_of(actor), rtol=0, atol=1e-7)
    torch.testing.assert_close(weights_of(learner.value), weights_of(critic), rtol=0, atol=1e-7)


def test_a_shared_network_has_one_layer_more_for_the_value():
    learner = make_learner("ppo", hidden_sizes=[8, 6], shared_layers=True)
    assert [list(x.shape) for x in learner.value.parameters()] == [[1, 6], [1]]
    assert list(learner.optimizers) == ["policy"]
    obs = torch.randn(5, learner.spaces.obs_dim)
    before = learner.value(obs)
    with torch.no_grad():  # the policy's own last layer is none of the value's
        learner.actor.net.layers[-1].weight.add_(1.0)
    torch.testing.assert_close(learner.value(obs), before)
    with torch.no_grad():
        learner.actor.net.layers[0].weight.add_(1.0)
    assert not torch.allclose(learner.value(obs), before)
    with learner.actor.net.hidden_once(obs):  # the same, and of other inputs as well
        torch.testing.assert_close(learner.value(obs), learner.value(obs.clone()))
        torch.testing.assert_close(learner.actor.net(obs), learner.actor.net(obs.clone()))
    moved = copy.deepcopy(learner)  # its value looks at its own policy
    torch.testing.assert_close(moved.value(obs), learner.value(obs))
    with torch.no_grad():
        learner.actor.net.layers[0].weight.zero_()
    assert not torch.allclose(moved.value(obs), learner.value(obs))


@each(
    ("knobs", "reason"),
    [
        ({"memory": "gru"}, "with memory policy and value have layers of their own"),
        ({"critic_hidden_sizes": [9]}, "critic_hidden_sizes: .* no hidden layers of its own"),
        ({"layer_norm": True}, "layer_norm: .* no hidden layers of its own"),
        (
            {"networks": "tests.contract.own_networks:all_of_them"},
            "of your own .* no layers to share",
        ),
    ],
)
def test_layers_that_cannot_be_shared_are_refused(knobs, reason):
    with pytest.raises(ConfigError, match=reason):
        make_learner("ppo", shared_layers=True, **knobs)


def test_better_actions_become_likelier():
    learner = make_learner("ppo", lr=1e-2, entropy_coef=0.0)
    batch = rollout(learner)
    for _ in range(20):
        learner.step(batch)
    moved = learner.policy.log_prob(batch.obs, batch.action) - batch.log_prob
    good = batch.advantage > batch.advantage.mean()
    assert moved[good].mean() > moved[~good].mean()


def test_schedules_reach_clip_and_entropy():
    linear = {"kind": "linear"}
    longer = {"kind": "linear", "over": 200}
    learner = make_learner("ppo", entropy_coef=0.1, clip_schedule=linear, entropy_schedule=longer)
    learner.follow_schedules(25, 100)
    assert float(learner.clip) == pytest.approx(0.2 * 0.75)
    assert float(learner.entropy_coef) == pytest.approx(0.1 * 0.875)


def test_initialisation_is_orthogonal_with_a_small_policy_head():
    learner = make_learner("ppo", hidden_sizes=[64, 64])
    weight = learner.actor.net.layers[1].weight
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(64), rtol=1e-4, atol=1e-4)
    assert learner.actor.net.layers[-1].weight.norm(dim=1).max() < 0.011
    assert float(learner.value.net.layers[-1].weight.norm()) == pytest.approx(1.0, rel=1e-4)


def test_running_observation_statistics():
    data = np.random.default_rng(0).normal(3.0, 5.0, size=(400, 2)).astype(np.float32)
    normalizer = ObservationNormalizer(2, active=True)
    for chunk in np.split(data, [1, 7, 100]):
        normalizer.observe(torch.from_numpy(chunk))
    np.testing.assert_allclose(normalizer.mean.numpy(), data.mean(0), rtol=1e-3)
    np.testing.assert_allclose(normalizer.std.numpy(), data.std(0), rtol=1e-2)
    away = torch.tensor([[-11.0], [-9.0], [0.0], [9.0], [11.0]]).expand(5, 2)
    found = normalizer(normalizer.mean + away * normalizer.std)
    np.testing.assert_allclose(found.numpy(), away.clamp(-10.0, 10.0).numpy(), atol=1e-5)


def test_reward_scale_divides_by_the_standard_deviation_of_the_return():
    scale = RewardScale(2, gamma=0.9)
    rng = np.random.default_rng(0)
    running, seen = np.zeros(2), []
    for t in range(200):
        reward = rng.normal(2.0, 3.0, size=2).astype(np.float32)
        ended = np.array([t % 10 == 9, False])
        out = scale.scaled(torch.from_numpy(reward), torch.from_numpy(ended))
        running = running * 0.9 + reward
        seen.append(running.copy())
        deviation = np.concatenate(seen).std()
        running[ended] = 0.0
    np.testing.assert_allclose(out.numpy(), np.clip(reward / deviation, -10, 10), rtol=1e-2)


def test_densities_are_those_of_the_actions_as_drawn() -> None:
    """Clipped before it is rated, a third of the actions would have another's density."""
    config = small_config("ppo", "box")
    algorithm, source = small_learner(config)
    obs = source.table.sample(512).obs
    action, log_prob, value = algorithm.collect(obs)
    assert float((action.abs() > 1.0).float().mean()) > 0.2
    mean = algorithm.actor.net(obs).detach()
    normal = torch.distributions.Normal(mean, algorithm.actor.log_std.detach().exp())
    torch.testing.assert_close(log_prob, normal.log_prob(action).sum(-1))
    torch.testing.assert_close(log_prob, algorithm.actor.log_prob(obs, action).detach())
    torch.testing.assert_close(value, algorithm.value(obs).detach())
    assert bool((algorithm.actor.sample(obs).abs() <= 1.0).all())


def test_the_first_actions_have_the_initial_standard_deviation() -> None:
    policy = make_learner("ppo", BOX, initial_std=0.25).actor
    obs = torch.zeros(20_000, BOX.obs_dim)
    torch.manual_seed(0)
    drawn = policy.draw(obs)[0] - policy.mean(obs)
    assert drawn.std(0).detach().numpy() == pytest.approx(0.25, rel=0.03)


def test_the_rollout_holds_what_was_drawn_and_the_environment_gets_it_clipped() -> None:
    config = small_config("ppo", "box", total_timesteps=64)
    algorithm = build_algorithm(config, env_spaces(config.env_id))
    loop = OnPolicyLoop(config, algorithm)
    torch.manual_seed(0)
    loop._collect()
    taken = loop.rollout.taken()
    rollout = loop._rollout(taken, taken.reward)
    assert float(rollout.action.abs().max()) > 1.0
    expected = algorithm.actor.log_prob(rollout.obs, rollout.action).detach()
    torch.testing.assert_close(rollout.log_prob, expected)
    sent = loop.experience.collector._log.since_reset(0)
    clipped = algorithm.spaces.to_env(rollout.action.clamp(-1.0, 1.0).numpy())
    assert abs(sent).max() <= 2.0
    np.testing.assert_allclose(sent, clipped[: len(sent)], atol=1e-6)
    loop.close()
