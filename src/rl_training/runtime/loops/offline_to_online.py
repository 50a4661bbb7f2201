"""From prior data to the environment: updates on the data, then on minibatches of both.

The off-policy loop with a pretraining before it, prior data in every minibatch, and rewards of
the environment that pass through the data's processing.
"""

from __future__ import annotations

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.roles import PriorDataKnobs
from rl_training.data.dataset import TransitionDataset
from rl_training.data.rewards import apply_reward_processing, process_rewards
from rl_training.envs.collector import Step
from rl_training.experiment.config import RewardProcessing, TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.replay.batch import Batch, interleaved, normalized
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Extra
from rl_training.runtime.loops.data import raw_data
from rl_training.runtime.loops.device import worlds_of
from rl_training.runtime.loops.device_collecting import DeviceMemory
from rl_training.runtime.loops.memory import TransitionMemory
from rl_training.runtime.loops.off_policy import (
    OffPolicyLoop,
    OffPolicyParts,
    Pretraining,
    UpdateSchedule,
    collecting_for,
    random_steps,
    refuse_idle_learning,
)
from rl_training.runtime.loops.offline import OfflineData
from rl_training.runtime.loops.online import step_budget
from rl_training.runtime.signals import RunLink


class PriorData(Extra):
    """Prior data of a run and the processing of its rewards."""

    def __init__(
        self, config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset
    ) -> None:
        """`dataset` has unprocessed rewards."""
        self.processing = RewardProcessing() if config.dataset is None else config.dataset.rewards
        self._episode_returns = dataset.episode_returns()
        processed = apply_reward_processing(dataset, self.processing)
        self.data = OfflineData(config, [algorithm], processed)
        self.notes = dataset.notes

    def draw(self, rows: int) -> Batch:
        return self.data.table.sample(rows)

    def processed(self, step: Step) -> Step:
        """An environment step with rewards processed like the data's."""
        if self.processing == RewardProcessing():
            return step
        reward = process_rewards(step.reward, self._episode_returns, self.processing)
        return step._replace(reward=reward)

    def components(self) -> dict[str, Component]:
        return {"data": self.data.fingerprint}


class MixedMinibatches:
    """Batches of the online phase: `updates_at_once` minibatches, each with `offline_rows` of
    prior data."""

    def __init__(
        self, algorithm: Algorithm, memory: TransitionMemory, prior: PriorData | None
    ) -> None:
        self.knobs: PriorDataKnobs = algorithm.params
        self.memory, self.prior, self.normalizer = memory, prior, algorithm.normalizer
        self.by_data = self.normalizer.active and not algorithm.runs_statistics

    def draw(self) -> Batch:
        p = self.knobs
        slices, prior, size = int(p.updates_at_once), int(p.offline_rows), p.batch_size
        if prior == size:
            return self.draw_prior(slices * prior)
        own = self.memory.draw(slices * (size - prior))
        if self.by_data:  # the data's rows are normalised already
            own = normalized(own, self.normalizer)
        if not prior:
            return own
        known = self.draw_prior(slices * prior)
        return interleaved(known, with_unknown_returns(own, known), slices)

    def draw_prior(self, rows: int) -> Batch:
        assert self.prior is not None  # refused where it is needed
        return self.prior.draw(rows)


def with_unknown_returns(own: Batch, known: Batch) -> Batch:
    """Rows of running episodes beside rows of data with returns: theirs are below any value."""
    if known.returns_to_go is None:
        return own
    own = own._replace(returns_to_go=torch.full_like(own.reward, -torch.inf))
    if known.final_obs is None:
        return own
    return own._replace(bootstrap_discount=torch.zeros_like(own.reward), final_obs=own.next_obs)


def build(
    config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset | None
) -> OffPolicyLoop:
    """The loop of RLPD, and of IQL, AWAC and CQL in runs that continue in the environment.

    A pretraining update takes one minibatch of prior data and is one step of the critics and of
    the policy. A policy that is already trained, by pretraining or in another run, acts from the
    first environment step on.
    """
    refuse_missing_data(config)
    knobs: PriorDataKnobs = algorithm.params
    prior = None
    if config.dataset is not None:
        prior = PriorData(config, algorithm, raw_data(config, algorithm, dataset))
    refuse_idle_learning(config, knobs)
    total, schedule, link = step_budget(config), UpdateSchedule(config, knobs), RunLink()
    pretraining = knobs.offline_pretrain_updates
    memory = _memory(config, algorithm, prior)
    mixed = MixedMinibatches(algorithm, memory, prior)
    learner = SingleLearner(algorithm, lambda _: mixed.draw(), memory.learned, memory.touched)
    updates = pretraining + schedule.in_total(total)
    engine = Engine(learner, config.engine, updates, link)
    on_data = SingleLearner(algorithm, lambda _: mixed.draw_prior(knobs.batch_size))
    before = Engine(on_data, engine.mode, pretraining, link)
    first = 0 if pretraining else random_steps(config, knobs)
    return OffPolicyLoop(
        total,
        OffPolicyParts(
            algorithm,
            schedule,
            memory,
            engine,
            collecting_for(config, algorithm, memory, engine, first),
            Pretraining(before, pretraining),
            extras=() if prior is None else (prior,),
            data_notes=() if prior is None else prior.notes,
        ),
    )


def _memory(config: TrainConfig, algorithm: Algorithm, prior: PriorData | None) -> TransitionMemory:
    if worlds_of(config) is None:
        return TransitionMemory(config, algorithm, None if prior is None else prior.processed)
    if prior is not None and prior.processing != RewardProcessing():
        raise ConfigError(
            "dataset.rewards: rewards of worlds on the device are not processed yet; remove this "
            f"key, or use the environment of Gymnasium instead of '{config.env_id}'"
        )
    return DeviceMemory(config, algorithm)


def refuse_missing_data(config: TrainConfig) -> None:
    """Raise an error for knobs that need prior data if there are none."""
    p = config.params
    if config.dataset is not None:
        return
    example = "add for example 'dataset: {kind: npz, path: data.npz}'"
    if p.offline_pretrain_updates:
        raise ConfigError(
            f"algo_kwargs.offline_pretrain_updates: {p.offline_pretrain_updates:,} updates of "
            f"pretraining need prior data; {example}, or set it to 0"
        )
    if p.offline_batch_ratio:
        raise ConfigError(
            f"dataset: at algo_kwargs.offline_batch_ratio {p.offline_batch_ratio:g} {config.algo} "
            f"learns from prior data; {example}, or set the ratio to 0"
        )
