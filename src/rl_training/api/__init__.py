"""The managed API."""

from rl_training.api.algorithms import (
    AWAC,
    AWR,
    BC,
    CQL,
    CRR,
    DQN,
    FQF,
    IQL,
    IQN,
    MARWIL,
    PPO,
    QRDQN,
    SAC,
)
from rl_training.api.managed import ManagedAlgorithm, load

__all__ = [
    "AWAC",
    "AWR",
    "BC",
    "CQL",
    "CRR",
    "DQN",
    "FQF",
    "IQL",
    "IQN",
    "MARWIL",
    "PPO",
    "QRDQN",
    "SAC",
    "ManagedAlgorithm",
    "load",
]
