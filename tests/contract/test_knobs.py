"""No dead knobs: nudging any of them changes what is learned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

from rl_training.algorithms.loops import LOOPS
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.runtime.build import build_loop

from ..each import each
from .small_runs import LOOP_KNOBS, SMALL_SAC, small_config, small_learner

VALUE_BASED = ("dqn", "c51", "qr_dqn", "iqn", "fqf")

MEMORY = {"memory": "lstm", "memory_size": 4, "sequence_length": 4}

# Values at which a knob must bite, and the other knobs it needs to be alive.
PROBES: dict[tuple[str, str], Any] = {
    ("*", "grad_clip"): 1e-3,
    ("c51", "value_range"): (-5.0, 5.0),
    ("*", "hidden_sizes"): [8, 4],
    ("*", "policy_hidden_sizes"): [4],
    ("*", "critic_hidden_sizes"): [4],
    ("*", "networks"): "tests.contract.own_networks:all_of_them",
    ("*", "batch_size"): 16,
    ("*", "gamma"): 0.5,
    ("*", "max_weight"): 1.01,
    ("cql", "lagrange_threshold"): 1.0,
    ("cql", "cloning_weight"): 0.3,
    ("*", "policy_average"): 0.5,
    ("*", "return_temperature"): 0.02,
    ("*", "architecture"): "crossq",
    ("*", "target_entropy"): -7.0,
    ("*", "fixed_temperature"): 0.5,
    ("rlpd", "fixed_temperature"): 0.5,
    **{(algo, "buffer_capacity"): 24 for algo in ("rlpd", "awac", "iql", "cql")},
    ("*", "buffer_capacity"): 16,
    ("*", "learning_starts"): 20,
    ("ppo", "rollout_length"): 32,
    ("*", "target_update_interval"): 2,
    ("*", "memory"): "gru",
    ("*", "memory_size"): 8,
    ("*", "sequence_length"): 2,
    ("*", "epsilon_end"): 0.9,
    ("*", "epsilon_fraction"): 1.0,
    ("iqn", "num_action_quantiles"): 1,
    ("*", "train_frequency"): 5,
    ("*", "clip_schedule"): {"kind": "linear"},
    ("*", "entropy_schedule"): {"kind": "linear"},
    ("*", "num_members"): 4,
    ("*", "num_elites"): 1,
    ("*", "model_hidden_sizes"): [8, 4],
    ("*", "model_batch_size"): 3,
    ("*", "model_weight_decay"): [0.1],
    ("*", "max_holdout"): 1,
    ("*", "model_patience"): 1,
    ("*", "model_max_epochs"): 2,
    ("*", "termination"): "tests.contract.small_runs:ends_turning",
    ("*", "rollout_batch_size"): 21,
    ("*", "rollout_length"): 3,
    ("*", "final_rollout_length"): 4,
    ("*", "rollout_growth"): [0, 1],
    ("*", "epoch_length"): 40,
    ("*", "model_buffer_capacity"): 41,
    ("*", "real_ratio"): 0.5,
    ("mbpo", "model_interval"): 7,
    ("mopo", "rollout_interval"): 3,
    ("ppo", "entropy_coef"): 0.5,
    ("ppo", "clip"): 0.001,
    ("ppo", "value_clip"): 1e-3,
    ("ppo", "target_kl"): 1e-9,
    ("ppo", "batch_size"): 8,
    ("gail", "batch_size"): 8,
    ("gail", "ppo"): {**LOOP_KNOBS["imitation"]["ppo"], "lr": 1e-3},
    ("gail", "sac"): {**SMALL_SAC, "policy_lr": 1e-3},
    ("gail", "gradient_penalty"): 10.0,
    ("gail", "demo_episodes"): 1,
    ("gail", "discriminator_updates"): 3,
    ("dreamer", "batch_size"): 3,
    ("dreamer", "batch_length"): 3,
    ("dreamer", "size"): "1m",
    ("dreamer", "precision"): "bfloat16",
    ("dreamer", "rollout_length"): 3,
    ("dreamer", "free_nats"): 100.0,
    ("fqe", "horizon"): 5,
    ("fqe", "value_range"): [-0.1, 0.1],
    ("fqe", "policy"): {"algo": "bc", "algo_kwargs": {"hidden_sizes": [4, 4]}},
}
NEEDS: dict[tuple[str, str], dict[str, Any]] = {
    ("cql", "lagrange_lr"): {"lagrange_threshold": 1.0},
    ("crr", "temperature"): {"weight_type": "exp"},
    ("iqn", "num_action_quantiles"): {"lr": 0.05},
    **{(algo, "double"): {"lr": 0.05} for algo in VALUE_BASED},
    **{(algo, "noise_scale"): {"noisy": True} for algo in VALUE_BASED},
    **{(algo, "priority_alpha"): {"prioritized": True} for algo in VALUE_BASED},
    **{(algo, "priority_beta"): {"prioritized": True} for algo in VALUE_BASED},
    **{(algo, "epsilon_start"): {"epsilon_fraction": 1.0} for algo in VALUE_BASED},
    **{
        (algo, name): MEMORY
        for algo in (*VALUE_BASED, "ppo")
        for name in ("memory", "memory_size", "sequence_length", "burn_in")
    },
    **{
        (algo, name): needed
        for algo in ("mbpo", "mopo")
        for name, needed in {
            "model_patience": {"model_max_epochs": 60, "model_lr": 0.1},
            "final_rollout_length": {"rollout_growth": [0, 1], "epoch_length": 4},
            "rollout_growth": {"final_rollout_length": 4, "epoch_length": 4},
        }.items()
    },
    ("mopo", "epoch_length"): {"retain_epochs": 1, "epoch_length": 4},
    ("mopo", "retain_epochs"): {"retain_epochs": 2, "epoch_length": 4},
    ("ppo", "clip_schedule"): {"clip": 0.001},
    ("ppo", "target_kl"): {"epochs": 4},
    ("ppo", "entropy_schedule"): {"entropy_coef": 0.5},
    ("gail", "sac"): {"generator": "sac", "ppo": {}, "sac": SMALL_SAC},
}
# What has to change together with a knob.
ALONG: dict[tuple[str, str], dict[str, Any]] = {
    ("gail", "generator"): {"ppo": {}, "sac": SMALL_SAC},
}


def nudge(algo: str, name: str, field: Any) -> Any:
    for key in ((algo, name), ("*", name)):
        if key in PROBES:
            return PROBES[key]
    if get_origin(field.annotation) is Literal:
        return next(x for x in get_args(field.annotation) if x != field.default)
    if isinstance(field.default, bool):
        return not field.default
    if isinstance(field.default, int):
        return field.default + 1
    return field.default * 0.5


STAGES = 8
"""How often a run is compared with the unchanged one; it ends where the two differ."""


def fingerprints(algo: str, knobs: dict[str, Any], loop: str | None = None) -> Iterator[str]:
    """Hashes of all weights: of the initial ones, then after every part of a short run."""
    config = small_config(algo, loop=loop, algo_kwargs=knobs)
    algorithm, table = small_learner(config)
    yield fingerprint(algorithm)
    torch.manual_seed(0)
    if algorithm.loop_of(config) == "offline" and config.init_from is None:
        for _ in range(4):
            algorithm.step(table.sample(config.params.batch_size))
            yield fingerprint(algorithm)
        return
    run = build_loop(config, algorithm)
    try:
        while run.position < run.total:
            run.advance(min(-(-run.total // STAGES), run.total - run.position))
            yield fingerprint(algorithm)
    finally:
        run.close()


def fingerprint(algorithm: Any) -> str:
    digest = hashlib.sha256()
    for tensor in algorithm.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def differ(some: Iterable[str], others: Iterable[str]) -> bool:
    """Whether two runs differ at any stage; stops at the first."""
    return any(one != other for one, other in zip_longest(some, others))


ONLINE = LOOPS["offline_to_online"].online_knobs


def knobs() -> list[tuple[str, str]]:
    return [
        (algo, name)
        for algo in algorithm_names()
        for name in algorithm_class(algo).Params.model_fields
    ]


@pytest.mark.parametrize("algo", algorithm_names())
def test_every_knob_changes_the_result(algo: str) -> None:
    unchanged: dict[str, list[str]] = {}
    dead = []
    for name in (name for of, name in knobs() if of == algo):
        field = algorithm_class(algo).Params.model_fields[name]
        needed = NEEDS.get((algo, name), {})
        loop = algorithm_class(algo).online_loop if name in ONLINE else None
        key = repr((needed, loop))
        if key not in unchanged:
            unchanged[key] = list(fingerprints(algo, needed, loop))
            assert list(fingerprints(algo, needed, loop)) == unchanged[key], "not reproducible"
        nudged = {**needed, name: nudge(algo, name, field), **ALONG.get((algo, name), {})}
        if not differ(fingerprints(algo, nudged, loop), unchanged[key]):
            dead.append(name)
    assert not dead, f"{', '.join(dead)}: a change changes nothing"


GENERATORS: dict[str, dict[str, Any]] = {
    "ppo": {"ppo": LOOP_KNOBS["imitation"]["ppo"]},
    "sac": {"generator": "sac", "ppo": {}, "sac": SMALL_SAC},
}


@pytest.mark.parametrize("generator", GENERATORS)
def test_every_knob_of_a_generator_changes_the_result(generator: str) -> None:
    """The same probes as for the algorithm alone, inside GAIL."""
    options = GENERATORS[generator]
    unchanged: dict[str, list[str]] = {}
    dead = []
    for name in (name for of, name in knobs() if of == generator):
        field = algorithm_class(generator).Params.model_fields[name]
        needed = {**options[generator], **NEEDS.get((generator, name), {})}
        if repr(needed) not in unchanged:
            unchanged[repr(needed)] = list(fingerprints("gail", {**options, generator: needed}))
        nudged = {**options, generator: {**needed, name: nudge(generator, name, field)}}
        if not differ(fingerprints("gail", nudged), unchanged[repr(needed)]):
            dead.append(name)
    assert not dead, f"{generator}: a change of {', '.join(dead)} changes nothing"


@each(("algo", "name"), knobs())
def test_every_knob_has_a_comment(algo: str, name: str) -> None:
    assert algorithm_class(algo).Params.model_fields[name].description
