"""Environments for learning: vectors without autoreset, and the collector that steps them.

Importing this package registers `rl_training/Atari-v0` (`atari.py`), `rl_training/Control-v0`
(`control.py`), the small tasks of `toys/` and those on the device (`device/`).
"""

from __future__ import annotations

from rl_training.envs.atari import register_atari
from rl_training.envs.control import register_control
from rl_training.envs.device.register import register_device_tasks
from rl_training.envs.toys import register_toys

register_atari()
register_control()
register_device_tasks()
register_toys()
