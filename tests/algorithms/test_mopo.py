"""MOPO: the penalty by hand, SAC's update. The model itself: test_dynamics.py."""

import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import mopo_reward

from .helpers import (
    COMMON_BAD_KNOBS,
    SEEDS_AND_SIZES,
    TARGET_BAD_KNOBS,
    assert_refuses_discrete,
    assert_rejects,
    bad_rates,
    f64,
    make_learner,
    random_batch,
)

MODEL = {"num_members": 3, "num_elites": 2, "model_hidden_sizes": [8]}


@pytest.mark.parametrize(("seed", "size"), SEEDS_AND_SIZES)
@pytest.mark.parametrize("coef", [0.0, 0.5, 5.0])
def test_the_penalty_by_hand(seed, size, coef):
    """From the members' predictions, row by row: the largest norm over all of them, elite or
    not, in the task's units, reward included."""
    learner = make_learner("mopo", penalty_coef=coef, **MODEL)
    rng = np.random.default_rng(seed)
    model = learner.dynamics
    model.targets.std.copy_(torch.tensor(rng.uniform(0.1, 9.0, 4)))
    model.net.biases[-1].data[..., 4:] = torch.tensor(rng.uniform(-4, 1, (3, 1, 4)))
    obs, action = torch.randn(size, 3), torch.rand(size, 2)
    with torch.no_grad():
        log_var = f64(model(torch.cat([obs, action], -1)).log_var)
    imagined = model.imagine(obs, action, with_spread=True)
    found = learner.imagined_reward(imagined.reward, imagined.spread)
    for row in range(size):
        norms = [
            math.sqrt(
                sum(math.exp(log_var[m, row, d]) * f64(model.targets.std)[d] ** 2 for d in range(4))
            )
            for m in range(3)
        ]
        assert float(found[row]) == pytest.approx(
            float(imagined.reward[row]) - coef * max(norms), rel=1e-4, abs=1e-4
        )


def test_more_doubt_pays_less():
    reward, spread = torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])
    assert mopo_reward(reward, spread, penalty_coef=2.0).tolist() == [0.0, -2.0, -4.0]
    assert torch.equal(mopo_reward(reward, spread, penalty_coef=0.0), reward)


def test_the_update_is_sacs_bit_for_bit():
    sac, mopo = make_learner("sac"), make_learner("mopo", **MODEL)
    for learner in (sac, mopo):
        torch.manual_seed(1)
        for seed in range(5):
            learner.step(random_batch(seed=seed))
    for key, value in sac.state_dict().items():
        assert torch.equal(value, mopo.state_dict()[key]), key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *TARGET_BAD_KNOBS,
        *bad_rates("policy_lr", "critic_lr", "temperature_lr", "model_lr"),
        ("penalty_coef", -1.0),
        ("rollout_interval", 0),
        ("learning_starts", 5),
        ("num_elites", 8),
    ],
)
def test_rejects(key, value):
    assert_rejects("mopo", key, value)


def test_refuses_discrete_actions():
    assert_refuses_discrete("mopo")
