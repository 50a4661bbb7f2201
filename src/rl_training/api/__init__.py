"""The managed API."""

from rl_training.api.algorithms import (
    AWAC,
    AWR,
    BC,
    CQL,
    CRR,
    DQN,
    FQF,
    GAIL,
    IQL,
    IQN,
    MARWIL,
    MBPO,
    MOPO,
    PPO,
    QRDQN,
    RLPD,
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
    "GAIL",
    "IQL",
    "IQN",
    "MARWIL",
    "MBPO",
    "MOPO",
    "PPO",
    "QRDQN",
    "RLPD",
    "SAC",
    "ManagedAlgorithm",
    "load",
]
