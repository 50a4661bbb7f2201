"""Environments for learning: vectors without autoreset, and the collector that steps them.

Importing this package registers `rl_training/Probe-v0`, an environment that checks others.
"""

from __future__ import annotations

from rl_training.envs.probe import register_probe

register_probe()
