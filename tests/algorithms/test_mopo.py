"""MOPO: the penalty by hand, SAC's update. The model itself: test_dynamics.py."""

import math

import numpy as np
import pytest
import torch

from rl_training.algorithms import mopo_reward
from rl_training.algorithms.mopo import MOPOParams
from rl_training.experiment.errors import ConfigError

from ..each import each
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


@each("penalty", ["learned_std", "disagreement"])
@each(("seed", "size"), SEEDS_AND_SIZES)
@each("coef", [0.0, 0.5, 5.0])
def test_the_penalty_by_hand(seed, size, coef, penalty):
    """From the members' predictions, row by row: the largest norm over all of them, elite or
    not, in the task's units, reward included; of a member's standard deviations, or of its
    distance to the mean of the members."""
    learner = make_learner("mopo", penalty=penalty, penalty_coef=coef, **MODEL)
    rng = np.random.default_rng(seed)
    model = learner.dynamics
    model.targets.std.copy_(torch.tensor(rng.uniform(0.1, 9.0, 4)))
    model.net.biases[-1].data[..., 4:] = torch.tensor(rng.uniform(-4, 1, (3, 1, 4)))
    obs, action = torch.randn(size, 3), torch.rand(size, 2)
    with torch.no_grad():
        mean, log_var = (f64(x) for x in model(torch.cat([obs, action], -1)))
    imagined = model.imagine(obs, action, learner.uncertainty)
    found = learner.imagined_reward(imagined.reward, imagined.uncertainty)
    scale = f64(model.targets.std)
    for row in range(size):
        norms = []
        for m in range(3):
            squares = 0.0
            for d in range(4):
                centre = sum(mean[j, row, d] for j in range(3)) / 3.0
                error = mean[m, row, d] - centre
                size_d = math.exp(log_var[m, row, d]) if penalty == "learned_std" else error**2
                squares += size_d * scale[d] ** 2
            norms.append(math.sqrt(squares))
        assert float(found[row]) == pytest.approx(
            float(imagined.reward[row]) - coef * max(norms), rel=1e-4, abs=1e-4
        )


def test_more_uncertainty_pays_less():
    reward, uncertain = torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])
    assert mopo_reward(reward, uncertain, penalty_coef=2.0).tolist() == [0.0, -2.0, -4.0]
    assert torch.equal(mopo_reward(reward, uncertain, penalty_coef=0.0), reward)


def test_stored_knobs_without_a_penalty_had_the_papers():
    """Runs of before there was a choice go on as they began; a new config has the default."""
    stored = MOPOParams(penalty_coef=2.5).model_dump(mode="json")
    assert MOPOParams.parse(stored).penalty == "disagreement"
    del stored["penalty"]
    assert MOPOParams.parse(stored) == MOPOParams(penalty="learned_std", penalty_coef=2.5)
    assert MOPOParams.parse({"penalty_coef": 2.5, "num_members": 5}).penalty == "disagreement"


def test_the_update_is_sacs_bit_for_bit():
    sac, mopo = make_learner("sac"), make_learner("mopo", **MODEL)
    for learner in (sac, mopo):
        torch.manual_seed(1)
        for seed in range(5):
            learner.step(random_batch(seed=seed))
    for key, value in sac.state_dict().items():
        assert torch.equal(value, mopo.state_dict()[key]), key


@each(
    ("key", "value"),
    [
        *COMMON_BAD_KNOBS,
        *TARGET_BAD_KNOBS,
        *bad_rates("policy_lr", "critic_lr", "temperature_lr", "model_lr"),
        ("penalty_coef", -1.0),
        ("penalty", "variance"),
        ("rollout_interval", 0),
        ("learning_starts", 5),
        ("num_elites", 8),
    ],
)
def test_rejects(key, value):
    assert_rejects("mopo", key, value)


def test_one_member_cannot_disagree():
    one = {"num_members": 1, "num_elites": 1}
    with pytest.raises(ConfigError, match=r"^penalty: one member cannot disagree .* learned_std"):
        MOPOParams.parse(one)
    assert MOPOParams.parse({**one, "penalty": "learned_std"}).num_members == 1


def test_refuses_discrete_actions():
    assert_refuses_discrete("mopo")
