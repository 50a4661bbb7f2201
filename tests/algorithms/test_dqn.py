"""Deep Q-learning: Mnih et al. 2015, with double, dueling, prioritised and n-step options."""

import copy
import math

import numpy as np
import pytest
import torch

from rl_training.algorithms.dqn import dqn_loss
from rl_training.algorithms.value_based import epsilon, epsilon_greedy, of_action, td_target
from rl_training.experiment.errors import EnvironmentSetupError

from ..contract.test_updates import HOST_SYNCS, OperationLog
from ..each import each
from .helpers import (
    BOX,
    COMMON_BAD_KNOBS,
    DISCRETE,
    GAMMA_BAD_KNOBS,
    SEEDS_AND_SIZES,
    as_double,
    assert_loss_equals,
    assert_rejects,
    bad_rates,
    evaluate,
    f64,
    make_learner,
    mlp,
    random_arrays,
    random_batch,
    weights_of,
)

VALUE_LEARNERS = ["dqn", "c51", "qr_dqn", "iqn", "fqf"]
VALUE_BAD_KNOBS = [
    *COMMON_BAD_KNOBS,
    *GAMMA_BAD_KNOBS,
    *bad_rates("lr", "kappa"),
    ("target_update_interval", 0),
    ("n_step", 0),
    ("double", 1),
    ("dueling", "yes"),
    ("prioritized", None),
    ("priority_alpha", 1.5),
    ("priority_beta", -0.1),
    ("epsilon_start", 1.1),
    ("epsilon_end", -0.1),
    ("epsilon_fraction", 0.0),
    ("buffer_capacity", 0),
    ("train_frequency", 0),
    ("gradient_updates_per_step", 0.0),
    ("tau", 0.005),
    ("policy_lr", 1e-3),
]


def learner_for(algo="dqn", **knobs):
    return make_learner(algo, DISCRETE, **knobs)


def batch_for(size=16, seed=0, weighted=False, **changes):
    batch = random_batch(DISCRETE, size=size, seed=seed)._replace(**changes)
    if weighted:
        weight = np.random.default_rng(seed + 50).uniform(0.1, 1.0, size)
        batch = batch._replace(weight=torch.from_numpy(weight).float())
    return batch


@torch.no_grad()
def disagree(learner):
    """Make the online network's best actions the target network's worst."""
    for parameter in learner.network.head.parameters():
        parameter.mul_(-1.5)


def huber(error, kappa):
    """Value and derivative."""
    inside = np.abs(error) <= kappa
    value = np.where(inside, 0.5 * error**2, kappa * (np.abs(error) - 0.5 * kappa))
    return value, np.where(inside, error, kappa * np.sign(error))


def q_of(network, obs):
    """(B, A) values of a `QNetwork`, by its weights and plain matrix products."""
    features = np.maximum(mlp(network.features.net, obs), 0.0)
    values = mlp(network.head.actions, features)
    if network.head.value is None:
        return values
    return mlp(network.head.value, features) + values - values.mean(-1, keepdims=True)


# --- the loss --------------------------------------------------------------------------------


@each(("seed", "size"), SEEDS_AND_SIZES)
@each("scale", [1.0, 1e3])
@each("kappa", [0.1, 1.0, 10.0])
@each("weighted", [False, True])
def test_loss(seed, size, scale, kappa, weighted):
    inputs = random_arrays(seed, scale, q=size, td_target=size)
    weight = np.ones(size)
    if weighted:
        inputs["weight"] = weight = np.random.default_rng(seed).uniform(0.1, 1, size).astype("f4")
    error = f64(inputs["td_target"]) - f64(inputs["q"])
    value, slope = huber(error, kappa)
    total = np.mean(f64(weight) * value)
    terms = {"td_loss": total, "q_mean": f64(inputs["q"]).mean(), "td_errors": np.abs(error)}
    gradients = {"q": -f64(weight) * slope / size}
    assert_loss_equals(dqn_loss, inputs, total, terms, gradients, kappa=kappa)


def test_large_errors_pull_no_harder_than_kappa():
    inputs = {"q": np.zeros(4), "td_target": np.array([0.5, 1.0, 7.0, -1e6])}
    _, gradients = evaluate(dqn_loss, inputs, kappa=1.0)
    assert gradients["q"] == pytest.approx(np.array([-0.5, -1.0, -1.0, 1.0]) / 4)


@pytest.mark.parametrize("column", ["q", "td_target", "weight"])
def test_a_broadcast_to_a_square_is_refused(column):
    tensors = {name: torch.zeros(8) for name in ("q", "td_target", "weight")}
    tensors[column] = torch.zeros(8, 1)
    with pytest.raises(AssertionError):
        dqn_loss(**tensors, kappa=1.0)


def test_values_of_chosen_actions():
    values = torch.arange(24.0).view(2, 4, 3)
    action = torch.tensor([2, 0])
    assert of_action(values, action).tolist() == [[2, 5, 8, 11], [12, 15, 18, 21]]
    assert of_action(values[:, 0], action).tolist() == [2, 12]


def test_targets_bootstrap_by_the_batchs_discount():
    """gamma^n for n-step rewards, 0 at terminals; the algorithm knows of neither."""
    batch = batch_for(3, reward=torch.ones(3), discount=torch.tensor([0.9, 0.9**3, 0.0]))
    expected = [1.0 + 2.0 * 0.9, 1.0 + 2.0 * 0.729, 1.0]
    assert f64(td_target(batch, torch.full((3,), 2.0))) == pytest.approx(np.array(expected))
    quantiles = td_target(batch, torch.tensor([[2.0, 4.0]]).expand(3, 2))
    assert f64(quantiles[:, 0]) == pytest.approx(np.array(expected))
    assert f64(quantiles[:, 1]) == pytest.approx(np.array([1 + 4 * 0.9, 1 + 4 * 0.729, 1.0]))


# --- the update ------------------------------------------------------------------------------


@each("double", [False, True])
@each("dueling", [False, True])
@each("weighted", [False, True])
def test_update_equals_the_papers_steps(double, dueling, weighted):
    knobs = {"lr": 1e-2, "kappa": 0.5, "target_update_interval": 3}
    learner = learner_for(double=double, dueling=dueling, **knobs).double()
    online, target = copy.deepcopy(learner.network), copy.deepcopy(learner.network)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    for step in range(1, 8):
        batch = as_double(batch_for(seed=step, weighted=weighted))
        next_q = q_of(target, batch.next_obs)
        chosen = (q_of(online, batch.next_obs) if double else next_q).argmax(-1)
        goal = f64(batch.reward) + f64(batch.discount) * next_q[np.arange(16), chosen]
        q = online(batch.obs)[torch.arange(16), batch.action]
        loss = torch.nn.functional.huber_loss(
            q, torch.from_numpy(goal), reduction="none", delta=0.5
        )
        loss = (loss * batch.weight).mean() if weighted else loss.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 3 == 0:
            target = copy.deepcopy(online)
        metrics = learner.step(batch)
        assert f64(metrics["td_loss"]) == pytest.approx(loss.item(), rel=1e-6)
        np.testing.assert_allclose(
            f64(learner.last_td_errors), np.abs(goal - f64(q)), rtol=1e-5, atol=1e-6
        )
    torch.testing.assert_close(weights_of(learner.network), weights_of(online), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        weights_of(learner.target_network), weights_of(target), rtol=0, atol=1e-6
    )


def test_double_asks_the_online_network_which_action_and_the_target_for_its_value():
    batch = batch_for(256, discount=torch.full((256,), 0.9))
    errors = {}
    for double in (False, True):
        learner = learner_for(double=double, seed=1)
        disagree(learner)
        next_q = q_of(learner.target_network, batch.next_obs)
        judge = q_of(learner.network, batch.next_obs) if double else next_q
        next_value = next_q[np.arange(256), judge.argmax(-1)]
        q = q_of(learner.network, batch.obs)[np.arange(256), batch.action]
        learner.step(batch)
        expected = np.abs(f64(batch.reward) + 0.9 * next_value - q)
        np.testing.assert_allclose(f64(learner.last_td_errors), expected, rtol=1e-4, atol=1e-5)
        errors[double] = next_value
    assert (errors[True] <= errors[False] + 1e-6).all()
    assert (errors[True] < errors[False] - 1e-4).any()


def test_dueling_is_a_value_plus_centred_advantages():
    learner = learner_for(dueling=True)
    network, obs = learner.network, torch.randn(9, 4)
    before = network(obs)
    value = network.head.value(network.features(obs)).squeeze(-1)
    torch.testing.assert_close(before.mean(-1), value)  # the advantages add nothing on average
    with torch.no_grad():  # nor does a constant in all of them
        network.head.actions.layers[-1].bias += 3.0
    torch.testing.assert_close(network(obs), before)
    assert learner_for().network.head.value is None


@each("sizes", [(8,), (8, 6), (8, 7, 6)])
@each("dueling", [False, True])
def test_hidden_sizes_are_the_layers_from_input_to_output(sizes, dueling):
    network = learner_for(hidden_sizes=sizes, dueling=dueling).network
    layers = [*network.features.net.layers, *network.head.actions.layers]
    assert [layer.out_features for layer in layers] == [*sizes, 3]
    np.testing.assert_allclose(
        f64(network(torch.ones(5, 4))), q_of(network, np.ones((5, 4))), rtol=1e-5, atol=1e-6
    )


@each("algo", VALUE_LEARNERS)
def test_the_target_is_copied_at_every_kth_update_exactly(algo):
    learner = learner_for(algo, target_update_interval=3)
    for step in range(1, 10):
        before = weights_of(learner.target_network)
        learner.step(batch_for(seed=step))
        after, online = weights_of(learner.target_network), weights_of(learner.network)
        assert torch.equal(after, online if step % 3 == 0 else before), step
        assert not torch.equal(before, online)
    assert not any(p.requires_grad for p in learner.target_network.parameters())


@pytest.mark.usefixtures("no_branches")
@pytest.mark.parametrize("algo", VALUE_LEARNERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_update_is_the_same_operations(algo, weighted):
    """Whether or not the target is copied; nothing waits for the host."""
    options = {"target_update_interval": 2, "double": True, "dueling": True}
    learner = learner_for(algo, batch_size=16, **options)
    logs = []
    for step in range(4):
        batch = batch_for(seed=step, weighted=weighted)
        with OperationLog() as log:
            learner.step(batch)
        logs.append(log.operations)
    assert all(log == logs[0] for log in logs)
    assert not {name for name, _ in logs[0]} & set(HOST_SYNCS)


@each("algo", VALUE_LEARNERS)
def test_weights_of_prioritised_replay_scale_each_samples_pull(algo):
    """Weights of 1 change nothing, and a sample of weight 0 might as well not be there."""
    batch = batch_for(12, seed=3)
    plain, ones, masked, altered = (learner_for(algo, seed=2) for _ in range(4))
    mask = (torch.arange(12) != 5).float()
    wild = batch.reward.clone()
    wild[5] = 1e3
    for learner, changes in (
        (plain, {}),
        (ones, {"weight": torch.ones(12)}),
        (masked, {"weight": mask}),
        (altered, {"weight": mask, "reward": wild}),
    ):
        torch.manual_seed(7)
        learner.step(batch._replace(**changes))
    assert torch.equal(weights_of(plain.network), weights_of(ones.network))
    assert not torch.equal(weights_of(plain.network), weights_of(masked.network))
    assert torch.equal(weights_of(masked.network), weights_of(altered.network))
    # the error itself is not weighted; C51's is a divergence, which clips the return
    assert altered.last_td_errors[5] > (2.0 if algo == "c51" else 900.0)
    assert altered.last_td_errors[5] > 1.5 * masked.last_td_errors[5]


@each("algo", VALUE_LEARNERS)
def test_td_errors_are_kept_in_place_and_out_of_the_checkpoint(algo):
    learner = learner_for(algo, batch_size=16)
    kept = learner.last_td_errors
    assert kept.shape == (16,)
    assert not kept.any()
    metrics = learner.step(batch_for(16))
    assert learner.last_td_errors is kept
    assert (kept > 0).all()
    assert not kept.requires_grad
    assert f64(metrics["td_error_mean"]) == pytest.approx(f64(kept).mean(), rel=1e-5)
    learner.step(batch_for(5))  # a batch of another size is welcome
    assert learner.last_td_errors.shape == (5,)
    assert "last_td_errors" not in learner.state_dict()


def test_learns_the_values_of_a_chain():
    """0 -right-> 1 -right-> end with reward 1; left stays with reward 0; gamma 0.9."""
    one_hot = torch.eye(4)[:2]
    state = torch.tensor([0, 0, 1, 1])
    batch = batch_for(
        4,
        obs=one_hot[state],
        action=torch.tensor([0, 1, 0, 1]),
        reward=torch.tensor([0.0, 0.0, 0.0, 1.0]),
        next_obs=one_hot[torch.tensor([0, 1, 1, 0])],
        discount=torch.tensor([0.9, 0.9, 0.9, 0.0]),
    )
    learner = learner_for(lr=3e-3, target_update_interval=20, double=True)
    for _ in range(600):
        learner.step(batch)
    q = of_action(learner.network(batch.obs), batch.action)
    assert f64(q) == pytest.approx(np.array([0.81, 0.9, 0.9, 1.0]), abs=0.02)
    assert learner.act(one_hot, explore=False).action.tolist() == [1, 1]


@each("algo", VALUE_LEARNERS)
def test_defaults_copy_often_enough_to_see_the_horizon(algo):
    """A copy carries values one step back: k of them show 1 - gamma^k of a steady reward."""
    knobs = learner_for(algo).params
    copies = 50_000 * knobs.gradient_updates_per_step / knobs.target_update_interval
    assert 1.0 - knobs.gamma**copies > 0.9


# --- acting ----------------------------------------------------------------------------------


def test_epsilon_falls_linearly_over_its_share_of_the_budget():
    params = learner_for(epsilon_start=0.9, epsilon_end=0.1, epsilon_fraction=0.4).params
    shares = {0.0: 0.9, 0.1: 0.7, 0.2: 0.5, 0.4: 0.1, 0.5: 0.1, 1.0: 0.1}
    for fraction, expected in shares.items():
        assert epsilon(fraction, params) == pytest.approx(expected)


@each("algo", VALUE_LEARNERS)
def test_explores_by_the_share_of_the_budget_spent(algo):
    learner = learner_for(algo, epsilon_start=1.0, epsilon_end=0.1, epsilon_fraction=1.0)
    obs = torch.randn(1, 4).expand(4000, 4)
    greedy = learner.act(obs, explore=False).action
    assert greedy.dtype == torch.int64
    assert (greedy == greedy[0]).all()
    for fraction, share in ((0.0, 1.0), (0.5, 0.55), (1.0, 0.1)):
        learner.fraction = fraction
        torch.manual_seed(1)
        action = learner.act(obs, explore=True).action
        counts = np.bincount(action, minlength=3) / 4000
        expected = np.full(3, share / 3)
        expected[greedy[0]] += 1.0 - share
        assert counts == pytest.approx(expected, abs=0.03)
        torch.manual_seed(1)
        assert torch.equal(learner.act(obs, explore=True).action, action)  # torch's own stream
        torch.manual_seed(1)
        assert torch.equal(epsilon_greedy(greedy, 3, share), action)  # as on a GPU
    assert torch.equal(learner.act(obs, explore=False).action, greedy)


def test_no_action_is_random_at_epsilon_zero_and_all_are_at_one():
    greedy = torch.full((5000,), 2)
    assert torch.equal(epsilon_greedy(greedy, 4, torch.tensor(0.0)), greedy)
    everywhere = epsilon_greedy(greedy, 4, torch.tensor(1.0))
    assert np.bincount(everywhere) / 5000 == pytest.approx(np.full(4, 0.25), abs=0.03)


@each("algo", VALUE_LEARNERS)
@each("dueling", [False, True])
def test_the_policy_takes_the_best_action(algo, dueling):
    policy, obs = learner_for(algo, dueling=dueling).policy, torch.randn(20, 4)
    with torch.no_grad():
        best = policy.q_values(obs).argmax(-1)
        assert policy.q_values(obs).shape == (20, 3)
        for choose in (policy.mode, policy.sample):
            assert torch.equal(choose(obs), best)
            assert choose(obs[0]).shape == ()  # one observation, as `predict` gives it
            assert int(choose(obs[0])) == int(best[0])


@each("algo", VALUE_LEARNERS)
def test_box_actions_are_refused(algo):
    with pytest.raises(EnvironmentSetupError, match="takes Discrete actions"):
        make_learner(algo, BOX)


@each(("key", "value"), [*VALUE_BAD_KNOBS, ("epsilon_end", math.nan)])
def test_bad_knobs(key, value):
    assert_rejects("dqn", key, value)
