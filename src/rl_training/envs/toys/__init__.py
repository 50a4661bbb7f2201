"""Small tasks of this package, each learned within a minute or two on a CPU.

`rl_training/Catch-v0` has pixels for observations, `rl_training/FixedCartPole-v0` never ends an
episode early, `rl_training/SparsePendulum-v0` gives a reward only near the upright position,
`rl_training/CartPoleNoVelocity-v0` needs a memory, and `rl_training/MaskedDoors-v0` has action
masks.
"""

from __future__ import annotations

from rl_training.envs.toys.cartpole_no_velocity import register_cartpole_no_velocity
from rl_training.envs.toys.catch import register_catch
from rl_training.envs.toys.fixed_cartpole import register_fixed_cartpole
from rl_training.envs.toys.masked_doors import register_masked_doors
from rl_training.envs.toys.sparse_pendulum import register_sparse_pendulum


def register_toys() -> None:
    """Register the tasks with Gymnasium."""
    register_catch()
    register_cartpole_no_velocity()
    register_fixed_cartpole()
    register_masked_doors()
    register_sparse_pendulum()
