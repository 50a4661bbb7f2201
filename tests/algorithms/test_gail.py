"""GAIL: the discriminator's loss and rewards against NumPy, and the checks of its parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import gail_discriminator_loss, gail_reward
from rl_training.algorithms.gail import input_gradient_penalty
from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.algorithms.sac import SACAlgorithm
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ConfigError
from rl_training.models import MLPGAILDiscriminator
from rl_training.replay.imitation import ImitationBatch, Pairs
from rl_training.replay.rollout import RolloutBatch

from ..each import each
from .helpers import (
    BOX,
    COMMON_BAD_KNOBS,
    DISCRETE,
    SEEDS_AND_SIZES,
    assert_loss_equals,
    assert_rejects,
    bad_rates,
    f64,
    make_config,
    make_learner,
    mlp,
    mlp_forward,
    numeric_gradient,
    random_arrays,
    random_batch,
    record_noise,
    weights_of,
)

# --- rewards ---------------------------------------------------------------------------------


def sigmoid(x):
    return np.where(
        x >= 0, 1.0 / (1.0 + np.exp(-np.abs(x))), 1.0 - 1.0 / (1.0 + np.exp(-np.abs(x)))
    )


FORMS = {
    "softplus": lambda d: -np.log(1.0 - d),
    "log_sigmoid": np.log,
    "logit": lambda d: np.log(d) - np.log(1.0 - d),
}
"""Rewards by the discriminator's probability D that the pair is the expert's."""


@pytest.mark.parametrize("form", FORMS)
def test_reward_is_its_closed_form_and_grows_with_the_logit(form: str) -> None:
    logits = torch.linspace(-12.0, 12.0, 401, dtype=torch.float64)
    reward = gail_reward(logits, form)
    np.testing.assert_allclose(f64(reward), FORMS[form](sigmoid(f64(logits))), rtol=1e-6)
    assert bool((reward.diff() > 0).all())


@pytest.mark.parametrize(
    ("form", "at_half"), [("softplus", 0.693147), ("log_sigmoid", -0.693147), ("logit", 0.0)]
)
def test_reward_where_nothing_can_be_distinguished(form: str, at_half: float) -> None:
    assert float(gail_reward(torch.zeros(()), form)) == pytest.approx(at_half, abs=1e-6)
    for sure in (-1e4, 1e4):
        assert math.isfinite(float(gail_reward(torch.tensor(sure), form)))


def test_signs_of_the_forms() -> None:
    logits = torch.randn(1000) * 5
    assert bool((gail_reward(logits, "softplus") >= 0).all())
    assert bool((gail_reward(logits, "log_sigmoid") <= 0).all())


# --- the discriminator's loss ----------------------------------------------------------------


def loss_oracle(expert, policy, bonus):
    """Binary cross-entropy, the expert being 1, less the entropy of the verdicts."""
    d_expert, d_policy = sigmoid(expert), sigmoid(policy)
    cross = -np.mean(np.log(d_expert)) - np.mean(np.log(1.0 - d_policy))
    verdicts = np.concatenate([d_expert, d_policy])
    entropy = np.mean(-verdicts * np.log(verdicts) - (1 - verdicts) * np.log(1 - verdicts))

    def bent(logit, d):  # of the entropy: dH/dD = -logit, dD/dlogit = D (1 - D)
        return bonus * logit * d * (1.0 - d) / verdicts.size

    return (
        cross - bonus * entropy,
        {
            "discriminator_loss": cross,
            "discriminator_entropy": entropy,
            "expert_accuracy": np.mean(d_expert > 0.5),
            "policy_accuracy": np.mean(d_policy <= 0.5),
            "discriminator_accuracy": 0.5 * (np.mean(d_expert > 0.5) + np.mean(d_policy <= 0.5)),
        },
        {
            "expert_logits": -(1.0 - d_expert) / expert.size + bent(expert, d_expert),
            "policy_logits": d_policy / policy.size + bent(policy, d_policy),
        },
    )


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("bonus", [0.0, 1e-3, 0.7])
def test_loss_equals_the_oracle(seed: int, size: int, bonus: float) -> None:
    inputs = random_arrays(seed, 2.0, expert_logits=size, policy_logits=size)
    total, terms, gradients = loss_oracle(*(f64(x) for x in inputs.values()), bonus)
    assert_loss_equals(
        gail_discriminator_loss, inputs, total, terms, gradients, entropy_bonus=bonus
    )


def test_the_penalty_enters_with_its_weight() -> None:
    inputs = random_arrays(0, expert_logits=5, policy_logits=5)
    logits = [torch.from_numpy(x) for x in inputs.values()]
    without = gail_discriminator_loss(*logits)
    penalty = torch.tensor(0.25)
    with_it = gail_discriminator_loss(*logits, penalty, gradient_penalty=10.0)
    assert float(with_it.total - without.total) == pytest.approx(2.5, rel=1e-5)
    assert with_it.metrics["gradient_penalty"] is penalty
    assert "gradient_penalty" not in without.metrics


def test_the_penalty_of_a_linear_discriminator_is_analytic() -> None:
    judge = MLPGAILDiscriminator(3, "box", 2, ())
    expert, policy = torch.randn(9, 5), torch.randn(9, 5)
    found = input_gradient_penalty(judge.logits, expert, policy, torch.rand(9, 1))
    norm = np.linalg.norm(f64(judge.net.layers[0].weight))
    assert float(found.detach()) == pytest.approx((norm - 1.0) ** 2, rel=1e-5)


def test_the_penalty_of_a_network_by_central_differences() -> None:
    torch.manual_seed(0)
    judge = MLPGAILDiscriminator(3, "box", 2, (16, 16)).double()
    expert, policy = torch.randn(2, 7, 5, dtype=torch.float64)
    share = torch.rand(7, 1, dtype=torch.float64)
    between = f64(share) * f64(expert) + (1.0 - f64(share)) * f64(policy)
    slopes = [numeric_gradient(lambda x: mlp(judge.net, x)[0], row) for row in between]
    expected = np.mean([(np.linalg.norm(slope) - 1.0) ** 2 for slope in slopes])
    found = input_gradient_penalty(judge.logits, expert, policy, share)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-6)
    (gradient,) = torch.autograd.grad(found, judge.net.layers[0].weight)
    assert bool(gradient.any()), "the penalty must train the network"


# --- the discriminator -----------------------------------------------------------------------


def test_logits_are_those_of_standardised_inputs() -> None:
    judge = MLPGAILDiscriminator(3, "box", 2, (8,))
    seen = torch.randn(50, 3) * torch.tensor([1.0, 100.0, 1e-2]) + 5.0
    judge.observe(seen)
    obs, action = seen[:6], torch.rand(6, 2) * 2 - 1
    scaled = np.clip((f64(obs) - f64(seen).mean(0)) / f64(seen).std(0), -10, 10)
    expected = mlp(judge.net, np.concatenate([scaled, f64(action)], 1))[:, 0]
    np.testing.assert_allclose(f64(judge(obs, action)), expected, rtol=1e-4, atol=1e-5)


def test_discrete_actions_enter_one_hot() -> None:
    judge = MLPGAILDiscriminator(4, "discrete", 3, (8,))
    inputs = judge.inputs(torch.zeros(4, 4), torch.tensor([0, 2, 1, 2]))
    np.testing.assert_array_equal(inputs[:, 4:], np.eye(3)[[0, 2, 1, 2]])


def test_actions_are_judged_as_the_environment_takes_them() -> None:
    """A Gaussian policy draws beyond the box; that must not give it away."""
    judge = MLPGAILDiscriminator(3, "box", 2, (8,))
    obs = torch.randn(5, 3)
    beyond = torch.tensor([[1.5, -3.0]]).expand(5, 2)
    assert torch.equal(judge(obs, beyond), judge(obs, torch.tensor([[1.0, -1.0]]).expand(5, 2)))


def test_spectral_norm_makes_the_largest_singular_value_one() -> None:
    torch.manual_seed(0)
    judge = MLPGAILDiscriminator(3, "box", 2, (16, 16), spectral_norm=True)
    for layer in judge.net.layers:
        layer.weight.data *= 7.0
    for _ in range(200):
        judge.refresh()
    layers = [
        (f64(layer.weight).T / np.linalg.svd(f64(layer.weight))[1][0], f64(layer.bias))
        for layer in judge.net.layers
    ]
    inputs = torch.randn(9, 5)
    expected = mlp_forward(layers, f64(inputs))[:, 0]
    np.testing.assert_allclose(f64(judge.logits(inputs)), expected, rtol=1e-3, atol=1e-4)
    x, y = torch.randn(2, 500, 5)
    change = (judge.logits(x) - judge.logits(y)).abs() / (x - y).norm(dim=1)
    assert float(change.detach().max()) <= 1.001


def taught(expert, policy, updates=300, spaces=BOX, **knobs):
    """The learner after its discriminator saw draws of two populations, and the last metrics."""
    knobs = {"discriminator_updates": 1, "discriminator_lr": 1e-3, **knobs}
    learner = make_learner("gail", spaces, hidden_sizes=(32, 32), **knobs)
    rng = np.random.default_rng(0)
    for _ in range(updates):
        batch = ImitationBatch(pairs(expert(rng), spaces, rng), pairs(policy(rng), spaces, rng))
        metrics = learner.step(batch)
    return learner, metrics


def pairs(obs, spaces, rng):
    n = len(obs)
    action = (
        torch.from_numpy(rng.integers(spaces.action_dim, size=n))
        if spaces.is_discrete
        else torch.from_numpy(rng.uniform(-1, 1, (n, spaces.action_dim))).float()
    )
    return Pairs(torch.from_numpy(obs).float(), action)


def gaussian(centre, spaces, scale=1.0, n=256):
    return lambda rng: scale * (rng.standard_normal((n, spaces.obs_dim)) + centre)


@pytest.mark.parametrize("spaces", [BOX, DISCRETE], ids=["box", "discrete"])
def test_disjoint_populations_are_distinguished(spaces: Spaces) -> None:
    _, metrics = taught(gaussian(4.0, spaces), gaussian(-4.0, spaces), 200, spaces)
    assert metrics["discriminator_accuracy"] > 0.95
    assert metrics["expert_reward_mean"] > metrics["reward_mean"] + 1.0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_equal_populations_are_not(scale: float) -> None:
    """Accuracy on fresh draws, and a reward that says nothing, at any scale of the inputs."""
    learner, _ = taught(gaussian(1.0, BOX, scale), gaussian(1.0, BOX, scale))
    rng = np.random.default_rng(9)
    with torch.no_grad():
        logits = [
            learner.discriminator(*pairs(gaussian(1.0, BOX, scale, 4096)(rng), BOX, rng))
            for _ in range(2)
        ]
    accuracy = gail_discriminator_loss(*logits).metrics["discriminator_accuracy"]
    assert abs(float(accuracy) - 0.5) < 0.05
    reward = learner.reward(*pairs(gaussian(1.0, BOX, scale, 4096)(rng), BOX, rng))
    assert float(reward.mean()) == pytest.approx(math.log(2.0), abs=0.05)


def test_the_penalty_keeps_the_verdict_gentle() -> None:
    free, _ = taught(gaussian(4.0, BOX), gaussian(-4.0, BOX), 200)
    held, metrics = taught(gaussian(4.0, BOX), gaussian(-4.0, BOX), 200, gradient_penalty=10.0)
    obs, action = torch.full((1, 3), 4.0), torch.zeros(1, 2)
    assert held.discriminator(obs, action) < free.discriminator(obs, action) - 1.0
    assert metrics["gradient_penalty"] < 0.2


def test_spectral_norm_follows_the_weights_as_they_learn() -> None:
    near, far = gaussian(0.0, BOX), gaussian(3.0, BOX)
    learner, _ = taught(near, far, updates=100, discriminator_lr=1e-2, spectral_norm=True)
    judge = learner.discriminator
    for i, layer in enumerate(judge.net.layers):
        weight = f64(layer.weight)
        left, right = (f64(judge.get_buffer(f"{name}{i}")) for name in ("left", "right"))
        largest = np.linalg.svd(weight)[1][0]
        assert left @ weight @ right == pytest.approx(largest, rel=0.02)


# --- the update ------------------------------------------------------------------------------


def two_sided_batch(spaces, experience=None, n=32):
    rng = np.random.default_rng(3)
    sides = [pairs(rng.standard_normal((n, spaces.obs_dim)) + c, spaces, rng) for c in (0.0, 1.0)]
    return ImitationBatch(*sides, experience)


def test_ppo_is_used_unchanged() -> None:
    learner = make_learner("gail", DISCRETE, ppo={"hidden_sizes": [8, 8]})
    alone = PPOAlgorithm(DISCRETE, learner.params.ppo)
    alone.load_state_dict(learner.generator.state_dict())
    obs = torch.randn(16, 4)
    action, log_prob, value = alone.collect(obs)
    advantage = torch.randn(16)
    rollout = RolloutBatch(obs, action, log_prob, value, advantage, advantage + value)
    alone.update(rollout)
    judge = weights_of(learner.discriminator)
    learner.step(ImitationBatch(experience=rollout))
    assert torch.equal(weights_of(learner.generator), weights_of(alone))
    assert torch.equal(weights_of(learner.discriminator), judge)


def test_sac_is_used_unchanged_on_rewards_of_the_new_discriminator() -> None:
    learner = make_learner("gail", generator="sac", sac={"hidden_sizes": [8, 8]})
    alone = SACAlgorithm(BOX, learner.params.sac)
    alone.load_state_dict(learner.generator.state_dict())
    batch = random_batch()
    before = learner.reward(batch.obs, batch.action)
    torch.manual_seed(0)
    learner.step(two_sided_batch(BOX, batch))
    after = learner.reward(batch.obs, batch.action)
    assert not torch.equal(before, after)
    torch.manual_seed(0)
    alone.update(batch._replace(reward=after))
    assert torch.equal(weights_of(learner.generator), weights_of(alone))


def test_each_cut_is_one_step_of_the_discriminator() -> None:
    learner = make_learner("gail", discriminator_updates=4)
    learner.step(two_sided_batch(BOX))
    assert float(learner.optimizers["discriminator"].steps) == 4
    assert float(learner.discriminator.normalizer.count) == 64
    assert float(learner.optimizers["policy"].steps) == 0


def test_the_penalty_is_taken_at_a_place_of_its_own_for_every_two_pairs() -> None:
    learner = make_learner("gail", gradient_penalty=10.0, discriminator_updates=2)
    drawn = record_noise(learner)
    learner.step(two_sided_batch(BOX))
    assert [len(share.unique()) for share in drawn] == [16, 16]


def test_statistics_are_those_of_both_sides() -> None:
    learner = make_learner("gail", discriminator_updates=1)
    batch = two_sided_batch(BOX)
    learner.step(batch)
    both = np.concatenate([f64(batch.expert.obs), f64(batch.policy.obs)])
    np.testing.assert_allclose(f64(learner.discriminator.normalizer.mean), both.mean(0), rtol=1e-5)
    np.testing.assert_allclose(f64(learner.discriminator.normalizer.std), both.std(0), rtol=1e-5)


def test_the_policy_travels_with_its_statistics() -> None:
    learner = make_learner("gail", ppo={"normalize_observations": True})
    learner.generator.normalizer.observe(torch.randn(50, 3) * 9 + 4)
    obs = torch.randn(5, 3)
    expected = learner.policy.mode(learner.generator.normalizer(obs))
    assert torch.equal(learner.act(obs, explore=False).action, expected)
    assert learner.normalizer is learner.generator.normalizer


@pytest.mark.usefixtures("no_branches")
@pytest.mark.parametrize("generator", ["ppo", "sac"])
def test_every_option_can_be_captured(generator: str) -> None:
    """Penalty, spectral norm and running statistics: no sync, and the same work every time."""
    from ..contract.small_runs import LOOP_KNOBS, SMALL_SAC, small_config, small_learner
    from ..contract.test_updates import HOST_SYNCS, OperationLog

    knobs = {"gradient_penalty": 10.0, "spectral_norm": True, "grad_clip": 1.0}
    both = {"ppo": LOOP_KNOBS["imitation"]["ppo"], "sac": SMALL_SAC}
    both = {name: both[name] if name == generator else {} for name in both}
    config = small_config("gail", algo_kwargs={**knobs, **both, "generator": generator})
    learner, source = small_learner(config)
    places = [tensor.data_ptr() for tensor in learner.state_tensors()]
    learner.step(source.sample(32))
    logs = []
    for _ in range(2):
        with OperationLog() as log:
            learner.step(source.sample(32))
        logs.append(log.operations)
    assert not [name for name, _ in logs[0] if name in HOST_SYNCS]
    assert logs[0] == logs[1]
    assert places == [tensor.data_ptr() for tensor in learner.state_tensors()], "state has moved"


def test_the_widest_layer_is_anyones() -> None:
    params = make_config("gail", ppo={"hidden_sizes": [512, 8]}).params
    assert params.widest_layer == 512
    assert make_config("gail", hidden_sizes=[1024]).params.widest_layer == 1024


# --- refusals --------------------------------------------------------------------------------


@each(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *bad_rates("discriminator_lr"),
        ("generator", "trpo"),
        ("reward_form", "sigmoid"),
        ("discriminator_updates", 0),
        ("discriminator_entropy_coef", -1.0),
        ("gradient_penalty", -1.0),
        ("gradient_penalty", math.nan),
        ("demo_episodes", 0),
        ("demo_subsample", 0),
        ("ppo", {"clipp": 0.1}),
        ("ppo", {"clip": -0.1}),
        ("sac", {"tau": 0.01}),  # of the generator that was not chosen
    ],
)
def test_bad_knobs(key: str, value: object) -> None:
    assert_rejects("gail", key, value)


def test_sac_generates_discrete_actions() -> None:
    learner = make_learner("gail", DISCRETE, generator="sac")
    drawn = learner.act(torch.zeros(64, DISCRETE.obs_dim), explore=True).action
    assert set(drawn.tolist()) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rewards", {"scale": 2.0}),
        ("returns", {"at_truncation": "cut"}),
        ("normalize_observations", True),
    ],
)
def test_what_demonstrations_are_not_asked_for(key: str, value: object) -> None:
    config = make_config("gail")
    with pytest.raises(ConfigError, match=rf"^dataset\.{key}: .*remove this key"):
        config.replace(dataset={**config.to_dict()["dataset"], key: value})
