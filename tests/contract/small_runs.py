"""Small runs of every registered algorithm, for contracts that hold over the registry."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.dreamer import DreamerAlgorithm
from rl_training.algorithms.gail import GAILAlgorithm
from rl_training.algorithms.loops import loop_family
from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.api.managed import ManagedAlgorithm
from rl_training.data.sources import load_transition_dataset
from rl_training.experiment.config import DatasetConfig, TrainConfig
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.replay.imitation import ImitationBatch, Pairs
from rl_training.replay.rollout import RolloutBatch
from rl_training.replay.sequences import SequenceBatch, SequenceReplay, StreamStep, latent_parts
from rl_training.replay.table import TransitionTable
from rl_training.runtime.build import build_algorithm
from rl_training.runtime.loops.offline import episode_temperature

from ..envs.choices import ENV_ID as CHOICES_ID

TASKS = {
    "box": ("Pendulum-v1", "pendulum-mixed"),
    "discrete": ("CartPole-v1", "cartpole-mixed"),
    "multi_discrete": (CHOICES_ID, ""),
}
"""Environment and scripted data of each kind of actions; without a name data are random."""
MODEL_KNOBS: dict[str, Any] = {
    "num_members": 3,
    "num_elites": 2,
    "model_hidden_sizes": [8, 8],
    "model_batch_size": 64,
    "model_lr": 0.01,
    "model_max_epochs": 12,
    "rollout_batch_size": 20,
    "rollout_length": 2,
    "epoch_length": 20,
}
LOOP_KNOBS: dict[str, dict[str, Any]] = {
    "offline": {},
    "off_policy": {"learning_starts": 12, "buffer_capacity": 200, "batch_size": 12},
    "offline_to_online": {
        "learning_starts": 12,
        "buffer_capacity": 200,
        "batch_size": 20,
        "gradient_updates_per_step": 2.0,
    },
    "model_based": {
        "learning_starts": 12,
        "buffer_capacity": 200,
        "batch_size": 12,
        "real_ratio": 0.25,
        "gradient_updates_per_step": 1.0,
        "model_interval": 10,
        **MODEL_KNOBS,
    },
    "model_based_offline": {"batch_size": 12, "real_ratio": 0.25, "rollout_interval": 4}
    | MODEL_KNOBS,
    "world_model": {
        "size": "tiny",
        "learning_starts": 12,
        "buffer_capacity": 200,
        "batch_size": 4,
        "batch_length": 4,
        "rollout_length": 2,
        "gradient_updates_per_step": 0.25,
        "lr_warmup": 2,
    },
    "on_policy": {"rollout_length": 16, "epochs": 2, "batch_size": 16},
    "imitation": {
        "batch_size": 16,
        "discriminator_updates": 2,
        "ppo": {"rollout_length": 16, "epochs": 2, "batch_size": 16, "hidden_sizes": [8, 8]},
    },
}
SMALL_SAC: dict[str, Any] = {**LOOP_KNOBS["off_policy"], "hidden_sizes": [8, 8]}
"""Knobs of a small SAC inside another algorithm."""


def ends_turning(next_obs: torch.Tensor) -> torch.Tensor:
    """A termination for the pendulum, by import path."""
    return next_obs[:, 2] > 0.0


def default_kind(algo: str) -> str:
    """The action kind to try an algorithm on where one is enough."""
    return min(algorithm_class(algo).action_kinds)


def data_section(kind: str) -> dict[str, Any]:
    name = TASKS[kind][1]
    if not name:
        return {"kind": "random", "steps": 160}
    return {"kind": "scripted", "name": name, "max_episodes": 6}


# shifted, so that advantages of both signs occur from the first update on
REWARDS = {"scale": 0.1, "shift": 0.3}


def small_config(
    algo: str, kind: str | None = None, loop: str | None = None, **changes: Any
) -> TrainConfig:
    """A run of a few quick updates, on scripted data or in the environment."""
    kind = kind or default_kind(algo)
    family = loop_family(loop or algorithm_class(algo).loop)
    small = {"batch_size": 32, "hidden_sizes": [8, 8], **LOOP_KNOBS[family.name]}
    knobs = known_knobs(algo, {**small, **changes.pop("algo_kwargs", {})})
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": TASKS[kind][0],
        "eval_episodes": 1,
        "tensorboard": False,
        "device": "cpu",
    }
    if family.needs_data:
        rewards = {"rewards": REWARDS} if algorithm_class(algo).needs_rewards else {}
        values |= {"dataset": {**data_section(kind), **rewards}}
    values |= {"total_timesteps": 64} if family.needs_env else {"total_updates": 10}
    if algo == "fqe" and "env_id" not in changes:
        values |= {"init_from": small_policy(kind)}
    return TrainConfig(**{**values, **changes, "algo_kwargs": knobs})


@cache
def small_policy(kind: str) -> str:
    """A checkpoint of an untrained policy, for algorithms that evaluate one."""
    folder = tempfile.mkdtemp(prefix="rl-training-policy-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    agent = ManagedAlgorithm(small_config("bc", kind))
    return str(agent.save(Path(folder) / "policy"))


def known_knobs(algo: str, knobs: dict[str, Any]) -> dict[str, Any]:
    """Without those of plain networks, which not every algorithm is made of."""
    fields = algorithm_class(algo).Params.model_fields
    plain = {"hidden_sizes", "grad_clip"} - set(fields)
    return {name: value for name, value in knobs.items() if name not in plain}


class SequenceSource:
    """Stretches of a stream that has the observations and actions of a data set in their order."""

    MOMENTS = 60

    def __init__(self, algorithm: DreamerAlgorithm, table: TransitionTable) -> None:
        self.algorithm = algorithm
        spaces, size = algorithm.spaces, algorithm.rssm.size
        device = algorithm.update_count.device
        self.replay = SequenceReplay(
            self.MOMENTS, 1, spaces, device, latent_parts(size.deter, size.latents)
        )
        torch.manual_seed(0)
        rows = table.sample(self.MOMENTS)
        obs, action = rows.obs.cpu().numpy(), rows.action.cpu().numpy()
        reward = rows.reward.cpu().numpy()
        for i in range(self.MOMENTS):
            first, last = np.array([i % 9 == 0]), np.array([i % 9 == 8])
            one = slice(i, i + 1)
            moment = StreamStep(obs[one], action[one], reward[one], first, last, last)
            self.replay.add(moment, np.array([0]))

    def sample(self, size: int) -> SequenceBatch:
        steps = self.algorithm.params.batch_length
        return self.replay.sample(size, steps, self.algorithm.uniform(2, size), newest=1)


class RolloutSource:
    """Steps that the learner itself would have taken in states of a data set."""

    def __init__(self, algorithm: Any, table: TransitionTable) -> None:
        self.algorithm, self.table = algorithm, table

    def sample(self, size: int) -> RolloutBatch:
        obs = self.table.sample(size).obs
        action, log_prob, value = self.algorithm.collect(obs)
        advantage = torch.randn_like(value)
        # an older policy's probabilities, so that ratios differ from one
        old = log_prob + 0.1 * torch.randn_like(log_prob)
        return RolloutBatch(obs, action, old, value, advantage, advantage + value)


class ImitationSource:
    """Pairs of a data set, the policy's actions in its states, and experience."""

    def __init__(self, algorithm: GAILAlgorithm, table: TransitionTable) -> None:
        self.algorithm, self.table = algorithm, table

    def sample(self, size: int) -> ImitationBatch:
        expert = self.table.sample(size)
        obs = self.table.sample(size).obs
        action = self.algorithm.act(obs, explore=True).action
        own = self.table.sample(size)
        if isinstance(self.algorithm.generator, PPOAlgorithm):
            own = RolloutSource(self.algorithm.generator, self.table).sample(size)
        return ImitationBatch(Pairs(expert.obs, expert.action), Pairs(obs, action), own)


def small_learner(config: TrainConfig) -> tuple[Any, Any]:
    """The algorithm of a config and a source of batches, for `step(source.sample(32))`."""
    kind = next(kind for kind, (env_id, _) in TASKS.items() if env_id == config.env_id)
    section = config.dataset or DatasetConfig.parse({**data_section(kind), "rewards": REWARDS})
    dataset = load_transition_dataset(section, env_id=config.env_id)
    algorithm = build_algorithm(config, dataset.spaces)
    table = TransitionTable(
        dataset,
        algorithm.update_count.device,
        gamma=algorithm.gamma,
        with_returns=algorithm.needs_returns,
        with_next_actions=algorithm.needs_next_actions,
        at_truncation=section.returns.at_truncation,
        normalize_observations=section.normalize_observations,
        return_temperature=episode_temperature(algorithm, dataset),
    )
    algorithm.see_rewards(float(dataset.rewards.min()), float(dataset.rewards.max()))
    sources: dict[str, Any] = {
        "on_policy": RolloutSource,
        "imitation": ImitationSource,
        "world_model": SequenceSource,
    }
    source = sources.get(algorithm.loop)
    return algorithm, table if source is None else source(algorithm, table)


def runs() -> list[tuple[str, str]]:
    """Every (algorithm, loop) pair."""
    return [(name, loop) for name in algorithm_names() for loop in algorithm_class(name).loops()]


def cases() -> list[tuple[str, str]]:
    """Every (algorithm, action kind) pair that is supported."""
    return [
        (name, kind)
        for name in algorithm_names()
        for kind in sorted(algorithm_class(name).action_kinds)
    ]
