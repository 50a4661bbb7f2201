"""Learning from a fixed data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.data.dataset import TransitionDataset
from rl_training.data.returns import careful_temperature
from rl_training.experiment.config import DatasetConfig, TrainConfig
from rl_training.experiment.errors import CheckpointError, ConfigError
from rl_training.experiment.seeding import derive_seed
from rl_training.experiment.state import Stored
from rl_training.replay.batch import Batch
from rl_training.replay.table import TransitionTable
from rl_training.runtime.agents import SingleLearner, VmapLearner
from rl_training.runtime.controls import Progress
from rl_training.runtime.engine import Engine
from rl_training.runtime.held_out import HeldOutData
from rl_training.runtime.loops import Component, Extra, Report
from rl_training.runtime.loops.data import training_data
from rl_training.runtime.profile import Part

FITTED = "offline/fitted_value"


def episode_temperature(algorithm: Algorithm, dataset: TransitionDataset) -> float:
    """What the knob says, or the algorithm's own choice where the data mark episodes, raised where
    too few of them would count."""
    asked: float | None = algorithm.params.preference
    if asked is not None:
        return asked
    own = algorithm.own_temperature
    return careful_temperature(dataset, own) if own and dataset.has_whole_episode else 0.0


class OfflineData:
    """A data set prepared for agents of one algorithm; sets the normalisers' statistics."""

    def __init__(
        self, config: TrainConfig, agents: Sequence[Algorithm], dataset: TransitionDataset
    ) -> None:
        options = config.dataset or DatasetConfig(kind="random")
        first = agents[0]
        # Statistics taken from another run's policy are only in the checkpoint.
        carried = options.normalize_observations and config.init_from is not None
        by_data = options.normalize_observations and not carried
        self.table = TransitionTable(
            dataset,
            first.update_count.device,
            gamma=first.gamma,
            with_returns=first.needs_returns,
            with_next_actions=first.needs_next_actions,
            at_truncation=options.returns.at_truncation,
            normalize_observations=by_data,
            normalizer=first.normalizer if carried else None,
            home=options.home,
            return_temperature=episode_temperature(first, dataset),
        )
        if self.table.statistics is not None:
            mean, std = self.table.statistics
            for agent in agents:
                agent.normalizer.set_statistics(torch.from_numpy(mean), torch.from_numpy(std))
        self._prepare(config, agents, dataset)
        aside = dataset.held_out
        self.held_out = None
        if aside is not None:
            further = _long_measures(config, aside)
            self.held_out = HeldOutData(self.table, aside, first.gamma, further)
            self.held_out.refuse_unmeasured(config, first)
        self.batch_size = int(first.params.batch_size)
        self.fingerprint = DataFingerprint(dataset)
        self.notes = (*dataset.notes, *home_note(options, self.table))
        epoch = math.ceil(len(self.table) / self.batch_size)
        self.total = config.total_updates or (config.total_epochs or 0) * epoch

    def _prepare(
        self, config: TrainConfig, agents: Sequence[Algorithm], dataset: TransitionDataset
    ) -> None:
        """What agents take from the data as a whole; each its own resample where it wants one."""
        known = dataset.has_rewards
        seeds = [config.seed] if config.seeds is None else config.seeds
        for agent, seed in zip(agents, seeds, strict=True):
            agent.refuse_missing_start(config.init_from)
            if known:
                agent.see_rewards(float(dataset.rewards.min()), float(dataset.rewards.max()))
            if agent.resamples_episodes:
                refuse_rows_elsewhere(self.table)
                counts = resampled_episodes(dataset.episode_groups(), seed)
                give_resample(agent, dataset, counts)

    def draw(self, learner: Algorithm) -> Batch:
        if learner.own_rows is not None:
            return self.table.gather(learner.drawn_rows(self.batch_size))
        return self.table.sample(self.batch_size, learner.random)


def home_note(options: DatasetConfig, table: TransitionTable) -> tuple[str, ...]:
    """Where the table lives, unless that is what everyone expects."""
    if table.home == "device" and options.home == "auto":
        return ()
    place = {"device": "on the training device", "host": "in host memory", "disk": "on disk"}
    return (f"the table of transitions lives {place[table.home]} ({table.reason})",)


def refuse_rows_elsewhere(table: TransitionTable) -> None:
    """Refuse resampled episodes of data that do not live on the device."""
    if table.home != "device":
        raise ConfigError(
            "algo_kwargs.bootstrap: episodes can be resampled only if the table is "
            f"on the training device, and this one is in the home '{table.home}'; remove this key"
        )


def _long_measures(
    config: TrainConfig, held_out: TransitionDataset
) -> dict[str, Callable[[Algorithm], float]]:
    """Those that the run depends on."""
    if FITTED not in config.named_metrics.values():
        return {}
    # it learns on data itself, so its module needs this one
    from rl_training.runtime.fitted_critics import fitted_value

    held_out.require_rewards()
    return {FITTED: lambda algorithm: fitted_value(config, algorithm, held_out)}


def resampled_episodes(groups: NDArray[Any], seed: int) -> NDArray[np.int64]:
    """How often each episode counts in the bootstrap resample of a seed; `groups` say whom each
    belongs to, and those of one group are drawn together."""
    rng = np.random.default_rng(derive_seed(seed, "bootstrap"))
    names, owner = np.unique(groups, return_inverse=True)
    drawn = rng.multinomial(len(names), np.full(len(names), 1.0 / len(names)))
    return np.asarray(drawn[owner.reshape(-1)])


def give_resample(agent: Algorithm, dataset: TransitionDataset, counts: NDArray[np.int64]) -> None:
    """Let an agent learn from every episode of the data as often as `counts` says.

    The rows have room for twice the data, since agents that are trained at once have tensors of
    equal shapes; of a longer resample, which few episodes can make, rows are left out evenly.
    """
    if len(dataset.parts) > 1:
        raise ConfigError(
            "algo_kwargs.bootstrap: episodes of a mix cannot be resampled; name one source in "
            "dataset, or remove this key"
        )
    lengths = dataset.episode_lengths()
    rows = np.repeat(np.arange(len(dataset)), np.repeat(counts, lengths))
    filled = np.zeros(2 * len(dataset), np.int64)
    if len(rows) > len(filled):
        rows = rows[np.linspace(0, len(rows) - 1, len(filled)).astype(np.int64)]
    filled[: len(rows)] = rows
    agent.draw_from(torch.from_numpy(filled).to(agent.update_count.device), len(rows))


class OfflineLoop:
    """The clock counts updates; an epoch has as many as one pass over the data set.

    `before_updates` is further work before every `interval`-th update, including the first, with
    the count as its argument; it is called again if it was interrupted.
    """

    unit = "updates"

    def __init__(
        self,
        data: OfflineData,
        engine: Engine,
        before_updates: Callable[[int], None] | None = None,
        interval: int = 0,
        extras: Sequence[Extra] = (),
    ) -> None:
        self.data, self.engine, self.total = data, engine, data.total
        self.data_notes, self.link, self.extras = data.notes, engine.link, extras
        self.held_out = data.held_out
        self.horizon = self.total
        self.progress = Progress()
        self._before_updates, self._interval = before_updates, interval

    @property
    def tick(self) -> int:
        return self.progress.updates

    @property
    def position(self) -> int:
        return self.tick

    def advance(self, ticks: int) -> Metrics:
        until = self.tick + ticks
        metrics: Metrics = {}
        while self.tick < until:
            updates = until - self.tick
            if self._before_updates is not None:
                into = self.tick % self._interval
                if not into:
                    self._before_updates(self.tick)
                updates = min(updates, self._interval - into)
            metrics, done = self.engine.run_until_due(updates)
            self.progress.updates += done
            if self.link.pause.due():
                break
        return metrics

    def episodes(self) -> str:
        return ""

    def report(self) -> Report:
        return {k: v for extra in self.extras for k, v in extra.report(self.tick).items()}

    def parts(self) -> list[Part]:
        own = Part(self.engine, "run_until_due", "update")
        return [own, *(part for extra in self.extras for part in extra.parts())]

    def close(self) -> None:
        pass

    def components(self) -> dict[str, Component]:
        others = {k: v for extra in self.extras for k, v in extra.components().items()}
        return {"data": self.data.fingerprint, **others}


def build(
    config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset | None
) -> OfflineLoop:
    """The loop of one agent."""
    data = OfflineData(config, [algorithm], training_data(config, algorithm, dataset))
    learner = SingleLearner(algorithm, data.draw, seed=config.seed)
    return OfflineLoop(data, Engine(learner, config.engine, data.total))


def build_seeds(
    config: TrainConfig, agents: Sequence[Algorithm], dataset: TransitionDataset | None
) -> LoopsInStep:
    """The loops of several seeds."""
    return LoopsInStep(config, agents, training_data(config, agents[0], dataset))


class LoopsInStep:
    """The loops of several agents, one per seed of the config, with one engine for all."""

    def __init__(
        self, config: TrainConfig, agents: Sequence[Algorithm], dataset: TransitionDataset
    ) -> None:
        data = OfflineData(config, agents, dataset)
        learner = VmapLearner(agents, data.draw, config.seeds or ())
        self.engine = Engine(learner, config.engine, data.total)
        self.link = self.engine.link
        self.loops = [OfflineLoop(data, self.engine) for _ in agents]

    def advance(self, ticks: int) -> list[Metrics]:
        """Advance all clocks by `ticks`, or by less once the pause is due; metrics per loop."""
        metrics, done = self.engine.run_until_due(ticks)
        for loop in self.loops:
            loop.progress.updates += done
        return [{k: v[i] for k, v in metrics.items()} for i in range(len(self.loops))]

    def parts(self) -> list[Part]:
        return [Part(self.engine, "run_until_due", "update")]


class DataFingerprint:
    """Stores a fingerprint of the data, and refuses to resume with other data."""

    def __init__(self, dataset: TransitionDataset) -> None:
        self.name = dataset.name
        self.value = dataset.fingerprint()

    def training_state(self) -> dict[str, Any]:
        return {"fingerprint": self.value}

    def load_training_state(self, state: dict[str, Any]) -> None:
        if Stored(state, "data")["fingerprint"] != self.value:
            raise CheckpointError(
                f"data set '{self.name}' is not the one this run was trained on (its contents "
                "differ); restore the original data or start a new run"
            )
