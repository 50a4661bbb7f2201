"""Learners and their losses: one file per algorithm.

The names are imported on first use, so that naming one algorithm loads one file.
"""

from __future__ import annotations

import importlib
from typing import Any

BUILT_IN = {
    "bc": "BC",
    "awr": "AWR",
    "marwil": "MARWIL",
    "crr": "CRR",
    "iql": "IQL",
    "awac": "AWAC",
    "cql": "CQL",
    "td3_bc": "TD3BC",
    "rebrac": "ReBRAC",
    "sac": "SAC",
    "td3": "TD3",
    "rlpd": "RLPD",
    "mbpo": "MBPO",
    "mopo": "MOPO",
    "dqn": "DQN",
    "c51": "C51",
    "qr_dqn": "QRDQN",
    "iqn": "IQN",
    "fqf": "FQF",
    "ppo": "PPO",
    "dreamer": "Dreamer",
    "gail": "GAIL",
    "fqe": "FQE",
}
"""The algorithms of this package, each named here and nowhere else: its name in configs, which is
that of its file, and the public name of its class, which is `<public name>Algorithm` there."""

_SHARED = {
    "dynamics": ("dynamics_loss", "rollouts"),
    "fitting": ("fit",),
    "value_based": ("quantile_huber_loss",),
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
_MODULE_OF = {
    **{public: name for name, public in BUILT_IN.items()},
    **{f"{public}Algorithm": name for name, public in BUILT_IN.items()},
    **{name: module for module, names in _SHARED.items() for name in names},
}


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _everything()
    # public functions of an algorithm begin with its name, as iql_loss does
    owners = [algo for algo in BUILT_IN if name.startswith(f"{algo}_")]
    owner = _MODULE_OF.get(name) or max(owners, key=len, default=None)
    module = None if owner is None else _module(owner)
    # the short name is the learner class itself
    found = getattr(module, name, None) or getattr(module, f"{name}Algorithm", None)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def _everything() -> list[str]:
    """The public names; loads every file."""
    functions = {
        function
        for algo in BUILT_IN
        for function, value in vars(_module(algo)).items()
        if function.startswith(f"{algo}_") and value.__module__ == f"{__name__}.{algo}"
    }
    return sorted(functions.union(_MODULE_OF))


def __dir__() -> list[str]:
    return _everything()
