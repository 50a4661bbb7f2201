"""Learning in a learned model: fit it, imagine in it, update on real and imagined rows together.

With an environment this is the off-policy loop, without one the offline loop: the model's fits and
rollouts come before updates, and imagined rows are in every minibatch.
"""

from __future__ import annotations

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.roles import OfflineModelKnobs, OnlineModelKnobs
from rl_training.data.dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.controls import crossed
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops.data import training_data
from rl_training.runtime.loops.imagination import Imagination, fit_claim
from rl_training.runtime.loops.memory import TransitionMemory, replay_claim
from rl_training.runtime.loops.off_policy import (
    OffPolicyLoop,
    OffPolicyParts,
    UpdateSchedule,
    collecting_for,
    random_steps,
    refuse_idle_learning,
)
from rl_training.runtime.loops.offline import OfflineData, OfflineLoop
from rl_training.runtime.loops.online import step_budget
from rl_training.runtime.signals import RunLink


def build(config: TrainConfig, algorithm: Algorithm, _: object) -> OffPolicyLoop:
    """MBPO: fits and rollouts come at `learning_starts` and every `model_interval` steps after it.

    Epochs, for the length of rollouts, count from there, too.
    """
    p: OnlineModelKnobs = algorithm.params
    refuse_idle_learning(config, p)
    at_first = -(-p.learning_starts // config.num_envs) * config.num_envs
    p.refuse_small_data(at_first, "algo_kwargs.learning_starts")
    total, schedule, link = step_budget(config), UpdateSchedule(config, p), RunLink()
    claim = replay_claim(config, algorithm)
    fit = fit_claim(algorithm, p.buffer_capacity, claim.key)
    imagination = Imagination(config, algorithm, p.model_interval, claim, fit)
    memory = TransitionMemory(config, algorithm)
    learner = SingleLearner(
        algorithm, lambda _: imagination.mixed(memory.draw), memory.learned, memory.touched
    )
    engine = Engine(learner, config.engine, schedule.in_total(total), link)
    imagination.fit_beside(engine, p.buffer_capacity)

    def before_updates(now: int) -> None:
        since = now - p.learning_starts
        if since >= 0 and crossed(since - config.num_envs, since, p.model_interval):
            imagination.prepare(
                now,
                memory.replay.everything,
                lambda: memory.draw(p.rollout_batch_size).obs,
                since // p.epoch_length,
            )

    starts = random_steps(config, p)
    return OffPolicyLoop(
        total,
        OffPolicyParts(
            algorithm,
            schedule,
            memory,
            engine,
            collecting_for(config, algorithm, memory, engine, starts),
            before_updates=before_updates,
            extras=(imagination,),
        ),
    )


def build_offline(
    config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset | None
) -> OfflineLoop:
    """MOPO: the model is fitted before the first update; rollouts come every
    `rollout_interval`."""
    p: OfflineModelKnobs = algorithm.params
    data = OfflineData(config, [algorithm], training_data(config, algorithm, dataset))
    table = data.table
    p.refuse_small_data(len(table), "dataset")
    fit = fit_claim(algorithm, len(table), "dataset")
    imagination = Imagination(config, algorithm, p.rollout_interval, fit)
    learner = SingleLearner(algorithm, lambda _: imagination.mixed(table.sample))
    engine = Engine(learner, config.engine, data.total)
    imagination.fit_beside(engine, len(table))

    def before_updates(now: int) -> None:
        imagination.prepare(
            now,
            None if now else table.everything,
            lambda: table.sample(p.rollout_batch_size).obs,
            now // p.epoch_length,
        )

    return OfflineLoop(data, engine, before_updates, p.rollout_interval, (imagination,))
