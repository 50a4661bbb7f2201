"""MBPO: SAC's update, unchanged, and a model beside it. The model itself: test_dynamics.py."""

import pytest
import torch

from ..each import each
from .helpers import (
    COMMON_BAD_KNOBS,
    TARGET_BAD_KNOBS,
    assert_refuses_discrete,
    assert_rejects,
    bad_rates,
    make_learner,
    random_batch,
)

MODEL = {"num_members": 3, "num_elites": 2, "model_hidden_sizes": [8]}


@pytest.mark.parametrize("temperature", [0.3, None])
def test_the_update_is_sacs_bit_for_bit(temperature):
    sac = make_learner("sac", fixed_temperature=temperature)
    mbpo = make_learner("mbpo", fixed_temperature=temperature, **MODEL)
    before = {key: x.clone() for key, x in mbpo.state_dict().items() if "dynamics" in key}
    for learner in (sac, mbpo):
        torch.manual_seed(1)
        for seed in range(5):
            metrics = learner.step(random_batch(seed=seed))
    for key, value in sac.state_dict().items():
        assert torch.equal(value, mbpo.state_dict()[key]), key
    assert set(metrics) == set(sac.step(random_batch()))
    for key, value in before.items():
        assert torch.equal(value, mbpo.state_dict()[key]), f"an update moved {key}"


def test_the_models_optimiser_is_the_models():
    learner = make_learner("mbpo", **MODEL)
    optimizer = learner.optimizers["dynamics"]
    assert {id(p) for p in optimizer.parameters} == {id(p) for p in learner.dynamics.parameters()}
    assert optimizer.base_lr == 1e-3
    learner.set_lr_factor(0.5)
    assert float(optimizer.lr) == pytest.approx(5e-4)


def test_an_imagined_reward_is_what_the_model_says():
    reward = torch.randn(5)
    assert torch.equal(make_learner("mbpo", **MODEL).imagined_reward(reward, None), reward)


@each(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *TARGET_BAD_KNOBS,
        *bad_rates("policy_lr", "critic_lr", "temperature_lr", "model_lr", "fixed_temperature"),
        ("num_members", 0),
        ("num_elites", 8),
        ("model_hidden_sizes", []),
        ("model_weight_decay", []),
        ("holdout_ratio", 0.0),
        ("real_ratio", -0.1),
        ("real_ratio", 1.1),
        ("real_ratio", 0.001),
        ("rollout_length", 0),
        ("rollout_growth", [3, 2]),
        ("rollout_growth", [3]),
        ("model_interval", 0),
        ("termination", 3),
    ],
)
def test_rejects(key, value):
    assert_rejects("mbpo", key, value)


def test_refuses_discrete_actions():
    assert_refuses_discrete("mbpo")
