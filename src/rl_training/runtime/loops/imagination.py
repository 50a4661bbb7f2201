"""Fits a learned model and imagines rollouts in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.dynamics import rollouts
from rl_training.algorithms.fitting import FitEpoch, Fitting
from rl_training.algorithms.optim import FusedAdam
from rl_training.algorithms.roles import ModelKnobs, ModelLearner
from rl_training.envs.terminations import termination_for
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.memory import Claim, require_memory
from rl_training.experiment.state import Stored
from rl_training.replay.batch import Batch, interleaved
from rl_training.replay.model_replay import ModelReplay
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Component, Extra, Report
from rl_training.runtime.profile import Part
from rl_training.runtime.randomness import TorchRandom
from rl_training.runtime.signals import StepInterrupted, undone_if_interrupted

CAPACITY = "algo_kwargs.model_buffer_capacity"
LEAST_RECALL = 0.8
"""Recall on held-out terminations below which a learned termination is unreliable."""


@dataclass
class Round:
    """Rollouts in progress."""

    obs: Tensor
    """(B, O) current states of the rollouts that continue."""
    steps_left: int
    rows: int
    sums: Tensor
    """Sums of rewards, penalties and terminations so far."""


class Imagination(Extra):
    """Fits an algorithm's model, imagines rollouts and stores their transitions.

    `interval` is the number of ticks between two rounds of rollouts; `beside` is the memory that
    the rest of the run claims. The metrics of the last fit and the last round are part of the
    checkpoint, like the transitions. If the run ends during `prepare`, an unfinished fit is
    repeated, and rollouts continue from the last imagined step.
    """

    def __init__(
        self, config: TrainConfig, algorithm: Algorithm, interval: int, *beside: Claim
    ) -> None:
        self.learner = cast(ModelLearner, algorithm)
        self.algorithm: Algorithm = algorithm
        self.params: ModelKnobs = algorithm.params
        p = self.params
        self.rounds_per_epoch = math.ceil(p.epoch_length / interval)
        self.device = device = algorithm.update_count.device
        self.ends = self._termination(config)
        for rows in (3, 1):  # checks the shape, also for a single rollout
            self.ends(torch.zeros(rows, algorithm.spaces.obs_dim, device=device))
        capacity = self._limit(p.longest)
        if p.rollout_batch_size * p.longest > capacity:
            raise ConfigError(
                f"algo_kwargs.rollout_length: {p.rollout_batch_size:,} rollouts of {p.longest} "
                f"steps are more transitions than the {capacity:,} of {CAPACITY}; lower "
                f"rollout_length or rollout_batch_size, or set at least "
                f"{p.rollout_batch_size * p.longest:,}"
            )
        needed = ModelReplay.memory_needed(capacity, algorithm.spaces)
        model_replay = Claim("a model replay", capacity, needed, CAPACITY)
        require_memory(device, model_replay, _rollouts_claim(algorithm), *beside)
        self.replay = ModelReplay(capacity, algorithm.spaces, device, gamma=p.gamma)
        self.newest: dict[str, float] = {}
        self.fitted_at = self.imagined_at = -1
        """The clock at the last fit and at the last round."""
        self.round: Round | None = None
        self.fitting: Fitting | None = None
        self.warned = False

    def fit_beside(self, engine: Engine, capacity: int) -> None:
        """Fit to at most `capacity` transitions, as a CUDA graph if `engine` uses one.

        On the CPU a fit is too short to be compiled.
        """
        algorithm = self.algorithm
        optimizer = algorithm.optimizers["dynamics"]
        assert isinstance(optimizer, FusedAdam)
        self.fitting = Fitting(self.learner.dynamics, optimizer, algorithm.params, capacity)
        mode = engine.mode if "graph" in engine.mode else "eager"
        self.fit_engine = Engine(self.fitting, mode, 0, engine.link)

    def _termination(self, config: TrainConfig) -> Callable[[Tensor], Tensor]:
        """The termination function for normalised next observations."""
        choice = self.params.termination
        if choice == "learned":
            return self.learner.dynamics.ends
        known = termination_for(choice, config.env_id, config.task_kwargs, config.train_env_kwargs)
        normalizer = self.algorithm.normalizer
        if not normalizer.active or self.algorithm.runs_statistics:
            return known
        return lambda obs: known(obs * normalizer.std + normalizer.mean)

    def _limit(self, length: int) -> int:
        """Imagined transitions to keep while rollouts have `length` steps."""
        p = self.params
        own: int = p.retain_epochs * self.rounds_per_epoch * p.rollout_batch_size * length
        return own if p.model_buffer_capacity is None else min(own, p.model_buffer_capacity)

    def prepare(
        self,
        now: int,
        fit_to: Callable[[], Batch] | None,
        starts: Callable[[], Tensor],
        epoch: int,
    ) -> None:
        """At the clock `now`, fit the model if there are data and imagine rollouts, as far as
        that is not done yet."""
        if fit_to is not None and self.fitted_at != now:
            self.fit(fit_to())
            self.fitted_at = now
        if self.imagined_at != now:
            self.imagine(starts, epoch)
            self.imagined_at = now

    def fit(self, data: Batch) -> None:
        """Fit the model to all real data."""
        assert self.fitting is not None, "fit_beside comes first"
        rows, link = len(data.reward), self.fit_engine.link

        def say(epoch: FitEpoch) -> None:
            error = min(epoch.holdout_error)
            link.tell(f"fitting the model to {rows:,} rows: epoch {epoch.epoch}, error {error:.3g}")

        with undone_if_interrupted(self.algorithm, TorchRandom()):
            report = self.fitting.fit(data, self.fit_engine.run, say)
        found = {"epochs": report.epochs, "rows": report.rows, **report.metrics}
        # drop metrics of the last fit that are undefined for this one
        self.newest = {k: v for k, v in self.newest.items() if not k.startswith("model/")}
        self.newest |= {f"model/{name}": float(value) for name, value in found.items()}
        self._check_recall(report.metrics.get("termination_recall", 1.0))

    def _check_recall(self, recall: float) -> None:
        """Warn once per run if a learned termination misses too many terminations."""
        if recall >= LEAST_RECALL or self.warned:
            return
        self.warned = True
        self.fit_engine.link.notes.append(
            f"algo_kwargs.termination: the learned classifier finds {recall:.0%} of the ends that "
            f"were held out, less than {LEAST_RECALL:.0%}, so that imagined episodes go on where "
            "real ones end; name a function as package.module:function, or give more data with ends"
        )

    @torch.no_grad()
    def imagine(self, starts: Callable[[], Tensor], epoch: int) -> None:
        """Imagine rollouts of the current policy from (B, O) real states, into the model replay."""
        learner, length = self.learner, self.params.length_at(epoch)
        self.replay.set_limit(self._limit(length))
        if self.round is None:
            sums = torch.zeros(3, dtype=torch.float64, device=self.device)
            self.round = Round(starts(), length, 0, sums)
        made = self.round
        steps = rollouts(
            learner.dynamics,
            self._draw,
            self.ends,
            made.obs,
            made.steps_left,
            self.params.gamma,
            learner.uncertainty,
        )
        for batch, uncertain in steps:
            reward = learner.imagined_reward(batch.reward, uncertain)
            self.replay.extend(batch._replace(reward=reward))
            penalty = (batch.reward - reward).sum()
            made.rows, made.steps_left = made.rows + len(reward), made.steps_left - 1
            made.sums += torch.stack([batch.reward.sum(), penalty, (batch.discount == 0.0).sum()])
            if self.fit_engine.link.pause.requested:
                made.obs = batch.next_obs[~self.ends(batch.next_obs)]
                raise StepInterrupted
        self.round = None
        reward_mean, penalty_mean, ended = (made.sums / made.rows).tolist()
        self.newest |= {
            "imagined/length": float(length),
            "imagined/rows": float(made.rows),
            "imagined/reward_mean": reward_mean,
            "imagined/ended": ended,
        }
        if learner.uncertainty is not None:
            self.newest["imagined/penalty_mean"] = penalty_mean

    def _draw(self, obs: Tensor) -> Tensor:
        """Actions of the policy for observations as the model has them."""
        algorithm = self.algorithm
        return algorithm.policy.sample(
            algorithm.normalizer(obs) if algorithm.runs_statistics else obs
        )

    def mixed(self, real: Callable[[int], Batch]) -> Batch:
        """A minibatch of real and imagined rows."""
        p = self.params
        rows, size = int(p.real_rows), int(p.batch_size)
        if rows == size:
            return real(size)
        imagined = self.replay.sample(size - rows)
        return interleaved(real(rows), imagined, 1) if rows else imagined

    def report(self, tick: int) -> Report:
        return self.newest

    def components(self) -> dict[str, Component]:
        return {"model_replay": self.replay, "model_report": self}

    def training_state(self) -> dict[str, Any]:
        at = {"fitted_at": self.fitted_at, "imagined_at": self.imagined_at}
        made = None if self.round is None else asdict(self.round)
        return {"newest": dict(self.newest), **at, "round": made}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "model_report")
        newest = stored.section("newest")
        self.newest = {name: newest.measure(name) for name in newest.names()}
        self.round = None
        if "fitted_at" not in stored:
            return  # from an earlier version, which never saved within a step
        self.fitted_at = stored.whole("fitted_at", least=-1)
        self.imagined_at = stored.whole("imagined_at", least=-1)
        if stored["round"] is not None:
            made = stored.section("round")
            obs = made.tensor("obs", torch.float32, None, self.algorithm.spaces.obs_dim)
            self.round = Round(
                obs.to(self.device),
                made.whole("steps_left"),
                made.whole("rows"),
                made.tensor("sums", torch.float64, 3).to(self.device),
            )

    def parts(self) -> list[Part]:
        return [Part(self, "fit", "model"), Part(self, "imagine", "rollouts")]


def fit_claim(algorithm: Algorithm, capacity: int, key: str) -> Claim:
    """Memory of fits to `capacity` transitions."""
    needed = Fitting.memory_needed(cast(ModelLearner, algorithm).dynamics, capacity)
    return Claim("a model's fit to data", capacity, needed, key)


def _rollouts_claim(algorithm: Algorithm) -> Claim:
    """Memory of one step of all rollouts: inputs and predictions."""
    spaces, rows = algorithm.spaces, int(algorithm.params.rollout_batch_size)
    needed = 2 * 4 * rows * (2 * spaces.obs_dim + spaces.action_dim + 3)
    return Claim("a step of the rollouts", rows, needed, "algo_kwargs.rollout_batch_size")
