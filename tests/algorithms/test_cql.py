"""Conservative Q-learning, Kumar et al. 2020: CQL(H) on SAC."""

import copy
import math

import numpy as np
import pytest
import torch

from rl_training import CQL
from rl_training.algorithms import cql_loss
from rl_training.algorithms.cql import CQLParams, calibrated
from rl_training.experiment.errors import ConfigError, RenamedKeyWarning
from rl_training.runtime.build import build_loop
from rl_training.runtime.loops.offline_to_online import with_unknown_returns

from ..contract.small_runs import small_config, small_learner
from ..each import each
from .helpers import (
    COMMON_BAD_KNOBS,
    TARGET_BAD_KNOBS,
    as_double,
    assert_loss_equals,
    assert_rejects,
    assert_targets_follow,
    bad_rates,
    critics_of,
    evaluate,
    f64,
    gaussian_of,
    gradient_reaches,
    logsumexp,
    make_learner,
    numeric_gradient,
    policy_td_target,
    random_arrays,
    random_batch,
    record_noise,
    squared_td_error,
    tanh_gaussian_sample,
    train,
)

LIVE = ("q_data", "q_random", "q_policy", "q_next_policy")


def oracle_terms(
    q_data,
    td_target,
    q_random,
    q_policy,
    q_next_policy,
    log_prob_policy,
    log_prob_next_policy,
    *,
    action_dim,
    min_q_weight,
    multiplier=1.0,
    lagrange_threshold=0.0,
    importance_weights=True,
):
    """TD error plus a * (weight * gap - threshold), the authors' form of the multiplier a.

    The gap is log sum_a exp Q(s, a) / density(a) - Q(s, data); or without densities, and with the
    data's action among those of the sum: the authors' other form.
    """
    q_data = f64(q_data)
    critic_loss, _ = squared_td_error(q_data, f64(td_target))
    candidates = np.concatenate(
        [
            f64(q_random) - action_dim * math.log(0.5),
            f64(q_policy) - f64(log_prob_policy),
            f64(q_next_policy) - f64(log_prob_next_policy),
        ],
        axis=1,
    )
    if not importance_weights:
        sampled = (f64(q_random), f64(q_policy), f64(q_next_policy))
        candidates = np.concatenate([q_data[:, None], *sampled], axis=1)
    gap = np.mean(logsumexp(candidates, 1) - q_data, axis=1)  # one number per member
    conservative = np.sum(f64(multiplier) * (min_q_weight * gap - lagrange_threshold))
    return {
        "total": critic_loss + conservative,
        "critic_loss": critic_loss,
        "conservative_loss": conservative,
        "conservative_gap": gap.mean(),
        "q_mean": q_data.mean(),
    }


def oracle(inputs, **knobs):
    """Total, terms, and the gradients by central differences."""
    terms = oracle_terms(**inputs, **knobs)
    gradients = {
        name: numeric_gradient(
            lambda x, name=name: oracle_terms(**{**inputs, name: x}, **knobs)["total"],
            f64(inputs[name]),
        )
        for name in LIVE
    }
    return terms.pop("total"), terms, gradients


def random_inputs(seed, members=2, samples=3, size=4, scale=1.0):
    each = (members, samples, size)
    inputs = random_arrays(
        seed,
        scale,
        q_data=(members, size),
        td_target=size,
        q_random=each,
        q_policy=each,
        q_next_policy=each,
    )
    return inputs | random_arrays(
        seed + 100, log_prob_policy=(samples, size), log_prob_next_policy=(samples, size)
    )


@each(
    ("seed", "members", "samples", "size", "scale"),
    [(0, 2, 3, 4, 1.0), (1, 1, 1, 1, 1.0), (2, 3, 2, 3, 10.0), (3, 2, 10, 2, 0.1)],
)
@each(
    "knobs",
    [
        {"action_dim": 1, "min_q_weight": 5.0},
        {"action_dim": 6, "min_q_weight": 5.0, "lagrange_threshold": 2.0, "multiplier": 3.0},
        {"action_dim": 2, "min_q_weight": 1e3, "lagrange_threshold": -1.0, "multiplier": 0.1},
        {"action_dim": 2, "min_q_weight": 0.0},
        {"action_dim": 2, "min_q_weight": 5.0, "importance_weights": False},
    ],
)
def test_loss(seed, members, samples, size, scale, knobs):
    inputs = random_inputs(seed, members, samples, size, scale)
    total, terms, gradients = oracle(inputs, **knobs)
    # central differences are good to six digits; the values below are compared to all
    loss, found = evaluate(cql_loss, inputs, **knobs)
    np.testing.assert_allclose(f64(loss.total), total, rtol=1e-9)
    for name, expected in gradients.items():
        np.testing.assert_allclose(
            found[name], expected, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(expected).max())
        )
    exact = {name: found[name] for name in LIVE}
    assert_loss_equals(cql_loss, inputs, total, terms, exact, free=["td_target"], **knobs)


def test_the_td_target_is_fixed():
    inputs = random_inputs(0)
    assert not gradient_reaches(cql_loss, inputs, "td_target", action_dim=2, min_q_weight=5.0)


@pytest.mark.parametrize("scale", [1e3, 1e5])
def test_huge_values_stay_finite(scale):
    inputs = random_inputs(0, scale=scale)
    knobs = {"action_dim": 2, "min_q_weight": 5.0}
    loss, gradients = evaluate(cql_loss, inputs, torch.float32, **knobs)
    np.testing.assert_allclose(f64(loss.total), oracle_terms(**inputs, **knobs)["total"], 1e-5)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


def equal_candidates(samples, members=2, size=5):
    return {
        "q_data": np.zeros((members, size)),
        "td_target": np.zeros(size),
        "q_random": np.full((members, samples, size), 2 * math.log(0.5)),
        "q_policy": np.zeros((members, samples, size)),
        "q_next_policy": np.zeros((members, samples, size)),
        "log_prob_policy": np.zeros((samples, size)),
        "log_prob_next_policy": np.zeros((samples, size)),
    }


@pytest.mark.parametrize("samples", [1, 4, 10])
def test_logsumexp_runs_over_all_candidates(samples):
    """3n equal candidates give log(3n); a reshape gone wrong would give log(3)."""
    loss, gradients = evaluate(cql_loss, equal_candidates(samples), action_dim=2, min_q_weight=1.0)
    gap = f64(loss.metrics["conservative_gap"])
    assert gap == pytest.approx(math.log(3 * samples))
    for name in LIVE[1:]:
        assert gradients[name] == pytest.approx(np.full((2, samples, 5), 1 / (3 * samples) / 5))


@pytest.mark.parametrize("name", ["log_prob_policy", "log_prob_next_policy"])
def test_likely_actions_count_less(name):
    inputs = equal_candidates(4)
    inputs[name] = inputs[name] + 1.0
    loss, _ = evaluate(cql_loss, inputs, action_dim=2, min_q_weight=1.0)
    expected = math.log(4 + 4 + 4 * math.exp(-1.0))
    assert f64(loss.metrics["conservative_gap"]) == pytest.approx(expected)


@pytest.mark.parametrize("action_dim", [1, 3])
def test_uniform_density_is_a_half_per_component(action_dim):
    loss, _ = evaluate(cql_loss, equal_candidates(4), action_dim=action_dim, min_q_weight=1.0)
    expected = math.log(4 * 0.25 / 0.5**action_dim + 8)
    assert f64(loss.metrics["conservative_gap"]) == pytest.approx(expected)


def test_weight_zero_is_plain_td():
    inputs = random_inputs(0)
    loss, gradients = evaluate(cql_loss, inputs, action_dim=2, min_q_weight=0.0)
    total, d_q = squared_td_error(f64(inputs["q_data"]), f64(inputs["td_target"]))
    assert f64(loss.total) == pytest.approx(total)
    np.testing.assert_allclose(gradients["q_data"], d_q, rtol=1e-9)
    for name in LIVE[1:]:
        assert not gradients[name].any()


def test_a_sum_with_the_data_in_it_ends_by_itself():
    """Once the data's action towers over the others, nothing pushes it further."""
    inputs = random_inputs(0, scale=0.1)
    inputs["q_data"] = inputs["td_target"] = inputs["q_data"] * 0 + 50.0
    inputs["td_target"] = inputs["td_target"][0]
    for weighted, still in ((True, False), (False, True)):
        knobs = {"action_dim": 2, "min_q_weight": 5.0, "importance_weights": weighted}
        _, gradients = evaluate(cql_loss, inputs, **knobs)
        assert (np.abs(gradients["q_data"]).max() < 1e-9) == still


def test_the_multiplier_may_be_a_tensor():
    inputs, knobs = random_inputs(0), {"action_dim": 2, "min_q_weight": 5.0}
    number, _ = evaluate(cql_loss, inputs, multiplier=2.0, **knobs)
    tensor, _ = evaluate(cql_loss, inputs, multiplier=torch.tensor(2.0), **knobs)
    torch.testing.assert_close(number.total, tensor.total)


def test_a_broadcast_of_the_target_is_refused():
    tensors = {name: torch.from_numpy(array) for name, array in random_inputs(0).items()}
    tensors["td_target"] = tensors["td_target"][:, None]
    with pytest.raises(AssertionError):
        cql_loss(**tensors, action_dim=2, min_q_weight=5.0)


@each("backup_entropy", [True, False])
@each("lagrange_threshold", [None, 1.0])
@each("backup_action", ["sampled", "mode"])
@each(
    ("importance_weights", "cloning_weight", "calibrate"),
    [(True, 0.0, False), (False, 0.7, False), (True, 0.0, True), (False, 0.7, True)],
)
def test_update(
    backup_entropy,
    lagrange_threshold,
    backup_action,
    importance_weights,
    cloning_weight,
    calibrate,
):
    if calibrate and (backup_entropy or lagrange_threshold is not None):
        return  # of no concern to each other
    learner = make_learner(
        "cql",
        importance_weights=importance_weights,
        cloning_weight=cloning_weight,
        calibrate=calibrate,
        backup_entropy=backup_entropy,
        lagrange_threshold=lagrange_threshold,
        backup_action=backup_action,
        num_action_samples=3,
        lagrange_lr=0.1,
        policy_lr=1e-2,
        critic_lr=1e-2,
    ).double()
    with torch.no_grad():
        learner.log_temperature.fill_(0.5)
    noise = record_noise(learner)
    for seed in range(3):
        noise.clear()
        before = copy.deepcopy(learner)
        batch = random_batch(seed=seed)
        batch = batch._replace(  # returns of every fifth row were cut by a time limit
            bootstrap_discount=0.9 * (torch.arange(16) % 5 == 0), final_obs=batch.next_obs.flip(0)
        )
        metrics = learner.step(as_double(batch))
        policy_noise, td_noise, uniform, now_noise, next_noise = noise
        assert uniform.shape == now_noise.shape == next_noise.shape == (3, 16, 2)
        critics = before.model.critics
        temperature = np.exp(f64(before.log_temperature))

        action, log_prob = tanh_gaussian_sample(before.policy, batch.obs, policy_noise)
        q = critics_of(critics, batch.obs, action).min(0)
        expected = {
            "policy_loss": np.mean(temperature * log_prob - q),
            "entropy": -log_prob.mean(),
            "temperature": temperature,
        }
        if cloning_weight:
            mode = np.tanh(gaussian_of(before.policy, batch.obs)[0])
            error = np.sum((mode - f64(batch.action)) ** 2, axis=-1).mean()
            relative = expected["policy_loss"] / np.abs(q).mean()
            expected["policy_loss"] = relative + cloning_weight * error
            expected["cloning_error"] = error
        # the conservative part sees the policy that its own step left
        policy = learner.policy
        target, next_log_prob = policy_td_target(policy, before.target_critics, batch, td_noise)
        if backup_action == "mode":
            no_noise = torch.zeros_like(td_noise)
            target, _ = policy_td_target(policy, before.target_critics, batch, no_noise)
        if backup_entropy:
            target = target - f64(batch.discount) * temperature * next_log_prob
        now, log_prob_now = tanh_gaussian_sample(policy, batch.obs, now_noise)
        following, log_prob_following = tanh_gaussian_sample(policy, batch.next_obs, next_noise)
        multiplier = 1.0 if lagrange_threshold is None else np.exp(f64(before.log_multiplier))
        q_uniform = critics_of(critics, batch.obs, 2.0 * f64(uniform) - 1.0)
        q_now = critics_of(critics, batch.obs, now)
        q_following = critics_of(critics, batch.obs, following)  # actions of s' rated at s
        if calibrate:
            mode = np.tanh(gaussian_of(policy, batch.final_obs)[0])
            ahead = critics_of(before.target_critics, batch.final_obs, mode).min(0)
            reference = f64(batch.returns_to_go) + f64(batch.bootstrap_discount) * ahead
            assert (q_uniform < reference).any()  # which stay as they are
            assert (q_now < reference).any()
            assert (q_now > reference).any()
            q_now, q_following = np.maximum(q_now, reference), np.maximum(q_following, reference)
        terms = oracle_terms(
            critics_of(critics, batch.obs, batch.action),
            target,
            q_uniform,
            q_now,
            q_following,
            log_prob_now,
            log_prob_following,
            action_dim=2,
            min_q_weight=5.0,
            multiplier=multiplier,
            lagrange_threshold=lagrange_threshold or 0.0,
            importance_weights=importance_weights,
        )
        del terms["total"]
        if lagrange_threshold is not None:
            excess = 5.0 * terms["conservative_gap"] - lagrange_threshold
            expected["multiplier_loss"] = -multiplier * excess
        for name, value in (expected | terms).items():
            np.testing.assert_allclose(f64(metrics[name]), value, rtol=1e-6, err_msg=name)
        assert_targets_follow(
            before.target_critics, learner.model.critics, learner.target_critics, 5e-3
        )


@pytest.mark.parametrize(("threshold", "sign"), [(-50.0, 1), (250.0, -1)])
def test_the_multiplier_follows_the_gap(threshold, sign):
    learner = make_learner(
        "cql", lagrange_threshold=threshold, lagrange_lr=1e-2, num_action_samples=2
    )
    seen = []
    for seed in range(5):
        metrics = learner.step(random_batch(seed=seed))
        seen.append(float(metrics["multiplier"]))
        assert np.sign(5.0 * float(metrics["conservative_gap"]) - threshold) == sign
    assert (np.diff([1.0, *seen]) * sign > 0).all()


def test_calibrated_values_are_not_pushed_below_the_logged_return():
    q = torch.tensor([[[-1.0, 5.0]]], requires_grad=True)
    calibrated(q, torch.tensor([2.0, 2.0])).sum().backward()
    assert q.grad.tolist() == [[[0.0, 1.0]]]
    own, data = random_batch(seed=1)._replace(returns_to_go=None), random_batch(seed=2)
    unknown = with_unknown_returns(own, data)  # of episodes that have not ended
    assert torch.equal(calibrated(q, unknown.returns_to_go[:2]), q)
    assert unknown.final_obs is None
    cut = data._replace(final_obs=data.obs, bootstrap_discount=torch.ones(16))
    unknown = with_unknown_returns(own, cut)
    assert not unknown.bootstrap_discount.any()
    assert unknown.final_obs.shape == own.obs.shape
    assert with_unknown_returns(own, own) is own


def test_calibration_goes_on_in_the_environment_and_needs_data():
    knobs = {"calibrate": True, "offline_pretrain_updates": 3, "hidden_sizes": [8]}
    config = small_config("cql", loop="offline_to_online", algo_kwargs=knobs)
    learner, _ = small_learner(config)
    loop = build_loop(config, learner)
    loop.advance(loop.total)
    loop.close()
    assert int(learner.update_count) > 3
    assert learner.first_nonfinite() is None
    assert learner.nonfinite_weight() is None
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.calibrate: .* are those of a data set"):
        CQL("Pendulum-v1", calibrate=True, offline_batch_ratio=0.0, total_timesteps=100)


def test_the_older_name_of_the_threshold_keeps_its_meaning():
    """Configs from before the knob had the authors' meaning bounded the gap, not weight * gap."""
    cases = (
        ({"lagrange_gap": 2.0, "min_q_weight": 3.0}, 6.0),
        ({"lagrange_gap": 2.0}, 10.0),  # the default weight
        ({"lagrange_gap": None}, None),
    )
    for given, expected in cases:
        with pytest.warns(RenamedKeyWarning, match="min_q_weight times the gap"):
            read = CQLParams.parse(given)
        assert read.lagrange_threshold == expected
        assert CQLParams.parse(read.model_dump()) == read
    with pytest.raises(ConfigError, match="an older name of 'lagrange_threshold'"):
        CQLParams.parse({"lagrange_gap": 2.0, "lagrange_threshold": 3.0})
    refused = pytest.raises(ConfigError, match="lagrange_threshold: expected a valid number")
    with pytest.warns(RenamedKeyWarning), refused:
        CQLParams.parse({"lagrange_gap": True})


def test_without_a_threshold_there_is_no_multiplier():
    learner = make_learner("cql")
    assert "multiplier" not in learner.optimizers
    assert "multiplier" not in learner.step(random_batch())


@pytest.mark.parametrize(("target_entropy", "sign"), [(50.0, 1), (-50.0, -1)])
def test_the_temperature_follows_the_entropy(target_entropy, sign):
    learner = make_learner("cql", target_entropy=target_entropy, temperature_lr=1e-2)
    for seed in range(3):
        learner.step(random_batch(seed=seed))
    assert np.sign(float(learner.log_temperature.detach())) == sign


def test_terminal_rows_do_not_bootstrap():
    learner = make_learner("cql", backup_entropy=True).double()
    batch = as_double(random_batch())
    batch = batch._replace(discount=torch.zeros_like(batch.discount))
    expected, _ = squared_td_error(
        critics_of(learner.model.critics, batch.obs, batch.action), f64(batch.reward)
    )
    metrics = learner.step(batch)
    np.testing.assert_allclose(f64(metrics["critic_loss"]), expected, rtol=1e-9)


def test_conservatism_lowers_unseen_actions(pendulum):
    """After some updates unseen actions rate lower against the data's, more so with weight."""

    def gap(weight):
        learner = make_learner(
            "cql", pendulum.spaces, min_q_weight=weight, critic_lr=1e-3, num_action_samples=4
        )
        return float(train(learner, pendulum, 150)["conservative_gap"])

    assert gap(10.0) < gap(0.0) - 0.1


@each(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *TARGET_BAD_KNOBS,
        *bad_rates("policy_lr", "critic_lr", "lagrange_lr", "temperature_lr"),
        ("min_q_weight", -1.0),
        ("num_action_samples", 0),
        ("num_action_samples", -3),
        ("lagrange_threshold", math.nan),
        ("target_entropy", math.inf),
        ("backup_entropy", "no"),
    ],
)
def test_bad_knobs(key, value):
    assert_rejects("cql", key, value)


def test_one_knob_says_which_objective():
    paper, ours = (make_learner("cql", importance_weights=form) for form in (True, False))
    assert (paper.cloning_weight, paper.target_entropy) == (0.0, -2.0)
    assert (ours.cloning_weight, ours.target_entropy) == (1.0, -8.0)
    assert CQLParams.parse({"min_q_weight": 1.0}).importance_weights is False
    # a run from before there was a choice has stored every knob but this one
    old = CQLParams.parse({}).model_dump()
    del old["importance_weights"], old["cloning_weight"]
    assert CQLParams.parse(old).importance_weights is True
    assert CQLParams.parse({**old, "importance_weights": False}).importance_weights is False


def test_stored_knobs_without_another_objective_are_the_papers() -> None:
    first_version = {  # all that commit f9df17d stored
        "batch_size": 256,
        "hidden_sizes": [256, 256],
        "grad_clip": None,
        "gamma": 0.99,
        "tau": 0.005,
        "policy_lr": 1e-4,
        "critic_lr": 3e-4,
        "min_q_weight": 5.0,
        "num_action_samples": 10,
        "lagrange_threshold": None,
        "lagrange_lr": 3e-4,
        "backup_entropy": False,
        "backup_action": "sampled",
        "target_entropy": None,
        "temperature_lr": 3e-4,
    }
    assert CQLParams(**first_version).importance_weights
    assert not CQLParams(min_q_weight=5.0).importance_weights
