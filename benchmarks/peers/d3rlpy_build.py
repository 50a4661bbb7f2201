"""d3rlpy's algorithms with the knobs of ours, by meaning.

Run by the peers' Python. What d3rlpy does differently and offers no knob for stays as it
is: AWAC weights by a softmax over the batch, CQL bootstraps from the policy's mode, the
Gaussian is unsquashed around a tanh mean, BC fits a deterministic policy with squared
error, and the last transition of an episode cut by a time limit is not sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import d3rlpy
import numpy as np
from d3rlpy.algos import (
    AWACConfig,
    BCConfig,
    CQLConfig,
    CRRConfig,
    IQLConfig,
    ReBRACConfig,
    TD3PlusBCConfig,
)
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import MDPDataset
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler

TWIN_CRITICS = 2


def make_dataset(arrays: Mapping[str, Any]) -> Any:
    """Episodes from flat arrays; time limits become timeouts, so nothing ends there."""
    return MDPDataset(
        observations=np.asarray(arrays["observations"], np.float32),
        actions=np.asarray(arrays["actions"], np.float32),
        rewards=np.asarray(arrays["rewards"], np.float32),
        terminals=np.asarray(arrays["terminations"], np.float32),
        timeouts=np.asarray(arrays["truncations"], np.float32),
        action_space=ActionSpace.CONTINUOUS,
    )


def make_algorithm(
    name: str,
    knobs: Mapping[str, Any] | None,
    dataset: Any,
    seed: int,
    bounds: tuple[list[float], list[float]] | None = None,
    standardize: bool = False,
    device: str | bool = False,
) -> Any:
    """An untrained algorithm, on the CPU unless a `device` is named.

    `knobs` are the resolved knobs of ours, None stands for its own defaults; `bounds` are the
    environment's action bounds where actions are not in [-1, 1] yet.
    """
    d3rlpy.seed(seed)
    config = _DEFAULTS[name]() if knobs is None else _CONFIGS[name](knobs)
    if bounds is not None:
        low, high = (np.asarray(bound, np.float32) for bound in bounds)
        config.action_scaler = MinMaxActionScaler(minimum=low, maximum=high)
    if standardize:
        config.observation_scaler = fitted_scaler(dataset)
    algorithm = config.create(device=device)
    algorithm.build_with_dataset(dataset)
    return algorithm


def fitted_scaler(dataset: Any) -> Any:
    """Standardises observations; `fit` would fit it, `update` expects it fitted."""
    scaler = StandardObservationScaler()
    scaler.fit_with_transition_picker(dataset.episodes, dataset.transition_picker)
    return scaler


def update(algorithm: Any, dataset: Any, count: int) -> None:
    """`count` updates, drawn and taken as d3rlpy's `fit` does, without its logging."""
    batch_size = algorithm.config.batch_size
    for _ in range(count):
        algorithm.update(dataset.sample_transition_batch(batch_size))


def _encoder(knobs: Mapping[str, Any]) -> Any:
    return VectorEncoderFactory(hidden_units=list(knobs["hidden_sizes"]))


def _bc(knobs: Mapping[str, Any]) -> Any:
    return BCConfig(
        batch_size=knobs["batch_size"],
        learning_rate=knobs["lr"],
        encoder_factory=_encoder(knobs),
    )


def _actor_critic(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """What every config with a policy and critics is given."""
    return {
        "batch_size": knobs["batch_size"],
        "gamma": knobs["gamma"],
        "tau": knobs["tau"],
        "n_critics": TWIN_CRITICS,
        "actor_learning_rate": knobs["policy_lr"],
        "critic_learning_rate": knobs["critic_lr"],
        "actor_encoder_factory": _encoder(knobs),
        "critic_encoder_factory": _encoder(knobs),
    }


def _iql(knobs: Mapping[str, Any]) -> Any:
    return IQLConfig(
        **_actor_critic(knobs),
        value_encoder_factory=_encoder(knobs),
        expectile=knobs["expectile"],
        weight_temp=knobs["inverse_temperature"],
        max_weight=knobs["max_weight"],
    )


def _awac(knobs: Mapping[str, Any]) -> Any:
    return AWACConfig(**_actor_critic(knobs), lam=knobs["temperature"], n_action_samples=1)


def _crr(knobs: Mapping[str, Any]) -> Any:
    return CRRConfig(
        **_actor_critic(knobs),
        beta=knobs["temperature"],
        n_action_samples=knobs["num_action_samples"],
        advantage_type=knobs["advantage_type"],
        weight_type=knobs["weight_type"],
        max_weight=knobs["max_weight"],
        target_update_type="soft",
    )


def _cql(knobs: Mapping[str, Any]) -> Any:
    return CQLConfig(
        **_actor_critic(knobs),
        conservative_weight=knobs["min_q_weight"],
        n_action_samples=knobs["num_action_samples"],
        temp_learning_rate=knobs["temperature_lr"],
        soft_q_backup=knobs["backup_entropy"],
        # our configs do not tune the weight: a fixed multiplier of one
        initial_alpha=1.0,
        alpha_learning_rate=0.0,
    )


def _deterministic(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """What TD3+BC and ReBRAC are given; LayerNorm is in the critics alone, as in ours."""
    critic = VectorEncoderFactory(
        hidden_units=list(knobs["hidden_sizes"]), use_layer_norm=knobs["layer_norm"]
    )
    return {
        **_actor_critic(knobs),
        "critic_encoder_factory": critic,
        "target_smoothing_sigma": knobs["target_noise"],
        "target_smoothing_clip": knobs["target_noise_clip"],
        "update_actor_interval": knobs["policy_delay"],
    }


def _td3_bc(knobs: Mapping[str, Any]) -> Any:
    return TD3PlusBCConfig(**_deterministic(knobs), alpha=knobs["alpha"])


def _rebrac(knobs: Mapping[str, Any]) -> Any:
    return ReBRACConfig(
        **_deterministic(knobs),
        actor_beta=knobs["policy_penalty"],
        critic_beta=knobs["critic_penalty"],
    )


_DEFAULTS = {"td3_bc": TD3PlusBCConfig, "rebrac": ReBRACConfig, "cql": CQLConfig}
_CONFIGS = {
    "bc": _bc,
    "iql": _iql,
    "awac": _awac,
    "crr": _crr,
    "cql": _cql,
    "td3_bc": _td3_bc,
    "rebrac": _rebrac,
}
