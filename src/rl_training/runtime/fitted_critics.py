"""Fitted Q evaluation of a policy on a data set, without a separate run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.fqe import FQEAlgorithm, evaluated_policy
from rl_training.algorithms.warm_start import reads_observations, start_from
from rl_training.data.dataset import TransitionDataset
from rl_training.data.statistics import observation_statistics
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.build import build_algorithm
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops.offline import OfflineData, give_resample

ROUND = 100
"""Updates between two changes of the learning rate, which falls to 0."""
QUICK_UPDATES = 2_000
QUICK: dict[str, Any] = {"hidden_sizes": [64, 64], "critic_lr": 1e-3, "tau": 0.02}
"""Of one critic in the course of a run."""


class ResampledCritics:
    """Critics of one policy; each learns from its own bootstrap sample of the episodes."""

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm,
        dataset: TransitionDataset,
        counts: NDArray[np.int64],
        knobs: Mapping[str, Any],
        *,
        updates: int,
        seed: int = 0,
        engine: str = "auto",
    ) -> None:
        """`config` is that of the policy's run, `counts` are (critics, episodes)."""
        normalise = algorithm.normalizer.active or reads_observations(algorithm.acting_policy)
        seeds = [seed + i for i in range(len(counts))]
        policy = evaluated_policy(config, algorithm).model_dump(mode="json")
        fqe = TrainConfig.parse(
            {
                "algo": FQEAlgorithm.name().lower(),
                "seeds": seeds,
                "device": algorithm.update_count.device.type,
                "init_from": "the policy",
                "total_updates": updates,
                "dataset": {
                    "kind": "npz",
                    "path": dataset.name,
                    "normalize_observations": normalise,
                },
                "algo_kwargs": {**knobs, "policy": policy},
            }
        )
        statistics = None
        if normalise and not algorithm.normalizer.active:
            mean, std = observation_statistics(dataset)
            statistics = torch.from_numpy(mean), torch.from_numpy(std)
        agents: list[Any] = []
        for one in seeds:
            agent = build_algorithm(fqe.replace(seeds=None, seed=one), dataset.spaces)
            start_from(agent, algorithm, "the policy", same_rewards=False, statistics=statistics)
            agents.append(agent)
        data = OfflineData(fqe, agents, dataset)
        for agent, own in zip(agents, counts, strict=True):
            give_resample(agent, dataset, own)
        self.agents: list[FQEAlgorithm] = agents
        self.engine = Engine(VmapLearner(agents, data.draw, seeds), engine, updates)
        self.updates = updates

    def fit(self, on_update: Callable[[int, int], None] | None = None) -> None:
        """Run all updates; `on_update` is called with the number done and the total."""
        done = 0
        while done < self.updates:
            # a constant rate leaves the noise of the last minibatches in the values
            for agent in self.agents:
                agent.set_lr_factor(1.0 - done / self.updates)
            _, more = self.engine.run_until_due(min(ROUND, self.updates - done))
            done += more
            if on_update is not None:
                on_update(done, self.updates)
        for agent in self.agents:
            if agent.nonfinite_weight():
                raise ConfigError(
                    "updates: a critic of FQE became NaN; lower critic_lr, or give value_range"
                )


@torch.enable_grad()  # a run measures its policy without gradients
def fitted_value(config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset) -> float:
    """The value of the policy's likeliest actions by one critic, at the discount of its run."""
    gamma = algorithm.gamma if algorithm.gamma < 1.0 else 0.99
    counts = np.ones((1, dataset.num_episodes), np.int64)
    critics = ResampledCritics(
        config, algorithm, dataset, counts, {**QUICK, "gamma": gamma}, updates=QUICK_UPDATES,
        engine="eager",
    )  # fmt: skip
    critics.fit()
    critic = critics.agents[0]
    first = torch.from_numpy(dataset.observations[dataset.episode_starts])
    seen = critic.network_input(first.to(critic.update_count.device))
    return float(critic.state_values(seen).double().mean())
