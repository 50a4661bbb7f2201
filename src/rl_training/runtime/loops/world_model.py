"""Learning a world model online, with a recurrent policy.

The off-policy loop with an actor that carries a latent state from step to step, and a replay of
streams from which updates sample sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.roles import SequenceKnobs, SequenceLearner
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.seeding import derive_seed
from rl_training.replay.sequences import Context, SequenceBatch, latent_parts
from rl_training.runtime.acting import RepeatedActing
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.controls import Progress, crossed
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Extra, Report
from rl_training.runtime.loops.off_policy import (
    HostCollecting,
    OffPolicyLoop,
    OffPolicyParts,
    UpdateSchedule,
    refuse_idle_learning,
)
from rl_training.runtime.loops.online import Experience, step_budget
from rl_training.runtime.loops.streams import StreamActor, StreamMemory, refuse_short_streams
from rl_training.runtime.predictions import predictions
from rl_training.runtime.signals import RunLink

VIDEOS = 20
"""Number of prediction videos per run."""


class LatentMemory(StreamMemory):
    """Streams with the model's latent states, which every update refreshes."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm) -> None:
        self.learner = cast(SequenceLearner, algorithm)
        self.knobs: SequenceKnobs = algorithm.params
        size = self.learner.rssm.size
        parts = latent_parts(size.deter, size.latents)
        super().__init__(config, algorithm, parts, self.learner.context)

    def draw(self) -> SequenceBatch:
        size = self.knobs.batch_size
        chance = self._uniform(2, size)
        return self.replay.sample(size, self.knobs.batch_length, chance, newest=1)

    @property
    def touched(self) -> Sequence[Tensor]:
        return self.replay.refreshed

    def learned(self, batch: SequenceBatch) -> None:
        context = Context(self.learner.last_deter, self.learner.last_stoch)
        self.replay.refresh(batch.places, context)


class ShownPredictions(Extra):
    """Reports open-loop predictions of the model a few times per run."""

    def __init__(
        self, config: TrainConfig, memory: LatentMemory, progress: Progress, total: int
    ) -> None:
        self.memory, self.progress = memory, progress
        self._every = max(1, total // VIDEOS) if config.logs_media else 0
        self._seed = derive_seed(config.seed, "film")

    def report(self, tick: int) -> Report:
        memory = self.memory
        before, memory.stream.reported_at = memory.stream.reported_at, tick
        if not (self.progress.updates and crossed(before, tick, self._every)):
            return {}
        return predictions(memory.learner, memory.replay, memory.knobs.batch_length, self._seed)


def build(config: TrainConfig, algorithm: Algorithm, _: object) -> OffPolicyLoop:
    """Dreamer."""
    knobs: SequenceKnobs = algorithm.params
    refuse_short_streams(config, knobs, knobs.batch_length, "batch_length")
    refuse_idle_learning(config, knobs)
    total, schedule, link = step_budget(config), UpdateSchedule(config, knobs), RunLink()
    memory = LatentMemory(config, algorithm)
    learner = SingleLearner(algorithm, lambda _: memory.draw(), memory.learned, memory.touched)
    engine = Engine(learner, config.engine, schedule.in_total(total), link)
    experience = Experience(config, algorithm, link.pause)
    acting = RepeatedActing(algorithm, explore=True, note=link.notes.append)
    actor = StreamActor(acting, experience, memory.stream)
    collecting = HostCollecting(algorithm, memory, actor, experience)
    shown = ShownPredictions(config, memory, experience.progress, total)
    return OffPolicyLoop(
        total,
        OffPolicyParts(algorithm, schedule, memory, engine, collecting, extras=(shown,)),
    )
