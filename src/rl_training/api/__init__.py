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
    Dreamer,
)
from rl_training.api.managed import ManagedAlgorithm, load
from rl_training.api.seeds import learn_seeds, resume_seeds

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
    "Dreamer",
    "ManagedAlgorithm",
    "learn_seeds",
    "load",
    "resume_seeds",
]
