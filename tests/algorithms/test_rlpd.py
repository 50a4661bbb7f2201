"""RLPD: losses against NumPy, the drawn critics, LayerNorm, the round of updates, SAC within it."""

import copy
import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from rl_training import RLPD, SAC

from ..each import each
from .helpers import (
    BOX,
    COMMON_BAD_KNOBS,
    TARGET_BAD_KNOBS,
    as_double,
    assert_rejects,
    assert_targets_follow,
    bad_rates,
    critics_of,
    f64,
    make_learner,
    random_batch,
    record_noise,
    squared_td_error,
    tanh_gaussian_sample,
)

# --- a round of updates ----------------------------------------------------------------------


def watched(learner):
    """(name, copy of the learner before, metrics) of every step that `minimize` takes."""
    taken, minimize = [], learner.minimize

    def keeping(loss, *names, due=None):
        before = copy.deepcopy(dict(learner.named_children()))
        temperature = float(learner.log_temperature.detach().exp())
        metrics = minimize(loss, *names, due=due)
        taken.append((names[0], before, temperature, metrics))
        return metrics

    learner.minimize = keeping
    return taken


def rows_of(batch, start, stop):
    return type(batch)(*(None if x is None else x[start:stop] for x in batch))


@each("backup_entropy", [True, False])
@each("slices", [1, 4])
def test_a_round_is_many_critic_updates_and_one_policy_step(slices, backup_entropy):
    size = 8
    learner = make_learner(
        "rlpd", batch_size=size, num_critics=4, critic_lr=1e-2, backup_entropy=backup_entropy
    ).double()
    noise, taken = record_noise(learner), watched(learner)
    batch = random_batch(size=slices * size, seed=slices)
    first_policy = copy.deepcopy(learner.policy)
    learner.step(as_double(batch))
    next_noise, drawn, policy_noise = noise
    members = np.argsort(-f64(drawn), axis=1)[:, :2]
    assert [name for name, *_ in taken] == ["critics"] * slices + ["policy", "temperature"]
    assert int(learner.update_count) == slices

    for i, (_, before, temperature, metrics) in enumerate(taken[:slices]):
        rows = slice(i * size, (i + 1) * size)
        part = rows_of(batch, rows.start, rows.stop)
        action, log_prob = tanh_gaussian_sample(first_policy, part.next_obs, next_noise[rows])
        next_q = critics_of(before["target_critics"], part.next_obs, action)
        value = np.minimum(*(next_q[member] for member in members[i]))
        if backup_entropy:
            value = value - temperature * log_prob
        target = f64(part.reward) + f64(part.discount) * value
        q = critics_of(before["model"].critics, part.obs, part.action)
        np.testing.assert_allclose(
            f64(metrics["critic_loss"]), squared_td_error(q, target)[0], rtol=1e-6
        )
        after = taken[i + 1][1]  # targets have moved before the next step, whichever it is
        assert_targets_follow(
            before["target_critics"], after["model"].critics, after["target_critics"], 5e-3
        )

    _, before, temperature, metrics = taken[slices]
    last = rows_of(batch, (slices - 1) * size, slices * size)
    action, log_prob = tanh_gaussian_sample(first_policy, last.obs, policy_noise)
    rating = critics_of(before["model"].critics, last.obs, action).mean(0)
    np.testing.assert_allclose(
        f64(metrics["policy_loss"]), np.mean(temperature * log_prob - rating), rtol=1e-6
    )
    np.testing.assert_allclose(f64(metrics["entropy"]), -np.mean(log_prob), rtol=1e-6)


def test_members_are_drawn_evenly_without_repetition():
    learner = make_learner("rlpd", num_critics=5, num_min_critics=2)
    drawn = learner.drawn_members(4000)
    assert drawn.shape == (4000, 2)
    pairs = Counter(tuple(sorted(row)) for row in drawn.tolist())
    assert set(pairs) == set(itertools.combinations(range(5), 2))
    assert min(pairs.values()) > 300  # 400 on average, deviation 19


def test_the_target_asks_the_drawn_members_and_no_other():
    """Critics that were not drawn may say anything."""
    learner = make_learner("rlpd", num_critics=6, num_min_critics=3, batch_size=16)
    batch = random_batch()
    losses = []
    for spoil in (False, True):
        copied = copy.deepcopy(learner)
        torch.manual_seed(3)
        if spoil:
            copied.normal(16, BOX.action_dim)
            drawn = copied.drawn_members(1)[0].tolist()
            others = [i for i in range(6) if i not in drawn]
            for member in others:
                copied.target_critics.net.biases[-1].data[member] = -1e6
            assert len(drawn) == 3
            torch.manual_seed(3)
        losses.append(copied.step(batch)["critic_loss"])
    assert torch.equal(*losses)
    torch.manual_seed(3)
    learner.target_critics.net.biases[-1].data[drawn[0]] = -1e6
    assert learner.step(batch)["critic_loss"] > 1e9


# --- LayerNorm -------------------------------------------------------------------------------


def test_layer_norm_is_in_the_critics_alone():
    learner = make_learner("rlpd", hidden_sizes=(8, 6), num_critics=3)
    shapes = {k: tuple(v.shape) for k, v in learner.model.named_parameters() if "norm" in k}
    assert shapes == {
        "critics.net.norm_scales.0": (3, 1, 8),
        "critics.net.norm_scales.1": (3, 1, 6),
        "critics.net.norm_shifts.0": (3, 1, 8),
        "critics.net.norm_shifts.1": (3, 1, 6),
    }
    plain = make_learner("rlpd", hidden_sizes=(8, 6), num_critics=3, layer_norm=False)
    assert not [key for key in plain.state_dict() if "norm_" in key]


def test_layer_norm_stands_between_the_product_and_the_relu():
    learner = make_learner("rlpd", num_critics=3).double()
    for parameter in learner.model.critics.parameters():
        parameter.data.normal_()
    batch = as_double(random_batch())
    expected = critics_of(learner.model.critics, batch.obs, batch.action)
    found = learner.model.critics(batch.obs, batch.action)
    np.testing.assert_allclose(f64(found), expected, rtol=1e-9)
    chosen = learner.model.critics(batch.obs, batch.action, torch.tensor([2, 0]))
    np.testing.assert_allclose(f64(chosen), expected[[2, 0]], rtol=1e-9)


def test_layer_norm_bounds_values_far_from_the_data():
    """A normalised layer of n units has norm sqrt(n) at most, so Q is bounded by weights alone."""
    values = {}
    for layer_norm in (True, False):
        critics = make_learner("rlpd", layer_norm=layer_norm).model.critics
        obs, action = 1e5 * torch.randn(64, 3), torch.rand(64, 2) * 2 - 1
        values[layer_norm] = critics(obs, action).abs().max()
        width = critics.net.weights[-1].shape[1]
        norms = critics.net.weights[-1].norm(dim=1).squeeze(-1)
        bound = (norms * width**0.5 + critics.net.biases[-1].abs().squeeze()).max()
    assert values[True] <= bound
    assert values[False] > 100 * bound


# --- temperature -----------------------------------------------------------------------------


def test_the_target_entropy_is_minus_half_the_action_components():
    assert make_learner("rlpd").target_entropy == -1.0  # of two
    assert make_learner("rlpd", target_entropy=-3.0).target_entropy == -3.0


@pytest.mark.parametrize(("target", "direction"), [(-50.0, -1), (50.0, 1)])
def test_temperature_moves_towards_the_target_entropy(target, direction):
    learner = make_learner("rlpd", target_entropy=target, temperature_lr=0.1)
    learner.step(random_batch())
    assert np.sign(float(learner.log_temperature.detach())) == direction


def test_a_fixed_temperature_stays():
    learner = make_learner("rlpd", fixed_temperature=0.2)
    metrics = learner.step(random_batch())
    assert "temperature" not in learner.optimizers
    assert "temperature_loss" not in metrics
    assert float(learner.log_temperature.exp()) == pytest.approx(0.2)
    assert float(metrics["temperature"]) == pytest.approx(0.2)


# --- SAC within it ---------------------------------------------------------------------------

PLAIN = {
    "num_critics": 2,
    "num_min_critics": 2,
    "layer_norm": False,
    "policy_objective": "min",
    "gradient_updates_per_step": 1.0,
}


@pytest.mark.parametrize("temperature", [0.3, None])
def test_a_plain_update_is_sacs(temperature):
    entropy = {"target_entropy": -2.0}
    sac = make_learner("sac", fixed_temperature=temperature, **entropy)
    rlpd = make_learner("rlpd", fixed_temperature=temperature, **PLAIN, **entropy)
    for learner in (sac, rlpd):
        torch.manual_seed(1)
        for seed in range(5):
            metrics = learner.step(random_batch(seed=seed))
    assert list(sac.state_dict()) == list(rlpd.state_dict())
    for key, value in sac.state_dict().items():
        assert torch.equal(value, rlpd.state_dict()[key]), key
    assert set(metrics) == set(sac.step(random_batch()))


@pytest.mark.parametrize("dataset", [None, "pendulum-mixed"])
def test_a_plain_run_without_prior_rows_is_sacs(tmp_path, dataset):
    """Ratio 0: not one bit of the run differs, whether or not data lie beside it."""
    options = {
        "hidden_sizes": [8, 8],
        "batch_size": 16,
        "learning_starts": 20,
        "buffer_capacity": 60,
        "train_frequency": 3,
        "num_envs": 2,
        "seed": 5,
        "device": "cpu",
        "eval_episodes": 1,
        "tensorboard": False,
        "output_dir": str(tmp_path),
    }
    sac = SAC("Pendulum-v1", fixed_temperature=0.2, **options)
    rlpd = RLPD(
        "Pendulum-v1",
        dataset=dataset,
        fixed_temperature=0.2,
        offline_batch_ratio=0.0,
        **PLAIN,
        **options,
    )
    results = [agent.learn(total_timesteps=100, progress=False) for agent in (sac, rlpd)]
    assert results[0].updates == results[1].updates > 50
    assert results[0].last_eval == results[1].last_eval
    for key, value in sac.algorithm.state_dict().items():
        assert torch.equal(value, rlpd.algorithm.state_dict()[key]), key


# --- knobs -----------------------------------------------------------------------------------


@each(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *TARGET_BAD_KNOBS,
        *bad_rates("policy_lr", "critic_lr", "temperature_lr", "fixed_temperature"),
        ("num_critics", 0),
        ("num_min_critics", 0),
        ("num_min_critics", 11),
        ("policy_objective", "max"),
        ("offline_batch_ratio", -0.1),
        ("offline_batch_ratio", 1.1),
        ("offline_batch_ratio", 0.001),
        ("offline_batch_ratio", 0.999),
        ("offline_pretrain_updates", -1),
        ("gradient_updates_per_step", 0.0),
    ],
)
def test_rejects(key, value):
    assert_rejects("rlpd", key, value)
