"""From prior data to the environment: updates on the data, then on minibatches of both.

The off-policy loop with three differences: a pretraining before it, prior data in every
minibatch, and rewards of the environment that pass through the data's processing.
"""

from __future__ import annotations

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.data.dataset import TransitionDataset
from rl_training.data.rewards import apply_reward_processing, process_rewards
from rl_training.envs.collector import Step
from rl_training.experiment.config import RewardProcessing, TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.replay.batch import Batch, interleaved, normalized
from rl_training.runtime.agents import OneAgent
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Report
from rl_training.runtime.loops.data import raw_data
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.loops.offline import OfflineData
from rl_training.runtime.profile import Part


class OfflineToOnlineLoop(OffPolicyLoop):
    """One clock over both phases: an update of the pretraining is a tick, and then an
    environment step is.

    `progress.updates` counts both the updates of the pretraining and those that environment
    steps are due; the former come first, so that the two need no counter of their own. A
    pretraining update takes one minibatch of prior data and is one step of the critics and of
    the policy. Online one step of the algorithm takes `updates_at_once` minibatches, each with
    `offline_rows` of prior data: that is the piece of work which is captured as a graph. A
    policy that has learned before, by pretraining or as another run's, acts from the first
    environment step on.
    """

    def __init__(
        self, config: TrainConfig, algorithm: Algorithm, prior: TransitionDataset | None
    ) -> None:
        """`prior` is data whose rewards are not processed yet."""
        p = algorithm.params
        self.pretraining_total: int = p.offline_pretrain_updates
        self.processing = RewardProcessing() if config.dataset is None else config.dataset.rewards
        self.data: OfflineData | None = None
        if prior is not None:
            self._episode_returns = prior.episode_returns()
            processed = apply_reward_processing(prior, self.processing)
            self.data = OfflineData(config, [algorithm], processed)
            self.data_notes = prior.notes
        super().__init__(config, algorithm)
        self.total += self.pretraining_total
        self.horizon = self.total
        if self.pretraining_total:
            self.unit = "pretraining updates and env steps"
        if self.pretraining_total:
            self.random_steps = 0
        learner = OneAgent(algorithm, lambda _: self._prior(p.batch_size))
        self.pretraining = Engine(
            learner, self.engine.mode, self.pretraining_total, beside=self.engine
        )

    def _all_updates(self) -> int:
        return self.pretraining_total + super()._all_updates()

    @property
    def pretrained(self) -> int:
        """Updates of the pretraining so far."""
        return min(self.progress.updates, self.pretraining_total)

    @property
    def position(self) -> int:
        return self.pretrained + self.progress.env_steps

    def advance(self, ticks: int) -> Metrics:
        pretraining = min(ticks, self.pretraining_total - self.pretrained)
        if pretraining:
            self.newest.metrics, done = self.pretraining.run_until_due(pretraining)
            self.progress.updates += done
            if self.engine.pause.due():
                return self.newest.metrics
        return super().advance(ticks - pretraining)

    def _updates_here(self) -> int:
        return self.progress.updates - self.pretrained

    def _stored(self, step: Step) -> Step:
        if self.processing == RewardProcessing():
            return step
        reward = process_rewards(step.reward, self._episode_returns, self.processing)
        return step._replace(reward=reward)

    def _draw(self) -> Batch:
        p = self.params
        slices, prior = int(p.updates_at_once), int(p.offline_rows)
        if prior == p.batch_size:
            return self._prior(slices * prior)
        own = self.replay.sample(slices * (p.batch_size - prior))
        normalizer = self.algorithm.normalizer
        if normalizer.active:  # the data's rows are normalised already
            own = normalized(own, normalizer)
        return interleaved(self._prior(slices * prior), own, slices) if prior else own

    def _prior(self, rows: int) -> Batch:
        assert self.data is not None
        return self.data.table.sample(rows)

    def report(self) -> Report:
        updates = {"pretraining": self.pretrained, "online": self._updates_here()}
        return {**super().report(), **{f"updates/{key}": float(n) for key, n in updates.items()}}

    def components(self) -> dict[str, Component]:
        data = {} if self.data is None else {"data": self.data.fingerprint}
        return {**data, **super().components()}

    def parts(self) -> list[Part]:
        return [Part(self.pretraining, "run_until_due", "pretraining"), *super().parts()]


def build(
    config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset | None
) -> OfflineToOnlineLoop:
    """The loop with the data that its config names, if any."""
    refuse_missing_data(config)
    prior = None if config.dataset is None else raw_data(config, algorithm, dataset)
    return OfflineToOnlineLoop(config, algorithm, prior)


def refuse_missing_data(config: TrainConfig) -> None:
    """Refuse knobs that need prior data where there are none."""
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
