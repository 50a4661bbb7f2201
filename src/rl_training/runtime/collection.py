"""Collects data by running a policy, optionally with noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.data.validation import RawTransitions, build_dataset
from rl_training.envs.contract import close_env
from rl_training.envs.episodes import roll_out, uniform_controller
from rl_training.envs.make import make_env, spaces_of
from rl_training.experiment.config import whole_number
from rl_training.experiment.console import ProgressConsole
from rl_training.experiment.errors import ConfigError
from rl_training.runtime.policy import refuse_sampling

Predict = Callable[[NDArray[Any], bool, Any], tuple[NDArray[Any], Any]]
"""Maps an observation, whether to take the mode, and the policy's state (None at a reset) to an
action in environment units and the next state."""

StepWatcher = Callable[[float, bool], None]
"""Called after every step with the reward and whether the episode ended with it."""


@dataclass(frozen=True)
class Behaviour:
    """Randomness added to a policy during data collection."""

    deterministic: bool = True
    """Whether actions are the policy's mode; otherwise they are sampled."""
    noise: float = 0.0
    """Standard deviation of Gaussian noise on Box actions in [-1, 1], which are then clipped."""
    epsilon: float = 0.0
    """Probability of a uniformly random action instead."""

    def check(self, algorithm: Algorithm) -> None:
        """Raise an error for values that are invalid, or invalid for this policy."""
        spaces = algorithm.spaces
        for name, value, high in (("noise", self.noise, math.inf), ("epsilon", self.epsilon, 1.0)):
            fits = isinstance(value, (int, float)) and math.isfinite(value) and 0 <= value <= high
            if not fits:
                limit = "0 or more" if math.isinf(high) else "between 0 and 1"
                raise ConfigError(f"{name}: expected a number, {limit}, got {value!r}")
        if self.noise and not spaces.is_box:
            raise ConfigError(
                f"noise: the task has {spaces.describe()}, to which no noise can be added; use "
                "epsilon for a share of random actions"
            )
        if not self.deterministic:
            refuse_sampling(algorithm)


class BehavingPolicy:
    """A policy with the randomness of a `Behaviour`, sampled from the episode's generator."""

    def __init__(self, predict: Predict, behaviour: Behaviour, algorithm: Algorithm) -> None:
        self.predict, self.behaviour, self.algorithm = predict, behaviour, algorithm
        self.spaces = spaces = algorithm.spaces
        self._uniform = uniform_controller(spaces)
        self._low = np.asarray(spaces.action_low, np.float32)
        self._high = np.asarray(spaces.action_high, np.float32)
        # from [-1, 1] to environment units
        self._scale = behaviour.noise * (self._high - self._low) / 2
        self.state: Any = None

    def begin_episode(self) -> None:
        self.state = None

    def __call__(self, observation: NDArray[Any], generator: np.random.Generator) -> Any:
        b, recurrent = self.behaviour, self.algorithm.recurrent
        chance = bool(b.epsilon) and generator.random() < b.epsilon
        if chance and not recurrent:
            return self._uniform(observation, generator)
        if not b.deterministic:  # the policy samples from torch's generator
            torch.manual_seed(int(generator.integers(2**63)))
        action: Any
        action, self.state = self.predict(observation, b.deterministic, self.state)
        action = self.spaces.inside(action)
        if chance:
            action = self._uniform(observation, generator)
        elif self.spaces.is_discrete:
            action = int(action)
        elif self.spaces.is_box:
            if b.noise:
                action = action + self._scale * generator.standard_normal(self._low.shape)
            action = np.clip(action, self._low, self._high).astype(np.float32)
        if recurrent:  # its state depends on the executed action
            taken = torch.as_tensor(self.spaces.from_env(np.asarray(action)))[None]
            self.state = self.algorithm.with_action(self.state, taken)
        return action


def collect(
    predict: Predict,
    behaviour: Behaviour,
    algorithm: Algorithm,
    env_id: str,
    env_kwargs: Mapping[str, Any],
    *,
    name: str,
    episodes: int | None,
    steps: int | None,
    max_steps: int,
    seed: int,
    first_episode: int = 0,
    on_step: StepWatcher | None = None,
) -> TransitionDataset:
    """Collect whole `episodes`, or exactly `steps` steps with the last episode truncated.

    An episode is truncated after `max_steps` steps. Episode i, counted from `first_episode`,
    depends on (seed, i) only. The global generators keep their state.
    """
    check_amount(episodes, steps, seed)
    episodes, steps, seed = (whole_number(value) for value in (episodes, steps, seed))
    spaces = algorithm.spaces
    controller = BehavingPolicy(predict, behaviour, algorithm)
    env = make_env(env_id, env_kwargs)
    try:
        spaces.refuse_other(spaces_of(env, env_id), f"environment '{env_id}'")
        arrays = roll_out(
            env,
            controller,
            seed=seed,
            first_episode=first_episode,
            episodes=episodes,
            steps=steps,
            max_steps=max_steps,
            on_step=on_step,
            on_reset=controller.begin_episode,
        )
    finally:
        close_env(env)
    raw = RawTransitions(
        label=f"data of {name} in '{env_id}'",
        name=f"{name}:{env_id}",
        arrays=arrays,
        spaces=spaces,
        env_id=env_id,
    )
    return build_dataset(raw, spaces)


def check_amount(episodes: int | None, steps: int | None, seed: int) -> None:
    """Raise an error for invalid amounts of data and invalid seeds."""
    if (episodes is None) == (steps is None):
        raise ConfigError("episodes, steps: give exactly one of the two, how much to collect")
    for name, value, least in (("episodes", episodes, 1), ("steps", steps, 1), ("seed", seed, 0)):
        whole = whole_number(value)
        if value is not None and not (isinstance(whole, int) and whole >= least):
            raise ConfigError(f"{name}: expected a whole number, at least {least}, got {value!r}")


class CollectionProgress(ProgressConsole):
    """Counts and shows the progress of a collection; called after every step."""

    STEPS_BETWEEN_LOOKS = 100

    def __init__(self, episodes: int | None, steps: int | None, *, shown: bool = True) -> None:
        super().__init__()
        self.steps = 0
        self.returns: list[float] = []
        """Of whole episodes."""
        self._return_sum = self._running_return = 0.0
        self._by_episode, self._total = episodes is not None, episodes or steps or 0
        self._shown = shown

    def __call__(self, reward: float, ended: bool) -> None:
        if self._shown and self.steps == 0:
            unit = "episodes" if self._by_episode else "steps"
            self.start("collecting", self._total, 0, unit)
        self.steps += 1
        self._running_return += reward
        if ended:
            self.returns.append(self._running_return)
            self._return_sum += self._running_return
            self._running_return = 0.0
        if self._shown and (ended or self.steps % self.STEPS_BETWEEN_LOOKS == 0):
            made = [f"{self.steps:,} steps"] if self._by_episode else []
            if self.returns:
                made.append(f"mean return {self._return_sum / len(self.returns):,.1f}")
            done = len(self.returns) if self._by_episode else self.steps
            self.advance(done, ", ".join(made))

    def summary(self) -> str:
        """Episodes, steps and returns in one line; an interrupted episode has no return."""
        whole = len(self.returns)
        episodes = f"{whole:,} whole episode{'' if whole == 1 else 's'}"
        text = f"{episodes}, {self.steps:,} steps"
        if whole:
            text += f", return {np.mean(self.returns):,.1f} ± {np.std(self.returns):,.1f}"
        return text
