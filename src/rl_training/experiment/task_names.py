"""Names of tasks, for folders and titles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MANY_TASKS: Mapping[str, tuple[str, ...]] = {
    "rl_training/Atari-v0": ("game",),
    "rl_training/Control-v0": ("domain", "task"),
}
"""Environments that hold many tasks, and the arguments that choose one."""


def task_name(env_id: str, env_kwargs: Mapping[str, Any]) -> str:
    """The environment's id; of one that holds many tasks its kind and the task, such as
    "Atari breakout"."""
    keys = MANY_TASKS.get(env_id, ())
    chosen = [str(env_kwargs[key]) for key in keys if env_kwargs.get(key) is not None]
    if not chosen:
        return env_id
    kind = env_id.partition("/")[2].rpartition("-v")[0]
    return " ".join([kind, *chosen])
