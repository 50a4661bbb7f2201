"""Shared parts of loops that act in an environment: budget, environments, counters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.envs.atari_rules import for_training
from rl_training.envs.collector import Collector, EpisodeRecord, Step
from rl_training.envs.make import env_spaces
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, EnvironmentFailure, EnvironmentSetupError
from rl_training.experiment.seeding import derive_seed
from rl_training.experiment.state import Stored
from rl_training.models.masks import random_allowed
from rl_training.runtime.controls import Progress
from rl_training.runtime.loops import Component, OptionalComponent
from rl_training.runtime.loops.device import refuse_worlds
from rl_training.runtime.signals import Pause, StepInterrupted


def step_budget(config: TrainConfig) -> int:
    """The budget of environment steps."""
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


UNKNOWN = -1
"""In a checkpoint: an unknown length or success."""


class FinishedEpisode(NamedTuple):
    """A finished training episode."""

    episode_return: float
    length: int
    """UNKNOWN if an earlier version saved the episode without it."""
    success: int
    """1 or 0; UNKNOWN if the environment does not report it."""
    score: float | None = None
    """Return before wrappers changed the rewards; None if the environment does not report it."""


class EpisodeStatistics:
    """Statistics of training episodes: those since the last report, and the latest ones."""

    SHOWN = 100
    """Number of latest episodes in the progress bar's means."""

    def __init__(self) -> None:
        self.pending: list[FinishedEpisode] = []
        self.newest: deque[FinishedEpisode] = deque(maxlen=self.SHOWN)

    def add(self, episode: EpisodeRecord) -> None:
        success = UNKNOWN if episode.success is None else int(episode.success)
        self.pending.append(
            FinishedEpisode(episode.episode_return, episode.length, success, episode.score)
        )
        self.newest.append(self.pending[-1])

    def report(self) -> dict[str, float]:
        """Means over the episodes that ended since the last report."""
        ended, self.pending = self.pending, []
        if not ended:
            return {}
        means = _means(ended)
        return {
            "rollout/return_mean": means.pop("return_mean"),
            "rollout/episodes": float(len(ended)),
            **{f"rollout/{name}": value for name, value in means.items()},
        }

    def __str__(self) -> str:
        """Summary of the latest episodes for a progress bar; empty before the first one."""
        if not self.newest:
            return ""
        means = _means(self.newest)
        text = f"return {means['return_mean']:,.1f}"
        if "score_mean" in means:
            text += f", score {means['score_mean']:,.1f}"
        if "length_mean" in means:
            text += f", length {means['length_mean']:,.0f}"
        if "success_rate" in means:
            text += f", success {means['success_rate']:.0%}"
        return text

    def training_state(self) -> dict[str, Any]:
        return {
            "pending": [episode.episode_return for episode in self.pending],
            "lengths": [episode.length for episode in self.pending],
            "successes": [episode.success for episode in self.pending],
            "scores": [episode.score for episode in self.pending],
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "returns")
        returns = stored.numbers("pending")
        count = len(returns)
        lengths = successes = [UNKNOWN] * count
        if "lengths" in stored:  # earlier versions saved only returns
            lengths = stored.wholes("lengths", count, least=UNKNOWN)
            successes = stored.wholes("successes", count, least=UNKNOWN, most=1)
        scores: list[Any] = [None] * count
        if "scores" in stored:
            scores = stored.entries("scores", count)
            known = [score for score in scores if score is not None]
            if not all(type(score) is float and math.isfinite(score) for score in known):
                raise stored.wrong("scores", "finite numbers or none")
        self.pending = list(map(FinishedEpisode, returns, lengths, successes, scores))
        self.newest = deque(self.pending, maxlen=self.SHOWN)


def _means(episodes: Collection[FinishedEpisode]) -> dict[str, float]:
    """Means of what is known: return, score, length, and the success rate."""
    columns: dict[str, list[float]] = {
        "return_mean": [episode.episode_return for episode in episodes],
        "score_mean": [e.score for e in episodes if e.score is not None],
        "length_mean": [e.length for e in episodes if e.length != UNKNOWN],
        "success_rate": [e.success for e in episodes if e.success != UNKNOWN],
    }
    return {name: sum(values) / len(values) for name, values in columns.items() if values}


class NewestMetrics:
    """The metrics of the last update, which are logged until the next one."""

    def __init__(self) -> None:
        self.metrics: Metrics = {}

    def training_state(self) -> dict[str, Any]:
        return {"metrics": {name: value.clone() for name, value in self.metrics.items()}}

    def load_training_state(self, state: dict[str, Any]) -> None:
        metrics = Stored(state, "metrics").section("metrics")
        self.metrics = {name: metrics.tensor(name, torch.float32) for name in metrics.names()}


class UnfinishedStep(OptionalComponent):
    """Whether a step of the environments and the updates beside it are not complete."""

    def __init__(self, action_like: Tensor | None = None) -> None:
        """`action_like` is like the actions of a step, where updates overlap with it."""
        self.begun = False
        self.actions: NDArray[Any] | None = None
        """Of a step that was begun and is not counted yet."""
        self._like = action_like

    def training_state(self) -> dict[str, Any]:
        if self.actions is None:
            return {"begun": self.begun}
        return {"begun": self.begun, "actions": torch.from_numpy(self.actions.copy())}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "step")
        self.begun, self.actions = stored.flag("begun"), None
        if "actions" in stored and self._like is not None:
            like = self._like
            self.actions = stored.tensor("actions", like.dtype, *like.shape).numpy().copy()


class Experience:
    """The training environments of a run and their counters.

    Created last of a loop's parts, so that an earlier error leaves no environment open.

    ***A failed or interrupted step changes nothing.** After an `EnvironmentFailure` or a
    `StepInterrupted` from `draw_and_step` the counters, the episodes and torch's random state are
    as before the step, so that the loop can be saved, and a resume continues from there as if
    nothing had happened; no further step can be taken.
    """

    def __init__(self, config: TrainConfig, algorithm: Algorithm, pause: Pause) -> None:
        self.collector = training_collector(config, algorithm.spaces)
        self.collector.guard = pause
        self.num_envs = config.num_envs
        self.progress = Progress()
        self.episodes = EpisodeStatistics()
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
        self.collector.begin(actions)
        return self.finish()

    def finish(self) -> Step:
        """The step that was begun in the collector, counted."""
        step = self.collector.finish()
        self.progress.env_steps += self.num_envs
        for episode in self.collector.drain_episodes():
            self.progress.episodes += 1
            self.episodes.add(episode)
        return step

    def draw_and_step(self, draw_actions: Callable[[], NDArray[Any]]) -> Step:
        """`step` with newly sampled actions; if it fails, the random state is restored."""
        with self._restored_if_it_fails():
            return self.step(draw_actions())

    def draw_and_begin(self, draw_actions: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Begin a step with newly sampled actions, which are returned; if that fails, the random
        state is restored."""
        with self._restored_if_it_fails():
            actions = draw_actions()
            self.collector.begin(actions)
            return actions

    @contextmanager
    def _restored_if_it_fails(self) -> Iterator[None]:
        streams = [generator.get_state() for generator in self._generators]
        try:
            yield
        except (EnvironmentFailure, StepInterrupted):
            for generator, state in zip(self._generators, streams, strict=True):
                generator.set_state(state)
            raise

    def components(self) -> dict[str, Component]:
        return {"collector": self.collector, "returns": self.episodes}

    def close(self) -> None:
        self.collector.close()


def random_actions(spaces: Spaces, experience: Experience) -> NDArray[Any]:
    """(E, ...) uniform actions among those that the observations allow."""
    n = experience.num_envs
    if spaces.has_mask:
        obs = torch.from_numpy(experience.obs)
        return random_allowed(obs, spaces.action_dim).numpy()
    if spaces.is_discrete:
        return torch.randint(spaces.action_dim, (n,)).numpy()
    return (torch.rand(n, spaces.action_dim) * 2.0 - 1.0).numpy()


def training_collector(config: TrainConfig, spaces: Spaces) -> Collector:
    """A collector in the training environments, whose spaces must equal the task's."""
    refuse_worlds(config)
    own = config.train_env_kwargs
    beside = for_training(config.environment, config.env_kwargs, own)
    try:
        collector = Collector(
            config.environment,
            {**config.task_kwargs, **beside},
            config.num_envs,
            derive_seed(config.seed, "collect"),
            config.vectorization,
            config.env_workers,
        )
    except ConfigError as error:
        _, _, wrong = str(error).partition("env_kwargs.")
        if wrong.partition(":")[0] not in own:
            raise
        raise ConfigError(f"train_env_kwargs.{wrong}") from None
    except EnvironmentSetupError as error:
        if not own:
            raise
        # raises if train_env_kwargs are not the cause
        env_spaces(config.environment, config.task_kwargs)
        _, _, what = str(error).partition(": ")
        raise EnvironmentSetupError(f"train_env_kwargs: {what}") from None
    try:
        where = f"the training environment '{config.env_id}'"
        if own:
            both = "give what changes observations or actions in env_kwargs, for evaluations, too"
            spaces.refuse_other(collector.spaces, where, "train_env_kwargs", both)
        spaces.refuse_other(collector.spaces, where, "env_kwargs")
    except EnvironmentSetupError:
        collector.close()
        raise
    return collector
