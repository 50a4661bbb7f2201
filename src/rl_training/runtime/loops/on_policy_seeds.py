"""On-policy learning of several seeds at once in worlds on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.roles import RolloutLearner
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.models import RewardScale
from rl_training.replay.rollout import RolloutBatch
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, ModuleState
from rl_training.runtime.loops.device import DeviceExperience, seeds_of, training_worlds
from rl_training.runtime.loops.device_draws import DeviceDraws
from rl_training.runtime.loops.device_rollouts import DeviceRollout, RolloutOfRun
from rl_training.runtime.loops.on_policy import advantages_of, refuse_unfit_sizes
from rl_training.runtime.loops.online import step_budget
from rl_training.runtime.loops.rollouts import RolloutSteps
from rl_training.runtime.loops.seeds import (
    BuffersOfRun,
    SeedLoop,
    StackState,
    by_seed,
    common_horizon,
    flat,
    only_finite,
)
from rl_training.runtime.profile import Part
from rl_training.runtime.randomness import TorchRandom
from rl_training.runtime.signals import undone_if_interrupted


class SeedMinibatches:
    """As `Minibatches`, for several runs: one row of an order, and of a minibatch, per run."""

    def __init__(self, runs: int, rows: int, batch_size: int, rollout: DeviceRollout) -> None:
        taken = rollout.taken()
        like = (taken.obs, taken.action, *[taken.value] * 4)
        self.columns = [x.new_zeros(runs * rows, *x.shape[2:]) for x in like]
        device = taken.value.device
        self.runs, self.rows, self.batch_size = runs, rows, batch_size
        self._within = torch.arange(batch_size, device=device)
        self._first = torch.arange(0, runs * rows, rows, device=device).unsqueeze(1)
        self._order = self._first + torch.arange(rows, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)

    def take(self, columns: Sequence[Tensor]) -> None:
        """Set the rollouts, (T, runs * worlds, ...) columns in the order of `RolloutBatch`."""
        for own, new in zip(self.columns, columns, strict=True):
            by_run = new.view(new.shape[0], self.runs, -1, *new.shape[2:])
            own.copy_(by_run.transpose(0, 1).flatten(0, 2))

    def shuffle(self, orders: Tensor) -> int:
        """Start a pass in (runs, rows) orders; returns the number of minibatches."""
        torch.add(orders, self._first, out=self._order)
        self.position.zero_()
        return self.rows // self.batch_size

    def next(self) -> RolloutBatch:
        """(runs, B, ...) columns."""
        rows = self._order.index_select(1, self._within + self.position).flatten()
        self.position.add_(self.batch_size).remainder_(self.rows)
        shape = (self.runs, self.batch_size)
        return RolloutBatch(
            *(x.index_select(0, rows).view(*shape, *x.shape[1:]) for x in self.columns)
        )


class OnPolicySeeds:
    """The clock of the loops of several seeds, which advances by whole rollouts."""

    def __init__(self, config: TrainConfig, agents: Sequence[Algorithm]) -> None:
        first = agents[0]
        self.agents, self.params, self.runs = agents, first.params, len(agents)
        self.total = step_budget(config)
        refuse_unfit_sizes(config, first)
        if self.params.target_kl is not None:
            raise ConfigError(
                "algo_kwargs.target_kl: several seeds at once make equally many updates; remove "
                "this key, or train one seed per run"
            )
        self.rollout_size = self.params.rollout_length * config.num_envs
        self.worlds = training_worlds(config, first)
        self.draws = DeviceDraws(seeds_of(config), self.worlds.device)
        self.rollout = DeviceRollout(self.params.rollout_length, self.worlds)
        self.reward_scale = RewardScale(config.num_envs, self.params.gamma, self.runs)
        self.reward_scale.to(self.worlds.device)
        sizes = (self.runs, self.rollout_size, self.params.batch_size)
        self.minibatches = SeedMinibatches(*sizes, self.rollout)
        self.stack = VmapLearner(
            agents, None, seeds_of(config), self.minibatches.next, [self.minibatches.position]
        )
        minibatches = self.rollout_size // self.params.batch_size * self.params.epochs
        updates = self.total // self.rollout_size * minibatches
        self.engine = Engine(self.stack, config.engine, updates)
        self.link = self.engine.link
        statistics = [x for agent in agents for x in agent.normalizer.buffers()]
        written = [*statistics, self.rollout.position]
        self.experience = DeviceExperience(
            self.worlds, self._step, self.engine, written, self.rollout.tensors()
        )
        self.loops = [SeedLoop(self, run) for run in range(self.runs)]

    @property
    def begun(self) -> int:
        return len(self.rollout) * self.worlds.num_envs

    def advance(self, ticks: int) -> list[Metrics]:
        """Advance all clocks as `OnPolicyLoop.advance` does; metrics per loop."""
        tick = self.loops[0].tick
        until, metrics = tick + ticks, {}
        progress = [run.progress for run in self.experience.runs]
        while self.loops[0].tick < until:
            horizon = common_horizon(self.loops)
            for agent in self.agents:
                cast(RolloutLearner, agent).follow_schedules(self.loops[0].tick, horizon)
            self._collect()
            if self.rollout.is_full:
                # Interrupted learning is undone: the steps are kept, and learning is repeated.
                stack, scale = StackState(self.stack), ModuleState(self.reward_scale)
                with undone_if_interrupted(stack, scale, *progress, TorchRandom()):
                    metrics = self._learn(self.rollout.taken())
                self.rollout.clear()
            if self.link.pause.due():
                break
        return by_seed(metrics, self.runs)

    # --- collecting -----------------------------------------------------------------------------

    def _collect(self) -> None:
        """Step to the end of the rollout, or until the pause is due."""
        rollout = self.rollout
        if not rollout.first_seen:
            self._observe()
            rollout.first_seen = True
        while not rollout.is_full:
            rollout.filled += self.experience.steps(rollout.steps - len(rollout))
            if self.link.pause.due():
                break

    def _step(self) -> None:
        worlds = self.worlds
        raw = worlds.obs.clone()
        seen = (worlds.by_run(raw), self.draws.actions, worlds.steps)
        obs, action, log_prob, value = map(flat, self.stack.every(self._act, *seen))
        step = worlds.step(only_finite(action))
        # of every world, because which ones are truncated is not known without waiting
        final = torch.where(step.truncated, self._values(step.next_obs), 0.0)
        flags = (step.terminated, step.truncated)
        taken = RolloutSteps(obs, action, log_prob, value, step.reward, *flags, final)
        self.rollout.store(raw, taken)
        self._observe()

    def _act(self, agent: Any, raw: Tensor, key: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        obs = agent.normalizer(raw)
        with self.draws.of_step(key, step):
            return obs, *agent.collect(obs)

    def _values(self, obs: Tensor) -> Tensor:
        """(N,) values of raw observations."""
        return flat(self.stack.every(_value, self.worlds.by_run(obs)))

    def _observe(self) -> None:
        """Update the statistics with the observations to act on."""
        if self.agents[0].normalizer.active:
            self.stack.every(_observed, self.worlds.by_run(self.worlds.obs))

    # --- learning -------------------------------------------------------------------------------

    def _learn(self, taken: RolloutSteps) -> Metrics:
        """Update on whole rollouts; returns the latest metrics."""
        p = self.params
        with torch.no_grad():
            reward = self._scaled(taken) if p.normalize_rewards else taken.reward
            advantage = advantages_of(taken, reward, self._values(self.worlds.obs), p)
            fields = (taken.obs, taken.action, taken.log_prob, taken.value)
            self.minibatches.take((*fields, advantage, advantage + taken.value))
        metrics: Metrics = {}
        for _ in range(p.epochs):
            updates = self.experience.progress.updates
            count = self.minibatches.shuffle(self.draws.orders(self.rollout_size, updates))
            metrics = self.engine.run(count)
            for run in self.experience.runs:
                run.progress.updates += count
        return metrics

    def _scaled(self, taken: RolloutSteps) -> Tensor:
        """(T, N) rewards, each run's by its own scale."""
        ended = torch.logical_or(taken.terminated, taken.truncated)

        def scaled(reward: Tensor, ended: Tensor) -> Tensor:
            by_run = (self.worlds.by_run(x).T for x in (reward, ended))
            return self.reward_scale.scaled(*by_run).T.flatten()

        return torch.stack([scaled(*at) for at in zip(taken.reward, ended, strict=True)])

    # --- the parts of a run ---------------------------------------------------------------------

    def components_of(self, run: int) -> dict[str, Component]:
        size = self.worlds.num_envs
        return {
            "reward_scale": BuffersOfRun(self.reward_scale, run),
            "rollout": RolloutOfRun(self.rollout, run * size, size),
        }

    def parts(self) -> list[Part]:
        return [
            Part(self.engine, "run", "update"),
            Part(self.experience, "steps", "environment"),
            Part(self.minibatches, "take", "buffer"),
        ]


def _value(agent: Any, obs: Tensor) -> Tensor:
    value: Tensor = agent.value(agent.normalizer(obs))
    return value


def _observed(agent: Any, obs: Tensor) -> Tensor:
    agent.normalizer.observe(obs)
    count: Tensor = agent.normalizer.count
    return count


def build(config: TrainConfig, agents: Sequence[Algorithm], _: object) -> OnPolicySeeds:
    return OnPolicySeeds(config, agents)
