"""Algorithm names and where their classes live.

One line per algorithm; a module is imported only when its algorithm is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

from rl_training.experiment.errors import ConfigError, did_you_mean

_ALGORITHMS: dict[str, str] = {
    "bc": "rl_training.algorithms.bc:BCAlgorithm",
    "awr": "rl_training.algorithms.awr:AWRAlgorithm",
    "marwil": "rl_training.algorithms.marwil:MARWILAlgorithm",
    "crr": "rl_training.algorithms.crr:CRRAlgorithm",
    "iql": "rl_training.algorithms.iql:IQLAlgorithm",
    "awac": "rl_training.algorithms.awac:AWACAlgorithm",
    "cql": "rl_training.algorithms.cql:CQLAlgorithm",
    "td3_bc": "rl_training.algorithms.td3_bc:TD3BCAlgorithm",
    "rebrac": "rl_training.algorithms.rebrac:ReBRACAlgorithm",
    "sac": "rl_training.algorithms.sac:SACAlgorithm",
    "td3": "rl_training.algorithms.td3:TD3Algorithm",
    "rlpd": "rl_training.algorithms.rlpd:RLPDAlgorithm",
    "mbpo": "rl_training.algorithms.mbpo:MBPOAlgorithm",
    "mopo": "rl_training.algorithms.mopo:MOPOAlgorithm",
    "dqn": "rl_training.algorithms.dqn:DQNAlgorithm",
    "qr_dqn": "rl_training.algorithms.qr_dqn:QRDQNAlgorithm",
    "iqn": "rl_training.algorithms.iqn:IQNAlgorithm",
    "fqf": "rl_training.algorithms.fqf:FQFAlgorithm",
    "ppo": "rl_training.algorithms.ppo:PPOAlgorithm",
    "dreamer": "rl_training.algorithms.dreamer:DreamerAlgorithm",
    "gail": "rl_training.algorithms.gail:GAILAlgorithm",
}


def algorithm_names() -> tuple[str, ...]:
    """The registered names, in the order in which they were registered."""
    return tuple(_ALGORITHMS)


def algorithm_class(name: str) -> Any:
    """The learner class registered under `name`.

    Typed `Any` because this layer sits below the algorithms and cannot name their base.
    """
    if name not in _ALGORITHMS:
        raise ConfigError(
            f"algo: unknown algorithm '{name}'{did_you_mean(name, _ALGORITHMS)}; "
            f"known are {', '.join(_ALGORITHMS)}"
        )
    module_name, _, class_name = _ALGORITHMS[name].partition(":")
    return getattr(importlib.import_module(module_name), class_name)


def register(name: str, target: str) -> None:
    """Make a third-party algorithm known as `name`; `target` is "package.module:Class"."""
    module_name, separator, class_name = target.partition(":")
    if not (module_name and separator and class_name):
        raise ConfigError(f"register: target '{target}' must have the form 'package.module:Class'")
    if _ALGORITHMS.get(name, target) != target:
        raise ConfigError(f"register: '{name}' is already registered as {_ALGORITHMS[name]}")
    _ALGORITHMS[name] = target
