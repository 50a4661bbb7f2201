"""Every knob that matters has a range in which it is searched."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from rl_training.experiment.errors import ConfigError
from rl_training.experiment.ranges import Choices, Linear, Log, parse_range, search_range
from rl_training.experiment.registry import working_algorithms

NETWORK = "follows hidden_sizes"
MEMORY = "memory and time of the run, not what is learned from a batch"
OFF = "off by default, or without effect unless another knob turns it on"
STABILITY = "a constant of numerics or statistics, which nobody tunes"
DATA = "says which data are used"
FIDELITY = "more is better and costs time: a budget"
PUBLISHED = "fixed across all tasks by its authors"
SCHEDULE = "when learning happens, bound to the budget"

EXEMPT = {
    "policy_hidden_sizes": NETWORK,
    "critic_hidden_sizes": NETWORK,
    "model_hidden_sizes": NETWORK,
    "buffer_capacity": MEMORY,
    "model_buffer_capacity": MEMORY,
    "rollout_batch_size": MEMORY,
    "model_batch_size": MEMORY,
    "retain_epochs": MEMORY,
    "cloning_weight": OFF,
    "fixed_temperature": OFF,
    "lagrange_threshold": OFF,
    "lagrange_lr": OFF,
    "priority_alpha": OFF,
    "priority_beta": OFF,
    "target_kl": OFF,
    "value_clip": OFF,
    "target_entropy": OFF,
    "burn_in": OFF,
    "sequence_length": OFF,
    "horizon": OFF,
    "value_range": "the returns of the task",
    "noise_scale": OFF,
    "num_atoms": FIDELITY,
    "adam_eps": STABILITY,
    "advantage_norm_rate": STABILITY,
    "kappa": STABILITY,
    "target_noise_clip": STABILITY,
    "return_range_rate": STABILITY,
    "discriminator_entropy_coef": STABILITY,
    "model_weight_decay": STABILITY,
    "demo_episodes": DATA,
    "demo_subsample": DATA,
    "holdout_ratio": DATA,
    "max_holdout": DATA,
    "num_action_quantiles": FIDELITY,
    "num_action_samples": FIDELITY,
    "num_cosines": FIDELITY,
    "num_critics": FIDELITY,
    "num_elites": FIDELITY,
    "num_fractions": FIDELITY,
    "num_members": FIDELITY,
    "num_min_critics": FIDELITY,
    "num_quantiles": FIDELITY,
    "num_target_quantiles": FIDELITY,
    "discriminator_updates": FIDELITY,
    "model_max_epochs": FIDELITY,
    "model_patience": FIDELITY,
    "batch_length": PUBLISHED,
    "dynamics_scale": PUBLISHED,
    "free_nats": PUBLISHED,
    "gradient_share": PUBLISHED,
    "replay_value_scale": PUBLISHED,
    "representation_scale": PUBLISHED,
    "slow_scale": PUBLISHED,
    "lr_warmup": SCHEDULE,
    "rollout_length": SCHEDULE,  # of MBPO and Dreamer; PPO and MOPO have ranges
    "final_rollout_length": SCHEDULE,
    "rollout_growth": SCHEDULE,
    "rollout_interval": SCHEDULE,
    "epoch_length": SCHEDULE,
    "epsilon_start": SCHEDULE,
    "learning_starts": SCHEDULE,
    "model_interval": SCHEDULE,
    "offline_pretrain_updates": SCHEDULE,
    "train_frequency": SCHEDULE,
}
"""Numeric knobs without a range, and why."""


def is_numeric(kind: Any) -> bool:
    if kind in (int, float):
        return True
    return any(is_numeric(part) for part in get_args(kind) if not isinstance(part, str))


def test_every_numeric_knob_has_a_range_or_a_reason_to_have_none() -> None:
    lacking: dict[str, str] = {}
    for algo, learner in working_algorithms().items():
        for name, field in learner.Params.model_fields.items():
            if is_numeric(field.annotation) and search_range(field) is None:
                lacking[name] = algo
    assert {k: v for k, v in lacking.items() if k not in EXEMPT} == {}
    assert sorted(set(EXEMPT) - set(lacking)) == []


def test_every_value_of_a_range_is_a_value_of_its_knob() -> None:
    for algo, learner in working_algorithms().items():
        for name, field in learner.Params.model_fields.items():
            found = search_range(field)
            if found is None:
                continue
            values = found.values if isinstance(found, Choices) else (found.low, found.high)
            for value in values:
                plain = json.loads(json.dumps(value))
                try:
                    learner.Params.model_validate({name: plain})
                except ValidationError as error:
                    wrong = [e for e in error.errors() if e["loc"] and e["loc"][0] == name]
                    assert not wrong, f"{algo}.{name}={value}: {wrong}"


def test_ranges_are_read_as_they_are_printed_and_wrong_ones_are_refused() -> None:
    for found in (Log(1e-5, 1e-2), Linear(-1.0, 2.0), Choices((64, None, [8, 8]))):
        assert parse_range(str(found), "--search x") == found
    for text in ("log(0, 1)", "linear(2, 1)", "log(1)", "[3]", "[3, 3]", "7", "log(a, b)", "["):
        with pytest.raises(ConfigError, match="is no range"):
            parse_range(text, "--search x")
    assert Log(0.1, 1.0).with_value(3) == Log(0.1, 3)
    assert Log(0.1, 1.0).with_value(0) is None
    assert Choices((1, 2)).with_value(5) == Choices((1, 2, 5))
