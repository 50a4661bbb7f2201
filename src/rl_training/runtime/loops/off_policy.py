"""Learning from a replay of one's own experience: act, store, owed updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.roles import ReplayKnobs
from rl_training.envs.collector import Step
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.memory import Claim, require_memory
from rl_training.models.masks import random_allowed
from rl_training.replay.priorities import Priorities
from rl_training.replay.replay import ReplayBuffer
from rl_training.runtime.agents import OneAgent
from rl_training.runtime.controls import crossed, last_crossing, owed_updates
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Report
from rl_training.runtime.loops.online import BegunStep, Experience, NewestMetrics, step_budget
from rl_training.runtime.profile import Part


class OffPolicyLoop:
    """The clock counts environment steps; every vector step takes `num_envs` of them, and is
    complete once the updates that are due after it are made."""

    unit = "env steps"
    data_notes: tuple[str, ...] = ()

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        self.algorithm, self.total = algorithm, step_budget(config)
        self.params: Any = algorithm.params
        self.horizon = self.total
        p: ReplayKnobs = self.params
        refuse_idle_learning(config, p)
        # a policy that has learned before acts from the first step on
        self.random_steps: int = 0 if config.init_from is not None else p.learning_starts
        self.replay = self._make_replay(config)
        self.newest = NewestMetrics()
        self.engine = Engine(self._learner(), config.engine, self._all_updates())
        self.step = BegunStep()
        self.experience = Experience(config, algorithm, self.engine.pause)
        self.progress = self.experience.progress

    def _make_replay(self, config: TrainConfig) -> Any:
        """Where experience is stored; refused where it would not fit."""
        return _replay(config, self.algorithm)

    def _learner(self) -> OneAgent:
        """Who learns from what `_draw` returns."""
        priorities = self.replay.priorities
        touched = () if priorities is None else (priorities.tree, priorities.max_priority)
        return OneAgent(self.algorithm, lambda _: self._draw(), self._learned, touched)

    def _rounds(self, env_steps: int, updates_done: int = 0) -> int:
        """Steps of the algorithm due after `env_steps`, less those that `updates_done` made."""
        p = self.params
        ratio = p.gradient_updates_per_step
        owed = owed_updates(ratio, p.learning_starts, env_steps, updates_done)
        return owed // int(p.updates_at_once)

    def _all_updates(self) -> int:
        """Updates of the whole run."""
        return self._rounds(self.total) * int(self.params.updates_at_once)

    @property
    def tick(self) -> int:
        return self.position - (self.experience.num_envs if self.step.begun else 0)

    @property
    def position(self) -> int:
        return self.progress.env_steps

    def advance(self, ticks: int) -> Metrics:
        until = self.tick + ticks
        while self.tick < until:
            if not self.step.begun:
                self._collect()
                self.step.begun = True
            self.step.begun = not self._learn()
            if self.engine.pause.due():
                break
        return self.newest.metrics

    def _collect(self) -> None:
        restarted = self.experience.collector.restarted
        if restarted.any():
            self.replay.cut(restarted)
            restarted[:] = False
        fraction = self.tick / self.horizon
        self.algorithm.fraction = fraction
        self.replay.add(*self._stored(self.experience.draw_and_step(self._actions)))
        exponents = self.params.priority_exponents
        if exponents is not None:  # the correction is full at the end of the run
            beta = exponents.beta
            self.replay.priorities.set_beta(beta + (1.0 - beta) * min(fraction, 1.0))

    def _stored(self, step: Step) -> Step:
        """What the replay keeps of a step."""
        return step

    def _actions(self) -> np.ndarray[Any, Any]:
        spaces, n = self.algorithm.spaces, self.experience.num_envs
        if self.progress.env_steps < self.random_steps:
            if spaces.has_mask:
                obs = torch.from_numpy(self.experience.obs)
                return random_allowed(obs, spaces.action_dim).numpy()
            if spaces.is_discrete:
                return torch.randint(spaces.action_dim, (n,)).numpy()
            return (torch.rand(n, spaces.action_dim) * 2.0 - 1.0).numpy()
        obs = torch.from_numpy(self.experience.obs).to(self.algorithm.update_count.device)
        return self.algorithm.act(obs, explore=True).action.cpu().numpy()

    def _learn(self) -> bool:
        """Make the updates that are due, or some of them; whether that were all."""
        p, now = self.params, self.progress.env_steps
        if not crossed(now - self.experience.num_envs, now, p.train_frequency):
            return True
        rounds = self._rounds(now, self._updates_here())
        if not rounds:
            return True
        self.newest.metrics, done = self.engine.run_until_due(rounds)
        self.progress.updates += done * int(p.updates_at_once)
        return done == rounds

    def _updates_here(self) -> int:
        """Updates so far that the environment steps were due."""
        return self.progress.updates

    def _draw(self) -> Any:
        """What an update learns from."""
        return self.replay.sample(self.params.batch_size)

    def _learned(self, batch: Any) -> None:
        """What an update leaves behind for the replay."""
        if self.replay.priorities is not None and batch.index is not None:
            self.replay.feed_back(batch.index, self.algorithm.last_td_errors)

    def episodes(self) -> str:
        return str(self.experience.episodes)

    def report(self) -> Report:
        return self.experience.episodes.report()

    def components(self) -> dict[str, Component]:
        own: dict[str, Component] = {"replay": self.replay, "metrics": self.newest}
        return {**own, "step": self.step, **self.experience.components()}

    def parts(self) -> list[Part]:
        return [
            Part(self.engine, "run_until_due", "update"),
            Part(self.experience.collector, "step", "environment"),
            Part(self, "_actions", "policy"),
            Part(self.replay, "add", "buffer"),
        ]

    def close(self) -> None:
        self.algorithm.fraction = 0.0  # of this run alone
        self.experience.close()


def build(config: TrainConfig, algorithm: Algorithm, _: object) -> OffPolicyLoop:
    return OffPolicyLoop(config, algorithm)


def refuse_idle_learning(config: TrainConfig, params: ReplayKnobs) -> None:
    """Refuse knobs with which a run could not learn from its replay."""
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
            "returns, nothing could be drawn at the first update; set at least "
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


def replay_claim(config: TrainConfig, algorithm: Algorithm) -> Claim:
    """The memory of the replay that a run is going to have, with its priorities."""
    p: ReplayKnobs = algorithm.params
    num_envs, n_step = config.num_envs, p.return_steps
    prioritized = p.priority_exponents is not None
    capacity = p.buffer_capacity // num_envs * num_envs
    needed = ReplayBuffer.memory_needed(capacity, algorithm.spaces, num_envs, n_step, prioritized)
    return Claim("a replay", capacity, needed)


def _replay(config: TrainConfig, algorithm: Algorithm) -> ReplayBuffer:
    p: ReplayKnobs = algorithm.params
    spaces, num_envs, device = algorithm.spaces, config.num_envs, algorithm.update_count.device
    claim = replay_claim(config, algorithm)
    # Rows and priorities at once: what would fit is then true for both.
    require_memory(device, claim)
    priorities = None
    exponents = p.priority_exponents
    if exponents is not None:
        priorities = Priorities(claim.rows, device, **exponents._asdict())
    return ReplayBuffer(
        p.buffer_capacity,
        num_envs,
        spaces,
        device,
        gamma=p.discount,
        n_step=p.return_steps,
        priorities=priorities,
    )
