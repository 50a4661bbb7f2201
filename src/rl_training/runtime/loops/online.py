"""What every loop that acts in an environment shares: its budget, its environments, its counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.envs.collector import Collector, Step
from rl_training.envs.make import env_spaces
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, EnvironmentFailure, EnvironmentSetupError
from rl_training.experiment.seeding import derive_seed
from rl_training.experiment.state import Stored
from rl_training.runtime.controls import Progress
from rl_training.runtime.loops import Component
from rl_training.runtime.signals import Pause, StepInterrupted


def step_budget(config: TrainConfig) -> int:
    """The environment steps that a run may take."""
    if config.total_timesteps is None:
        raise ConfigError(
            f"total_timesteps: {config.algo} learns in the environment; give a budget of steps"
        )
    if config.num_envs > config.total_timesteps:
        raise ConfigError(
            f"num_envs: {config.num_envs:,} environments take more steps at once than the "
            f"{config.total_timesteps:,} of total_timesteps; set at most {config.total_timesteps:,}"
        )
    return config.total_timesteps


class EpisodeReturns:
    """Returns of the training episodes that ended since the last report."""

    def __init__(self) -> None:
        self.pending: list[float] = []

    def add(self, value: float) -> None:
        self.pending.append(value)

    def report(self) -> dict[str, float]:
        if not self.pending:
            return {}
        mean, count = sum(self.pending) / len(self.pending), len(self.pending)
        self.pending.clear()
        return {"rollout/return_mean": mean, "rollout/episodes": float(count)}

    def training_state(self) -> dict[str, Any]:
        return {"pending": list(self.pending)}

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.pending = Stored(state, "returns").numbers("pending")


class NewestMetrics:
    """The metrics of the last update, which are logged until the next one."""

    def __init__(self) -> None:
        self.metrics: Metrics = {}

    def training_state(self) -> dict[str, Any]:
        return {"metrics": {name: value.clone() for name, value in self.metrics.items()}}

    def load_training_state(self, state: dict[str, Any]) -> None:
        metrics = Stored(state, "metrics").section("metrics")
        self.metrics = {name: metrics.tensor(name, None) for name in metrics.names()}


class BegunStep:
    """Whether environments have been stepped and the learning from it is not complete."""

    optional = True

    def __init__(self) -> None:
        self.begun = False

    def training_state(self) -> dict[str, Any]:
        return {"begun": self.begun}

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.begun = Stored(state, "step").flag("begun")


class Experience:
    """The training environments of a run, and the count of what happened in them.

    Made last of a loop's parts, so that whatever else is refused leaves none open.

    **A step that fails or is broken off takes nothing with it.** After an `EnvironmentFailure`
    or a `StepInterrupted` out of `draw_and_step` these counts, the episodes and torch's random
    streams are as they were before, so that the loop can be saved, and a resume goes on from
    there as if nothing had happened; no further step can be taken.
    """

    def __init__(self, config: TrainConfig, algorithm: Algorithm, pause: Pause) -> None:
        self.collector = training_collector(config, algorithm.spaces)
        self.collector.guard = pause
        self.num_envs = config.num_envs
        self.progress = Progress()
        self.returns = EpisodeReturns()
        self._generators = [torch.default_generator]
        device = algorithm.update_count.device
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[device.index])

    @property
    def obs(self) -> NDArray[Any]:
        """(E, ...) observations to act on."""
        return self.collector.obs

    def step(self, actions: NDArray[Any]) -> Step:
        """One step of every environment, with `actions` in inner units."""
        step = self.collector.step(actions)
        self.progress.env_steps += self.num_envs
        for episode in self.collector.drain_episodes():
            self.progress.episodes += 1
            self.returns.add(episode.episode_return)
        return step

    def draw_and_step(self, draw_actions: Callable[[], NDArray[Any]]) -> Step:
        """`step` with actions that are drawn now; where it fails, they have not been drawn."""
        streams = [generator.get_state() for generator in self._generators]
        try:
            return self.step(draw_actions())
        except (EnvironmentFailure, StepInterrupted):
            for generator, state in zip(self._generators, streams, strict=True):
                generator.set_state(state)
            raise

    def components(self) -> dict[str, Component]:
        return {"collector": self.collector, "returns": self.returns}

    def close(self) -> None:
        self.collector.close()


def training_collector(config: TrainConfig, spaces: Spaces) -> Collector:
    """A collector in the training environments, whose spaces must be those of the task."""
    key = "train_env_kwargs" if config.train_env_kwargs else "env_kwargs"
    try:
        collector = Collector(
            config.environment,
            {**config.env_kwargs, **config.train_env_kwargs},
            config.num_envs,
            derive_seed(config.seed, "collect"),
            config.vectorization,
        )
    except EnvironmentSetupError as error:
        if not config.train_env_kwargs:
            raise
        env_spaces(config.environment, config.env_kwargs)  # raises where they are not to blame
        _, _, what = str(error).partition(": ")
        raise EnvironmentSetupError(f"train_env_kwargs: {what}") from None
    try:
        where = f"the training environment '{config.env_id}'"
        spaces.refuse_other(collector.spaces, where, key)
    except EnvironmentSetupError:
        collector.close()
        raise
    return collector
