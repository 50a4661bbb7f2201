"""Roll out a controller in an environment and return its episodes as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.envs.contract import CheckedEnv, EnvContract
from rl_training.envs.global_random import seed_global_generators, untouched_randomness
from rl_training.envs.make import spaces_of
from rl_training.envs.spaces import Spaces
from rl_training.experiment.seeding import data_episode_seeds

Controller = Callable[[NDArray[Any], np.random.Generator], Any]
"""Maps an observation and a random generator to an action in environment units."""


def uniform_controller(spaces: Spaces) -> Controller:
    """Samples actions uniformly from the action space."""
    if spaces.is_discrete:
        first, last = spaces.action_start, spaces.action_start + spaces.action_dim
        if spaces.has_mask:
            return lambda obs, generator: (
                first + int(generator.choice(np.flatnonzero(obs[-spaces.action_dim :])))
            )
        return lambda _, generator: int(generator.integers(first, last))
    if not spaces.is_box:
        starts = np.asarray(spaces.action_starts)
        ends = starts + np.asarray(spaces.action_choices)
        return lambda _, generator: generator.integers(starts, ends)
    low, high = np.asarray(spaces.action_low), np.asarray(spaces.action_high)
    return lambda _, generator: generator.uniform(low, high).astype(np.float32)


def roll_out(
    env: gym.Env[Any, Any],
    controller: Controller,
    *,
    seed: int,
    first_episode: int = 0,
    episodes: int | None = None,
    steps: int | None = None,
    max_steps: int | None = None,
    on_step: Callable[[float, bool], None] | None = None,
    on_reset: Callable[[], None] | None = None,
) -> dict[str, NDArray[Any]]:
    """Return the arrays of `episodes` whole episodes, or of exactly `steps` steps.

    Episode i depends on (seed, i) only, so a data set with more episodes starts with the same
    ones. An episode that `steps` interrupts has no end flag; `build_dataset` closes it. An
    episode is truncated after `max_steps` steps. `on_step` receives each reward and whether the
    episode ended with it; `on_reset` is called at the start of each episode.
    """
    if (episodes is None) == (steps is None):
        raise ValueError("give either episodes or steps")
    observations: list[Any] = []
    actions: list[Any] = []
    rewards: list[float] = []
    following: list[Any] = []
    terminations: list[bool] = []
    truncations: list[bool] = []
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    spaces = spaces_of(env, name)
    checked, seen = CheckedEnv(env, name, EnvContract(spaces)), spaces.obs_dtype
    index, last = first_episode, first_episode + (episodes or 0)
    with untouched_randomness():
        while len(rewards) < steps if steps is not None else index < last:
            env_seed, controller_seed = data_episode_seeds(seed, index)
            generator = np.random.default_rng(controller_seed)
            seed_global_generators(env_seed)
            observation = checked.reset(env_seed, f"episode {index} of the data")
            if on_reset is not None:
                on_reset()
            done = False
            while not done and (steps is None or len(rewards) < steps):
                action = controller(observation, generator)
                successor, reward, terminated, truncated, _ = checked.step(action)
                observations.append(np.array(observation, dtype=seen))
                actions.append(action)
                rewards.append(float(reward))
                following.append(np.array(successor, dtype=seen))
                cut = bool(truncated) or checked.length == max_steps
                terminations.append(bool(terminated))
                truncations.append(cut and not terminated)
                observation, done = successor, bool(terminated) or cut
                if on_step is not None:
                    on_step(rewards[-1], done)
            index += 1
    return {
        "observations": np.stack(observations),
        "actions": np.asarray(actions),
        "rewards": np.asarray(rewards, dtype=np.float32),
        "next_observations": np.stack(following),
        "terminations": np.asarray(terminations, dtype=np.bool_),
        "truncations": np.asarray(truncations, dtype=np.bool_),
    }
