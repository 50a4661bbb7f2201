"""The managed API."""

from rl_training.api.algorithms import AWAC, AWR, BC, CQL, CRR, IQL, MARWIL
from rl_training.api.managed import ManagedAlgorithm, load

__all__ = ["AWAC", "AWR", "BC", "CQL", "CRR", "IQL", "MARWIL", "ManagedAlgorithm", "load"]
