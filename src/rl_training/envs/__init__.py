"""Environments for learning: vectors without autoreset, and the collector that steps them.

Importing this package registers `rl_training/Atari-v0`, the games of `envs/atari.py`,
`rl_training/Control-v0`, the tasks of the DeepMind Control suite, `rl_training/Catch-v0`, a
small task on pixels, `rl_training/FixedCartPole-v0`, a CartPole without an early end,
`rl_training/SparsePendulum-v0`, a swing-up that pays only at its end, and
`rl_training/Probe-v0`, an environment that checks others.
"""

from __future__ import annotations

from rl_training.envs.atari import register_atari
from rl_training.envs.catch import register_catch
from rl_training.envs.control import register_control
from rl_training.envs.fixed_cartpole import register_fixed_cartpole
from rl_training.envs.probe import register_probe
from rl_training.envs.sparse_pendulum import register_sparse_pendulum

register_atari()
register_catch()
register_control()
register_fixed_cartpole()
register_probe()
register_sparse_pendulum()
