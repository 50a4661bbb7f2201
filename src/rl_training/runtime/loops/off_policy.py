"""Learning from a memory of one's own experience: act, store, make the updates that are due.

One loop for every algorithm that learns so. What differs is in its parts: the actor, the memory,
the batch that its learner draws, the schedule, a pretraining, work that comes before updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.roles import ReplayKnobs
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.runtime.acting import RepeatedActing
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.controls import crossed, last_crossing, owed_updates
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Extra, Report
from rl_training.runtime.loops.device import DeviceExperience, worlds_of
from rl_training.runtime.loops.device_collecting import DeviceCollecting, DeviceMemory
from rl_training.runtime.loops.memory import Memory, TransitionMemory
from rl_training.runtime.loops.online import (
    Experience,
    NewestMetrics,
    UnfinishedStep,
    random_actions,
    step_budget,
)
from rl_training.runtime.loops.streams import StreamActor, TransitionStreams
from rl_training.runtime.profile import Part
from rl_training.runtime.signals import RunLink


class Actor(Protocol):
    """Chooses actions in the training environments."""

    def actions(self) -> NDArray[Any]:
        """(E, ...) inner actions for the current observations."""


class RandomThenPolicy:
    """Uniform actions for the first environment steps, then those of the policy."""

    def __init__(self, algorithm: Algorithm, experience: Experience, random_steps: int) -> None:
        self.algorithm, self.experience, self.random_steps = algorithm, experience, random_steps

    def actions(self) -> NDArray[Any]:
        if self.experience.progress.env_steps < self.random_steps:
            return random_actions(self.algorithm.spaces, self.experience)
        obs = torch.from_numpy(self.experience.obs).to(self.algorithm.update_count.device)
        return self.algorithm.act(obs, explore=True).action.cpu().numpy()


class Collecting(Protocol):
    """Takes steps in the training environments and stores them."""

    @property
    def experience(self) -> Experience | DeviceExperience: ...

    def collect(self, fraction: float) -> None:
        """One step of every environment, after `fraction` of the budget."""

    def parts(self) -> list[Part]: ...


class HostCollecting:
    """Steps the environments of a collector with an actor's actions."""

    def __init__(
        self, algorithm: Algorithm, memory: Memory, actor: Actor, experience: Experience
    ) -> None:
        self.algorithm, self.memory = algorithm, memory
        self.actor, self.experience = actor, experience

    def collect(self, fraction: float) -> None:
        self._prepare(fraction)
        self.memory.store(self.experience.draw_and_step(self.actor.actions), fraction)

    def begin(self, fraction: float, drawn: NDArray[Any] | None) -> NDArray[Any]:
        """Begin a step, unless it is under way, and return its actions: `drawn`, if a run that is
        resumed had begun it already."""
        collector = self.experience.collector
        if drawn is not None and collector.begun:
            return drawn
        # an environment that could not be restored is in another state
        again = drawn is not None and not collector.restarted.any()
        self._prepare(fraction)
        if drawn is None or not again:
            return self.experience.draw_and_begin(self.actor.actions)
        collector.begin(drawn)
        return drawn

    def finish(self, fraction: float) -> None:
        """Wait for the step that `begin` began, and store it."""
        self.memory.store(self.experience.finish(), fraction)

    def _prepare(self, fraction: float) -> None:
        restarted = self.experience.collector.restarted
        if restarted.any():
            self.memory.cut(restarted)
            restarted[:] = False
        vars(self.algorithm)["fraction"] = fraction  # a module takes long to set an attribute

    def parts(self) -> list[Part]:
        environment = Part(self.experience.collector, "finish", "environment")
        return [environment, Part(self.actor, "actions", "policy")]


class UpdateSchedule:
    """When updates are due: so many per environment step since `learning_starts`, in rounds."""

    def __init__(self, config: TrainConfig, knobs: ReplayKnobs) -> None:
        self._knobs, self._num_envs = knobs, config.num_envs
        self.at_once = int(knobs.updates_at_once)
        """Updates that one step of the algorithm makes."""

    def due(self, env_steps: int, updates_done: int) -> int:
        """Steps of the algorithm to make now, after `env_steps` and `updates_done`."""
        if not crossed(env_steps - self._num_envs, env_steps, self._knobs.train_frequency):
            return 0
        return self._owed(env_steps, updates_done)

    def in_total(self, env_steps: int) -> int:
        """Updates of a run of that many steps."""
        return self._owed(env_steps, 0) * self.at_once

    def _owed(self, env_steps: int, updates_done: int) -> int:
        p = self._knobs
        ratio, starts = p.gradient_updates_per_step, p.learning_starts
        return owed_updates(ratio, starts, env_steps, updates_done) // self.at_once


@dataclass(frozen=True)
class Pretraining:
    """Updates before the first environment step."""

    engine: Engine
    total: int


@dataclass(frozen=True)
class OffPolicyParts:
    """The parts of an off-policy loop."""

    algorithm: Algorithm
    """The policy that acts."""
    schedule: UpdateSchedule
    memory: Memory
    engine: Engine
    """Its learner draws from the memory."""
    collecting: Collecting
    pretraining: Pretraining | None = None
    before_updates: Callable[[int], None] | None = None
    """Work of its own at a count of environment steps; asked again where it was broken off."""
    extras: Sequence[Extra] = ()
    data_notes: tuple[str, ...] = ()
    overlapping: HostCollecting | None = None
    """`collecting`, if updates overlap with the next step."""


class OffPolicyLoop:
    """The clock counts environment steps; every vector step takes `num_envs` of them and is
    complete after the updates that are due. Where updates overlap with steps, those that are due
    after a step are made while the next one is, whose actions were chosen before them: the order
    of all work is fixed, and results do not depend on its timing. A pretraining update is also one
    tick: `progress.updates` counts both kinds, and because pretraining comes first, one counter
    suffices."""

    held_out = None

    def __init__(self, total: int, parts: OffPolicyParts) -> None:
        self.parts_of_it, self.algorithm, self.engine = parts, parts.algorithm, parts.engine
        self.memory, self.schedule = parts.memory, parts.schedule
        self.collecting = parts.collecting
        self.experience, self.extras = parts.collecting.experience, parts.extras
        self.progress, self.link = self.experience.progress, self.engine.link
        self.pretraining, self.data_notes = parts.pretraining, parts.data_notes
        self.pretraining_total = 0 if self.pretraining is None else self.pretraining.total
        self.total = self.horizon = total + self.pretraining_total
        self.unit = "pretraining updates and env steps" if self.pretraining_total else "env steps"
        self.newest = NewestMetrics()
        self.overlapping = parts.overlapping
        self.step = UnfinishedStep()
        if self.overlapping is not None:
            collector = self.overlapping.experience.collector
            self.step = UnfinishedStep(torch.from_numpy(collector.no_actions()))

    @property
    def pretrained(self) -> int:
        """Updates of the pretraining so far."""
        total = self.pretraining_total
        return min(self.progress.updates, total) if total else 0

    @property
    def tick(self) -> int:
        position = self.position
        if self.step.begun and self.overlapping is None:
            return position - self.experience.num_envs
        return position

    @property
    def position(self) -> int:
        steps = self.progress.env_steps
        return steps + self.pretrained if self.pretraining_total else steps

    def advance(self, ticks: int) -> Metrics:
        until = self.tick + ticks
        if self.pretrained < self.pretraining_total:
            self._pretrain(min(ticks, self.pretraining_total - self.pretrained))
            if self.link.pause.due():
                return self.newest.metrics
        while (tick := self.tick) < until:
            if self.overlapping is not None:
                self._step_beside_updates(self.overlapping, tick / self.horizon)
            else:
                if not self.step.begun:
                    self.collecting.collect(tick / self.horizon)
                    self.step.begun = True
                self.step.begun = not self._learn()
            if self.link.pause.due():
                break
        return self.newest.metrics

    def _step_beside_updates(self, collecting: HostCollecting, fraction: float) -> None:
        """Begin a step, make the updates that were due before it, and finish it."""
        self.step.actions = collecting.begin(fraction, self.step.actions)
        self.step.begun = True
        if self._learn():
            collecting.finish(fraction)
            self.step.begun, self.step.actions = False, None

    def _pretrain(self, updates: int) -> None:
        assert self.pretraining is not None
        self.newest.metrics, done = self.pretraining.engine.run_until_due(updates)
        self.progress.updates += done

    def _learn(self) -> bool:
        """Run the due updates, or some of them; returns whether all are done."""
        now = self.progress.env_steps
        if self.parts_of_it.before_updates is not None:
            self.parts_of_it.before_updates(now)
        rounds = self.schedule.due(now, self.progress.updates - self.pretrained)
        if not rounds:
            return True
        self.newest.metrics, done = self.engine.run_until_due(rounds)
        self.progress.updates += done * self.schedule.at_once
        return done == rounds

    def episodes(self) -> str:
        return str(self.experience.episodes)

    def report(self) -> Report:
        report: dict[str, Any] = dict(self.experience.episodes.report())
        if self.pretraining is not None:
            report["updates/pretraining"] = float(self.pretrained)
            report["updates/online"] = float(self.progress.updates - self.pretrained)
        for extra in self.extras:
            report |= extra.report(self.tick)
        return report

    def components(self) -> dict[str, Component]:
        components: dict[str, Component] = {}
        for extra in self.extras:
            components |= extra.components()
        components |= self.memory.components()
        components |= {"metrics": self.newest, "step": self.step}
        return components | self.experience.components()

    def parts(self) -> list[Part]:
        parts = [Part(self.engine, "run_until_due", "update")]
        if self.pretraining is not None:
            parts.append(Part(self.pretraining.engine, "run_until_due", "pretraining"))
        parts += [*self.collecting.parts(), *self.memory.parts()]
        return [*parts, *(part for extra in self.extras for part in extra.parts())]

    def close(self) -> None:
        self.algorithm.fraction = 0.0  # of this run alone
        self.experience.close()


def random_steps(config: TrainConfig, knobs: ReplayKnobs) -> int:
    """Environment steps with random actions; none for a policy that is already trained."""
    return 0 if config.init_from is not None else knobs.learning_starts


def build(config: TrainConfig, algorithm: Algorithm, _: object) -> OffPolicyLoop:
    """SAC, TD3, DQN and their like."""
    knobs: ReplayKnobs = algorithm.params
    refuse_idle_learning(config, knobs)
    total, schedule, link = step_budget(config), UpdateSchedule(config, knobs), RunLink()
    memory: TransitionMemory | TransitionStreams
    if worlds_of(config) is not None:
        memory = DeviceMemory(config, algorithm)
    else:
        memory = (TransitionStreams if algorithm.recurrent else TransitionMemory)(config, algorithm)
    learner = SingleLearner(
        algorithm, lambda _: memory.draw(knobs.batch_size), memory.learned, memory.touched
    )
    engine = Engine(learner, config.engine, schedule.in_total(total), link)
    starts = random_steps(config, knobs)
    collecting: Collecting
    if isinstance(memory, TransitionStreams):
        if config.overlap_updates:
            raise ConfigError(
                "overlap_updates: policies with memory (algo_kwargs.memory) update after a step, "
                "not beside it; set it to false"
            )
        experience = Experience(config, algorithm, link.pause)
        acting = RepeatedActing(algorithm, explore=True, note=link.notes.append)
        actor = StreamActor(acting, experience, memory.stream, starts)
        collecting = HostCollecting(algorithm, memory, actor, experience)
    else:
        collecting = collecting_for(config, algorithm, memory, engine, starts)
    overlapping = None
    if config.overlap_updates and isinstance(collecting, HostCollecting):
        overlapping = collecting
    parts = OffPolicyParts(algorithm, schedule, memory, engine, collecting, overlapping=overlapping)
    return OffPolicyLoop(total, parts)


def collecting_for(
    config: TrainConfig,
    algorithm: Algorithm,
    memory: TransitionMemory,
    engine: Engine,
    random_steps: int,
) -> Collecting:
    """Steps with random actions at first and then with the policy's, on the device where the
    memory is there."""
    if isinstance(memory, DeviceMemory):
        return DeviceCollecting(config, algorithm, memory, engine, random_steps)
    experience = Experience(config, algorithm, engine.pause)
    actor = RandomThenPolicy(algorithm, experience, random_steps)
    return HostCollecting(algorithm, memory, actor, experience)


def refuse_idle_learning(config: TrainConfig, params: ReplayKnobs) -> None:
    """Raise an error for knobs with which a run could not learn from its replay."""
    p, total, num_envs = params, step_budget(config), config.num_envs
    n_step = p.return_steps
    starts, key = p.learning_starts, "algo_kwargs.learning_starts"
    if starts >= total:
        raise ConfigError(
            f"{key}: {starts:,} random steps leave nothing of "
            f"the {total:,} in total_timesteps to learn in; lower it"
        )
    if starts < n_step * num_envs:
        raise ConfigError(
            f"{key}: {starts:,} is too small for {num_envs} environments and {n_step}-step "
            "returns, nothing could be sampled at the first update; set at least "
            f"{n_step * num_envs:,}"
        )
    if starts > p.buffer_capacity:
        raise ConfigError(
            f"{key}: of {starts:,} random steps only {p.buffer_capacity:,} fit into "
            "algo_kwargs.buffer_capacity, the rest would be overwritten before the first update; "
            "lower it, or raise buffer_capacity"
        )
    if p.batch_size > p.buffer_capacity:
        raise ConfigError(
            f"algo_kwargs.batch_size: {p.batch_size:,} is more than the {p.buffer_capacity:,} "
            f"transitions of algo_kwargs.buffer_capacity; set at most {p.buffer_capacity:,}, or "
            "raise buffer_capacity"
        )
    last = last_crossing(total, num_envs, p.train_frequency)
    if last <= starts:
        raise ConfigError(
            f"algo_kwargs.train_frequency: with updates every {p.train_frequency:,} steps the last "
            f"round within the {total:,} of total_timesteps comes before the {starts:,} random "
            f"ones of learning_starts are over; set at most {total - starts:,}"
        )
    if owed_updates(p.gradient_updates_per_step, starts, last, 0) < p.updates_at_once:
        raise ConfigError(
            f"algo_kwargs.gradient_updates_per_step: {p.gradient_updates_per_step:g} makes no "
            f"whole update in the {last - starts:,} steps after learning_starts; set at least "
            f"1/{last - starts}"
        )
