"""What MuJoCo says while it loads a model, as Python's warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from rl_training.envs.contract import FOREIGN_ERRORS


@contextmanager
def warnings_of_mujoco(env_id: str) -> Iterator[None]:
    """Around the making of an environment: MuJoCo's messages are Python's warnings, in place of
    lines on stderr for each environment and a file MUJOCO_LOG.TXT in the current folder.

    What is deprecated in a model is a DeprecationWarning, which Python shows only where it is
    asked for. A handler of the program's own stays in place.
    """
    spec = gym.registry.get(env_id)
    if spec is not None and isinstance(spec.entry_point, str):
        with suppress(*FOREIGN_ERRORS):  # reported when the environment is made
            load_env_creator(spec.entry_point)  # which imports MuJoCo if it uses it
    mujoco = sys.modules.get("mujoco")
    if mujoco is None or mujoco.get_mju_user_warning() is not None:
        yield
        return
    said: list[str] = []
    mujoco.set_mju_user_warning(said.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)
    for text in dict.fromkeys(said):
        category = DeprecationWarning if "deprecated" in text else RuntimeWarning
        warnings.warn(f"{env_id}: MuJoCo: {text}", category, stacklevel=4)
