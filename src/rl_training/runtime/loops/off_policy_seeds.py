"""Learning of several seeds at once from replays of their own, in worlds on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.roles import ReplayKnobs
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.memory import Claim, require_memory
from rl_training.experiment.state import Stored
from rl_training.models.draws import uniform_places
from rl_training.replay.batch import Batch
from rl_training.replay.replay import ReplayBuffer, row_widths
from rl_training.replay.windows import DeviceWindows
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component
from rl_training.runtime.loops.device import DeviceExperience, seeds_of, training_worlds
from rl_training.runtime.loops.device_collecting import refuse_images, uniform_actions
from rl_training.runtime.loops.device_draws import DeviceDraws
from rl_training.runtime.loops.memory import replay_claim
from rl_training.runtime.loops.off_policy import (
    UpdateSchedule,
    random_steps,
    refuse_idle_learning,
)
from rl_training.runtime.loops.online import NewestMetrics, UnfinishedStep, step_budget
from rl_training.runtime.loops.seeds import SeedLoop, by_seed, common_horizon, flat, only_finite
from rl_training.runtime.profile import Part


class SeedReplays:
    """A replay per run in one memory; all are equally full."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm, runs: int) -> None:
        knobs: ReplayKnobs = algorithm.params
        device, claim = algorithm.update_count.device, replay_claim(config, algorithm)
        whole = Claim("replays of all seeds", claim.rows * runs, claim.needed * runs)
        require_memory(device, whole)
        sizes = (knobs.buffer_capacity, config.num_envs, algorithm.spaces, device)
        options: dict[str, Any] = {"gamma": knobs.discount, "n_step": knobs.return_steps}
        width = sum(row_widths(algorithm.spaces))
        self.rows = torch.empty(runs, claim.rows, width, device=device)
        self.rows[:, 0] = 0.0  # read by the trial of an update
        self.of_runs = [ReplayBuffer(*sizes, **options, rows=rows) for rows in self.rows]
        self._first = torch.arange(runs, device=device).unsqueeze(1) * self.rows.shape[1]

    def add_rows(self, rows: Tensor) -> None:
        """Store (runs * worlds, width) complete rows of one step."""
        own = rows.view(len(self.of_runs), -1, rows.shape[1])
        for replay, part in zip(self.of_runs, own, strict=True):
            replay.add_rows(part)

    def sample(self, places: Tensor) -> Batch:
        """(runs, B, ...) transitions at (runs, B) places in [0, 1) of the replays."""
        first = self.of_runs[0]
        index = (places * first.size).long() + self._first
        batch = first.unpacked(self.rows.flatten(0, 1).index_select(0, index.flatten()))
        whole = (None if x is None else x.view(*places.shape, *x.shape[1:]) for x in batch)
        return Batch(*whole)  # type: ignore[arg-type]


class WindowsOfRun:
    """The n-step windows of one run, as a part of its checkpoint."""

    def __init__(self, windows: DeviceWindows, first: int, count: int) -> None:
        self._windows, self._worlds = windows, slice(first, first + count)

    def _own(self) -> list[Tensor]:
        return [part[:, self._worlds] for part in self._windows.tensors()]

    def training_state(self) -> dict[str, Any]:
        kept = [part.contiguous().cpu() for part in self._own()]
        return {"added": self._windows.added, "tensors": kept}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored, own = Stored(state, "windows"), self._own()
        self._windows.added = stored.whole("added", most=self._windows.n_step)
        for part, value in zip(own, stored.tensors_like("tensors", own), strict=True):
            part.copy_(value)


class OffPolicySeeds:
    """The clock of the loops of several seeds; a step of all worlds is complete after the updates
    that are due."""

    def __init__(self, config: TrainConfig, agents: Sequence[Algorithm]) -> None:
        first = agents[0]
        knobs: ReplayKnobs = first.params
        self.agents, self.runs = agents, len(agents)
        refuse_idle_learning(config, knobs)
        refuse_images(config, first)
        _refuse_own_state(first)
        self.total, self.schedule = step_budget(config), UpdateSchedule(config, knobs)
        self.replays = SeedReplays(config, first, self.runs)
        self._batch_size, self._random_steps = knobs.batch_size, random_steps(config, knobs)
        device = first.update_count.device
        self.draws = DeviceDraws(seeds_of(config), device)
        # tensors, because a graph keeps the plain numbers of its capture
        self._updates = torch.zeros((), dtype=torch.int64, device=device)
        self._is_random = torch.zeros((), dtype=torch.bool, device=device)
        self._fraction = torch.zeros((), dtype=torch.float64, device=device)
        self.stack = VmapLearner(agents, None, seeds_of(config), self._batches, [self._updates])
        self.stack.template.fraction = self._fraction
        self.engine = Engine(self.stack, config.engine, self.schedule.in_total(self.total))
        self.link = self.engine.link
        self.worlds = training_worlds(config, first)
        replay = self.replays.of_runs[0]
        sizes = (first.spaces, device, replay.gamma, replay.n_step)
        self.windows = DeviceWindows(self.worlds.num_worlds, *sizes)
        written = self.windows.tensors()
        self.experience = DeviceExperience(self.worlds, self._step, self.engine, written)
        self.step, self.newest = UnfinishedStep(), [NewestMetrics() for _ in agents]
        self.loops = [SeedLoop(self, run) for run in range(self.runs)]

    @property
    def begun(self) -> int:
        return self.worlds.num_envs if self.step.begun else 0

    def advance(self, ticks: int) -> list[Metrics]:
        """Advance all clocks as `OffPolicyLoop.advance` does; metrics per loop."""
        first = self.loops[0]
        until = first.tick + ticks
        while (tick := first.tick) < until:
            if not self.step.begun:
                self._collect(tick / common_horizon(self.loops))
                self.step.begun = True
            self.step.begun = not self._learn()
            if self.link.pause.due():
                break
        return [newest.metrics for newest in self.newest]

    def _collect(self, fraction: float) -> None:
        """One step of every world, after `fraction` of the budget."""
        self._is_random.fill_(self.experience.progress.env_steps < self._random_steps)
        self._fraction.fill_(fraction)
        self.experience.steps(1)
        rows = self.windows.complete()
        if rows is not None:
            self.replays.add_rows(rows)

    def _step(self) -> None:
        worlds = self.worlds
        obs = worlds.obs.clone()
        seen = (worlds.by_run(obs), self.draws.actions, worlds.steps)
        action = only_finite(flat(self.stack.every(self._act, *seen)))
        next_obs, reward, terminated, truncated = worlds.step(action)
        self.windows.add(obs, action, reward, next_obs, terminated, truncated)

    def _act(self, agent: Algorithm, obs: Tensor, key: Tensor, step: Tensor) -> Tensor:
        with self.draws.of_step(key, step):
            action = agent.act(obs, explore=True).action
            uniform = uniform_actions(agent.spaces, uniform_places(action))
        return torch.where(self._is_random, uniform.to(action.dtype), action)

    def _batches(self) -> Batch:
        places = self.draws.places(self._batch_size, self._updates)
        self._updates.add_(1)
        return self.replays.sample(places)

    def _learn(self) -> bool:
        """Run the due updates, or some of them; returns whether all are done."""
        progress = self.experience.progress
        rounds = self.schedule.due(progress.env_steps, progress.updates)
        if not rounds:
            return True
        self._updates.fill_(progress.updates // self.schedule.at_once)
        metrics, done = self.engine.run_until_due(rounds)
        for run in self.experience.runs:
            run.progress.updates += done * self.schedule.at_once
        for newest, own in zip(self.newest, by_seed(metrics, self.runs), strict=True):
            newest.metrics = own
        return done == rounds

    def components_of(self, run: int) -> dict[str, Component]:
        size = self.worlds.num_envs
        return {
            "replay": self.replays.of_runs[run],
            "windows": WindowsOfRun(self.windows, run * size, size),
            "metrics": self.newest[run],
            "step": self.step,
        }

    def parts(self) -> list[Part]:
        return [
            Part(self.engine, "run_until_due", "update"),
            Part(self.experience, "steps", "environment"),
            Part(self.replays, "add_rows", "buffer"),
        ]


def _refuse_own_state(algorithm: Algorithm) -> None:
    """Refuse knobs whose state outside the algorithm is not there once per seed."""
    p = algorithm.params
    reason = "is kept for one seed alone; remove this key, or train one seed per run"
    if p.priority_exponents is not None:
        raise ConfigError(f"algo_kwargs.prioritized: a replay by priority {reason}")
    if p.network_kind == "simbav2":
        raise ConfigError(f"algo_kwargs.architecture: the scale of rewards of simbav2 {reason}")


def build(config: TrainConfig, agents: Sequence[Algorithm], _: object) -> OffPolicySeeds:
    return OffPolicySeeds(config, agents)
