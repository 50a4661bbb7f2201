"""Learning from a replay of one's own experience: act, store, owed updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.data.batch import Batch
from rl_training.data.priorities import Priorities
from rl_training.data.replay import ReplayBuffer
from rl_training.envs.collector import Collector
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.runtime.controls import Progress, crossed, derive_seed, owed_updates
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component
from rl_training.runtime.loops.episodes import EpisodeReturns


class OffPolicyLoop:
    """The clock counts environment steps; every vector step takes `num_envs` of them."""

    unit = "env steps"

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        if config.total_timesteps is None:
            raise ConfigError(
                f"total_timesteps: {config.algo} learns in the environment; give a budget of steps"
            )
        p = algorithm.params
        if p.learning_starts >= config.total_timesteps:
            raise ConfigError(
                f"algo_kwargs.learning_starts: {p.learning_starts:,} random steps leave nothing of "
                f"the {config.total_timesteps:,} in total_timesteps to learn in; lower it"
            )
        self.algorithm, self.params, self.total = algorithm, p, config.total_timesteps
        device = algorithm.update_count.device
        self.replay = ReplayBuffer(
            p.buffer_capacity,
            config.num_envs,
            algorithm.spaces,
            device,
            gamma=p.gamma,
            n_step=getattr(p, "n_step", 1),
            priorities=_priorities(p, config.num_envs, device),
        )
        self.collector = Collector(
            config.env_id,
            config.env_kwargs,
            config.num_envs,
            derive_seed(config.seed, "collect"),
            config.vectorization,
        )
        self.progress = Progress()
        self.metrics: Metrics = {}
        self.returns = EpisodeReturns()
        updates = int((self.total - p.learning_starts) * p.gradient_updates_per_step)
        self.engine = Engine(algorithm, self._draw, config.engine, updates, self._learned)

    @property
    def tick(self) -> int:
        return self.progress.env_steps

    def advance(self, ticks: int) -> Metrics:
        until = self.tick + ticks
        while self.tick < until:
            self._collect()
            self._learn()
        return self.metrics

    def _collect(self) -> None:
        if self.collector.restarted.any():
            self.replay.cut(self.collector.restarted)
            self.collector.restarted[:] = False
        fraction = self.tick / self.total
        self.algorithm.fraction.fill_(fraction)
        if self.replay.priorities is not None:  # the correction is full at the end of the run
            beta = self.params.priority_beta
            self.replay.priorities.set_beta(beta + (1.0 - beta) * min(fraction, 1.0))
        step = self.collector.step(self._actions())
        self.replay.add(*step)
        self.progress.env_steps += self.collector.num_envs
        for episode in self.collector.drain_episodes():
            self.progress.episodes += 1
            self.returns.add(episode.episode_return)

    def _actions(self) -> np.ndarray[Any, Any]:
        spaces, n = self.algorithm.spaces, self.collector.num_envs
        if self.tick < self.params.learning_starts:
            if spaces.is_discrete:
                return torch.randint(spaces.action_dim, (n,)).numpy()
            return (torch.rand(n, spaces.action_dim) * 2.0 - 1.0).numpy()
        obs = torch.from_numpy(self.collector.obs).to(self.algorithm.update_count.device)
        return self.algorithm.act(obs, explore=True).action.cpu().numpy()

    def _learn(self) -> None:
        p, now = self.params, self.tick
        if not crossed(now - self.collector.num_envs, now, p.train_frequency):
            return
        ratio = p.gradient_updates_per_step
        owed = owed_updates(ratio, p.learning_starts, now, self.progress.updates)
        if owed:
            self.metrics = self.engine.run(owed)
            self.progress.updates += owed

    def _draw(self) -> Batch:
        return self.replay.sample(self.params.batch_size)

    def _learned(self, batch: Batch) -> None:
        if self.replay.priorities is not None and batch.index is not None:
            self.replay.feed_back(batch.index, self.algorithm.last_td_errors)

    def report(self) -> dict[str, float]:
        return self.returns.report()

    def components(self) -> dict[str, Component]:
        return {"replay": self.replay, "collector": self.collector, "returns": self.returns}

    def close(self) -> None:
        self.collector.close()


def _priorities(params: Any, num_envs: int, device: torch.device) -> Priorities | None:
    if not getattr(params, "prioritized", False):
        return None
    capacity = params.buffer_capacity // num_envs * num_envs
    return Priorities(capacity, device, alpha=params.priority_alpha, beta=params.priority_beta)
