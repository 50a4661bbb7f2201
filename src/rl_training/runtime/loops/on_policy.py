"""Learning from the current policy's experience: collect a rollout, update on it, forget it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.data.rollout import RolloutBatch, generalized_advantages
from rl_training.envs.collector import Collector
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.models import RewardScale
from rl_training.runtime.controls import Progress, derive_seed
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component
from rl_training.runtime.loops.episodes import EpisodeReturns


class OnPolicyLoop:
    """The clock counts environment steps and moves by whole rollouts."""

    unit = "env steps"

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        if config.total_timesteps is None:
            raise ConfigError(
                f"total_timesteps: {config.algo} learns in the environment; give a budget of steps"
            )
        p = algorithm.params
        self.algorithm, self.params = cast(PPOAlgorithm, algorithm), p
        self.total = config.total_timesteps
        self.rollout_size = p.rollout_steps * config.num_envs
        if p.batch_size > self.rollout_size or self.rollout_size % p.batch_size:
            raise ConfigError(
                f"algo_kwargs.batch_size: {p.batch_size} does not divide a rollout of "
                f"{self.rollout_size} steps (rollout_steps {p.rollout_steps} times num_envs "
                f"{config.num_envs}); choose a divisor"
            )
        self.collector = Collector(
            config.env_id,
            config.env_kwargs,
            config.num_envs,
            derive_seed(config.seed, "collect"),
            config.vectorization,
        )
        self.device = algorithm.update_count.device
        self.reward_scale = RewardScale(config.num_envs, p.gamma).to(self.device)
        self.progress = Progress()
        self.returns = EpisodeReturns()
        minibatches = self.rollout_size // p.batch_size * p.epochs
        updates = self.total // self.rollout_size * minibatches
        self.minibatches: list[RolloutBatch] = []
        self.engine = Engine(algorithm, lambda: self.minibatches.pop(), config.engine, updates)

    @property
    def tick(self) -> int:
        return self.progress.env_steps

    def advance(self, ticks: int) -> Metrics:
        until, metrics = self.tick + ticks, {}
        while self.tick < until:
            self.algorithm.follow_schedules(self.tick / self.total)
            metrics = self._learn(self._collect())
        return metrics

    def _collect(self) -> RolloutBatch:
        """One rollout, flattened to (T * E) rows."""
        p, rows = self.params, []
        obs = self._seen(self.collector.obs, observe=True)
        for _ in range(p.rollout_steps):
            action, log_prob, value = self.algorithm.collect(obs)
            step = self.collector.step(action.cpu().numpy())
            reward, terminated, truncated = (
                torch.from_numpy(x).to(self.device)
                for x in (step.reward, step.terminated, step.truncated)
            )
            if p.normalize_rewards:
                ended = torch.logical_or(terminated, truncated)
                reward = self.reward_scale.scaled(reward, ended)
            final = self._final_value(step.next_obs, truncated) if step.truncated.any() else None
            rows.append((obs, action, log_prob, value, reward, terminated, truncated, final))
            obs = self._seen(self.collector.obs, observe=True)
            self.progress.env_steps += self.collector.num_envs
            for episode in self.collector.drain_episodes():
                self.progress.episodes += 1
                self.returns.add(episode.episode_return)
        *columns, finals = zip(*rows, strict=True)
        return self._rollout([torch.stack(column) for column in columns], finals, obs)

    def _seen(self, raw: Any, observe: bool) -> Tensor:
        """Observations as the networks see them, after their statistics took them in."""
        obs = torch.from_numpy(raw).to(self.device, copy=True)
        if observe:
            self.algorithm.normalizer.observe(obs)
        return cast(Tensor, self.algorithm.normalizer(obs))

    @torch.no_grad()
    def _final_value(self, next_obs: Any, truncated: Tensor) -> Tensor:
        value = self.algorithm.value(self._seen(next_obs, observe=False))
        return torch.where(truncated, value, 0.0)

    @torch.no_grad()
    def _rollout(
        self, columns: list[Tensor], finals: tuple[Tensor | None, ...], last_obs: Tensor
    ) -> RolloutBatch:
        obs, action, log_prob, value, reward, terminated, truncated = columns
        p = self.params
        next_value = torch.cat([value[1:], self.algorithm.value(last_obs).unsqueeze(0)])
        for t, final in enumerate(finals):
            if final is not None:  # the state after a cut is not the next row's
                next_value[t] = torch.where(truncated[t], final, next_value[t])
        advantage = generalized_advantages(
            reward,
            value,
            next_value,
            terminated,
            truncated,
            gamma=p.gamma,
            gae_lambda=p.gae_lambda,
        )
        fields = (obs, action, log_prob, value, advantage, advantage + value)
        return RolloutBatch(*(x.flatten(0, 1) for x in fields))

    def _learn(self, rollout: RolloutBatch) -> Metrics:
        p, metrics = self.params, {}
        for _ in range(p.epochs):
            order = torch.randperm(self.rollout_size, device=self.device)
            for index in order.split(p.batch_size):  # type: ignore[no-untyped-call]
                self.minibatches.append(RolloutBatch(*(x[index] for x in rollout)))
            count = len(self.minibatches)
            metrics = self.engine.run(count)
            self.progress.updates += count
            if p.target_kl is not None and float(metrics["approx_kl"]) > 1.5 * p.target_kl:
                break
        return metrics

    def report(self) -> dict[str, float]:
        return self.returns.report()

    def components(self) -> dict[str, Component]:
        scale = ModuleState(self.reward_scale)
        return {"collector": self.collector, "returns": self.returns, "reward_scale": scale}

    def close(self) -> None:
        self.collector.close()


class ModuleState:
    """A module's buffers as a part of the checkpoint."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def training_state(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state)
