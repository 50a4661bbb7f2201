"""Small tasks of this package, each learned within a minute or two on a CPU.

`rl_training/Catch-v0` has pixels for observations, `rl_training/FixedCartPole-v0` never ends an
episode early, and `rl_training/SparsePendulum-v0` gives a reward only near the upright position.
"""

from __future__ import annotations

from rl_training.envs.toys.catch import register_catch
from rl_training.envs.toys.fixed_cartpole import register_fixed_cartpole
from rl_training.envs.toys.sparse_pendulum import register_sparse_pendulum


def register_toys() -> None:
    """Register the tasks with Gymnasium."""
    register_catch()
    register_fixed_cartpole()
    register_sparse_pendulum()
