"""Shared parts of loops whose environments live on the training device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.envs.device.register import DeviceTask, device_task
from rl_training.envs.device.worlds import EpisodeTotals, Worlds, WorldsOfRun, make_worlds
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, EnvironmentFailure, EnvironmentSetupError
from rl_training.experiment.memory import available_memory
from rl_training.experiment.seeding import derive_seed
from rl_training.experiment.state import Stored
from rl_training.runtime.controls import Progress
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component
from rl_training.runtime.randomness import TorchRandom
from rl_training.runtime.signals import StepInterrupted


def worlds_of(config: TrainConfig) -> DeviceTask | None:
    """The task whose worlds the run is trained in; None for ordinary environments."""
    return device_task(config.env_id)


def training_worlds(config: TrainConfig, algorithm: Algorithm) -> Worlds:
    """The training environments of a run on its device, or of one run per seed of the config;
    what cannot be is refused."""
    task = worlds_of(config)
    assert task is not None
    device = algorithm.update_count.device
    if config.vectorization != "sync" or config.env_workers or config.overlap_updates:
        keys = {"env_workers": config.env_workers, "overlap_updates": config.overlap_updates}
        key = next((name for name, value in keys.items() if value), "vectorization")
        raise ConfigError(
            f"{key}: the worlds of '{task.id}' are simulated together on {device.type}; "
            "remove this key"
        )
    if config.wrappers:
        raise ConfigError(
            f"wrappers: the worlds of '{task.id}' are simulated together on {device.type}, where "
            "there is no environment to wrap; remove this key"
        )
    if algorithm.recurrent:
        raise ConfigError(
            f"algo_kwargs.memory: policies with memory do not learn in the worlds of '{task.id}' "
            f"yet; remove this key, or use the environment {task.evaluated_in or 'of Gymnasium'}"
        )
    if device.type == "cpu" and config.device == "auto" and not task.runs_on_cpu:
        raise ConfigError(
            f"env_id: '{task.id}' is simulated on a GPU, and this machine has none; use "
            f"env_id={task.evaluated_in}, or device=cpu to simulate slowly on the CPU"
        )
    env_kwargs = {**config.env_kwargs, **config.train_env_kwargs}
    seeds = [derive_seed(seed, "collect") for seed in seeds_of(config)]
    worlds = make_worlds(task, env_kwargs, config.num_envs, device, *seeds)
    try:
        key = "train_env_kwargs" if config.train_env_kwargs else "env_kwargs"
        where = f"the training environment '{config.env_id}'"
        algorithm.spaces.refuse_other(worlds.spaces, where, key)
    except EnvironmentSetupError:
        worlds.close()
        raise
    return worlds


def seeds_of(config: TrainConfig) -> tuple[int, ...]:
    """The seeds of all runs that are trained at once."""
    return (config.seed,) if config.seeds is None else config.seeds


def refuse_worlds(config: TrainConfig) -> None:
    """Refuse worlds on the device for a loop that steps environments on the host."""
    task = worlds_of(config)
    if task is not None:
        instead = "" if task.evaluated_in is None else f"; use env_id={task.evaluated_in}"
        raise ConfigError(
            f"env_id: {config.algo} does not learn in worlds on the device, such as those of "
            f"'{task.id}', yet{instead}"
        )


def require_worlds_memory(
    worlds: int, bytes_per_world: int, what: str, device: torch.device
) -> None:
    """Raise an error if `what`, so many bytes of each world, does not fit on the device."""
    free, needed = available_memory(device), worlds * bytes_per_world
    if free is not None and needed > free:
        fits = int(0.8 * free / bytes_per_world)
        raise ConfigError(
            f"num_envs: {what} of {worlds:,} worlds would take {needed / 1e9:,.1f} GB, but "
            f"{free / 1e9:,.1f} GB are free on {device}; {fits:,} would fit"
        )


class WorldStatistics:
    """Statistics of the training episodes of all worlds."""

    def __init__(self) -> None:
        self.now = self._reported = EpisodeTotals(0, 0.0, 0.0)

    def report(self) -> dict[str, float]:
        """Means over the episodes that ended since the last report."""
        ended = self._since_report()
        self._reported = self.now
        if not ended.episodes:
            return {}
        return {
            "rollout/return_mean": ended.return_sum / ended.episodes,
            "rollout/episodes": float(ended.episodes),
            "rollout/length_mean": ended.length_sum / ended.episodes,
        }

    def _since_report(self) -> EpisodeTotals:
        count, *sums = (a - b for a, b in zip(self.now, self._reported, strict=True))
        return EpisodeTotals(int(count), *sums)

    def __str__(self) -> str:
        """Summary for a progress bar; empty before the first episode."""
        since = self._since_report()
        shown = since if since.episodes else self.now
        if not shown.episodes:
            return ""
        length = shown.length_sum / shown.episodes
        return f"return {shown.return_sum / shown.episodes:,.1f}, length {length:,.0f}"

    def training_state(self) -> dict[str, Any]:
        return {"now": [float(x) for x in self.now], "reported": [float(x) for x in self._reported]}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "returns")
        sums = []
        for key in ("now", "reported"):
            count, *rest = stored.numbers(key, len(EpisodeTotals._fields))
            sums.append(EpisodeTotals(int(count), *rest))
        self.now, self._reported = sums


class StepLearner:
    """One step of all worlds as work of an engine: eager, or captured in a CUDA graph."""

    slow_to_compile, fuses, cycle = True, False, 1

    def __init__(
        self, step: Callable[[], None], touched: Callable[[], list[Tensor]], device: torch.device
    ) -> None:
        self._step, self.tensors, self.device = step, touched, device

    def phase(self) -> int:
        return 0

    def attached(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self) -> int | None:
        return None

    def update(self) -> Metrics:
        with torch.no_grad():
            self._step()
        return {}

    def compile(self, compiled: Callable[[Callable[..., Metrics]], Callable[..., Metrics]]) -> None:
        """Nothing: simulators may launch kernels of their own."""


class RunExperience:
    """The counters of one run and its part of the worlds."""

    def __init__(self, worlds: WorldsOfRun) -> None:
        self.collector = worlds
        self.progress, self.episodes = Progress(), WorldStatistics()

    def components(self) -> dict[str, Component]:
        return {"collector": self.collector, "returns": self.episodes}


class DeviceExperience:
    """The worlds of one run or several and their counters; `progress` and `episodes` are those of
    the first.

    `step` acts, steps the worlds once and stores the result, and waits for nothing. Steps run as
    the updates of `engine` do. `written` are the tensors that a step writes to beside the worlds',
    and `stored` those of them that a failed step need not restore.

    A failed or interrupted step changes nothing, as in `Experience`.
    """

    def __init__(
        self,
        worlds: Worlds,
        step: Callable[[], None],
        engine: Engine,
        written: Sequence[Tensor] = (),
        stored: Sequence[Tensor] = (),
    ) -> None:
        self.collector, self.num_envs = worlds, worlds.num_envs
        self.runs = [RunExperience(worlds.of(i)) for i in range(worlds.runs)]
        self.progress, self.episodes = self.runs[0].progress, self.runs[0].episodes
        self._written = written
        learner = StepLearner(step, lambda: [*self._undone(), *stored], worlds.device)
        mode = "graph" if engine.mode in ("graph", "compiled_graph") else "eager"
        self.engine = Engine(learner, mode, 0, engine.link)

    def _undone(self) -> list[Tensor]:
        return [*self.collector.tensors().values(), *self._written]

    def steps(self, most: int) -> int:
        """Take up to `most` steps of all worlds, fewer once the pause is due; returns how many."""
        tensors, random = self._undone(), TorchRandom()
        before, streams = [x.clone() for x in tensors], random.training_state()
        try:
            _, done = self.engine.run_until_due(most)
            self.collector.check()
        except (EnvironmentFailure, StepInterrupted):
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
            random.load_training_state(streams)
            raise
        self.engine.notes.extend(self.collector.new_notes())
        for run, ended in zip(self.runs, self.collector.totals(), strict=True):
            run.progress.env_steps += done * self.num_envs
            run.episodes.now, run.progress.episodes = ended, ended.episodes
        return done

    def components(self) -> dict[str, Component]:
        return self.runs[0].components()

    def close(self) -> None:
        self.collector.close()
