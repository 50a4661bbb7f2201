"""Learners and their losses: one file per algorithm.

The names are imported on first use, so that naming one algorithm loads one file.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "bc": ("BCAlgorithm", "BC", "bc_loss", "bc_mse_loss"),
    "awr": ("AWRAlgorithm", "AWR", "awr_loss"),
    "marwil": ("MARWILAlgorithm", "MARWIL", "marwil_loss"),
    "crr": ("CRRAlgorithm", "CRR", "crr_loss"),
    "iql": ("IQLAlgorithm", "IQL", "iql_loss", "iql_policy_loss", "iql_value_loss"),
    "awac": ("AWACAlgorithm", "AWAC", "awac_loss"),
    "cql": ("CQLAlgorithm", "CQL", "cql_loss"),
    "td3_bc": ("TD3BCAlgorithm", "TD3BC", "td3_bc_policy_loss"),
    "rebrac": ("ReBRACAlgorithm", "ReBRAC", "rebrac_policy_loss"),
    "sac": ("SACAlgorithm", "SAC", "sac_loss"),
    "td3": ("TD3Algorithm", "TD3", "td3_policy_loss"),
    "rlpd": ("RLPDAlgorithm", "RLPD", "rlpd_loss"),
    "mbpo": ("MBPOAlgorithm", "MBPO"),
    "mopo": ("MOPOAlgorithm", "MOPO", "mopo_reward"),
    "dynamics": ("dynamics_loss", "rollouts"),
    "fitting": ("fit",),
    "dqn": ("DQNAlgorithm", "DQN", "dqn_loss"),
    "qr_dqn": ("QRDQNAlgorithm", "QRDQN"),
    "iqn": ("IQNAlgorithm", "IQN"),
    "fqf": ("FQFAlgorithm", "FQF", "fqf_fraction_loss"),
    "value_based": ("quantile_huber_loss",),
    "ppo": ("PPOAlgorithm", "PPO", "ppo_loss"),
    "gail": ("GAILAlgorithm", "GAIL", "gail_discriminator_loss", "gail_reward"),
    "dreamer": ("DreamerAlgorithm", "Dreamer"),
    "world_models": (
        "imagination_weights",
        "imagined_policy_loss",
        "kl_balance",
        "lambda_return",
        "return_scale",
    ),
    "base": ("Act", "Algorithm"),
    "loops": ("LoopFamily", "register_loop"),
    "params": ("Params",),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    # the short name is the learner class itself
    return getattr(module, name, None) or getattr(module, f"{name}Algorithm")


def __dir__() -> list[str]:
    return __all__
