"""Model-based evaluation: the policy acts in a model of the log, from where episodes began.

The model is the ensemble of MBPO and MOPO (`algorithms.dynamics`). Each elite imagines every
episode on its own, so that their spread says what the data leave open. Imagined states and rewards
are kept within the range of logged ones: a model far from its data has no limits of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.dynamics import (
    ModelParams,
    ensemble_model,
    rollouts,
    trained_parameters,
)
from rl_training.algorithms.fitting import FitEpoch, fit
from rl_training.algorithms.optim import FusedAdam
from rl_training.data.dataset import TransitionDataset
from rl_training.envs.global_random import untouched_randomness
from rl_training.envs.spaces import Spaces
from rl_training.envs.terminations import never, termination_for
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.models import MLPMOPOEnsembleModel
from rl_training.ope.behaviour import OnUpdate
from rl_training.ope.counted_model import counted_value, states_repeat
from rl_training.ope.intervals import normal_quantile
from rl_training.ope.options import Options
from rl_training.replay.batch import Batch
from rl_training.runtime.statistics import Interval

EPOCHS = 40
PARAMS = ModelParams(
    num_members=5,
    num_elites=5,
    model_hidden_sizes=(256, 256),
    model_max_epochs=EPOCHS,
    model_patience=EPOCHS,  # the learning rate falls to the end
)
BETA = 0.5
"""Of `dynamics_loss`. By the likelihood alone, rare rows such as those after a reset stay badly
predicted, and every imagined episode has to pass there."""
NEGLIGIBLE = 0.01
"""Discount of the last imagined step where no horizon is given."""
LONGEST = 1_000
EPISODES = 256
"""Imagined episodes of each elite, at least; each logged start counts equally often."""


def model_based_value(
    config: TrainConfig,
    algorithm: Algorithm,
    dataset: TransitionDataset,
    options: Options,
    on_update: OnUpdate | None = None,
) -> Interval:
    """The mean discounted return in the model, with the spread of its members and of the starts.

    Where states repeat and actions are Discrete, transitions are counted (`counted_model`).
    """
    if dataset.spaces.is_discrete and states_repeat(dataset):
        return counted_value(algorithm, dataset, options)
    with untouched_randomness():
        torch.manual_seed(options.seed)
        model, ends = fitted_model(config, algorithm, dataset, on_update)
        world = _World(model, ends, dataset, algorithm.update_count.device)
        by_member = _returns(world, algorithm, dataset, options)
    values = by_member.mean(1)
    error = values.var(ddof=1) + by_member.mean(0).var(ddof=1) / by_member.shape[1]
    spread = normal_quantile(options.confidence) * math.sqrt(error)
    value = float(values.mean())
    return Interval(value, value - spread, value + spread)


def horizon_of(options: Options) -> int:
    """Steps that are imagined: those that are counted, or until the discount is negligible."""
    if options.horizon is not None:
        return options.horizon
    return min(LONGEST, math.ceil(math.log(NEGLIGIBLE) / math.log(options.gamma)))


def fitted_model(
    config: TrainConfig,
    algorithm: Algorithm,
    dataset: TransitionDataset,
    on_update: OnUpdate | None = None,
) -> tuple[MLPMOPOEnsembleModel, Callable[[Tensor], Tensor]]:
    """A model of a log and where its episodes end, on the device of the algorithm."""
    known = _known_ends(config, dataset)
    params = PARAMS if known else PARAMS.model_copy(update={"termination": "learned"})
    device = algorithm.update_count.device
    model = ensemble_model(dataset.spaces.obs_dim, dataset.spaces.action_dim, params).to(device)
    parameters, decays = trained_parameters(model, params)
    optimizer = FusedAdam(parameters, params.model_lr, decays)

    def after(epoch: FitEpoch) -> None:
        optimizer.lr.fill_(params.model_lr * _share_left(epoch.epoch))
        if on_update is not None:
            on_update(epoch.epoch, EPOCHS)

    rows = Batch(
        obs=torch.from_numpy(dataset.observations).to(device),
        action=_as_input(
            torch.from_numpy(np.asarray(dataset.spaces.from_env(dataset.actions))).to(device),
            dataset.spaces,
        ),
        reward=torch.from_numpy(dataset.rewards).float().to(device),
        next_obs=torch.from_numpy(dataset.next_observations).to(device),
        discount=torch.from_numpy(~dataset.terminations).float().to(device),
    )
    fit(model, optimizer, rows, params, after, BETA)
    return model, known or model.ends


def _share_left(epoch: int) -> float:
    """Of the learning rate after an epoch: half a cosine, from 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * epoch / EPOCHS))


def _known_ends(
    config: TrainConfig, dataset: TransitionDataset
) -> Callable[[Tensor], Tensor] | None:
    """Where episodes end, by the task or because none of the log does; None: to be learned."""
    if not dataset.terminations.any():
        return never
    try:
        return termination_for("auto", config.env_id, config.task_kwargs, config.train_env_kwargs)
    except ConfigError:  # no task whose ends are known
        return None


def _as_input(actions: Tensor, spaces: Spaces) -> Tensor:
    """As the model takes actions: Discrete ones as indicators."""
    return F.one_hot(actions, spaces.action_dim).float() if spaces.is_discrete else actions


@dataclass(frozen=True, eq=False)
class _Bounds:
    low: Tensor
    high: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(values, self.low), self.high)


class _World:
    """A model whose states and rewards stay within those of a log."""

    def __init__(
        self,
        model: MLPMOPOEnsembleModel,
        ends: Callable[[Tensor], Tensor],
        dataset: TransitionDataset,
        device: torch.device,
    ) -> None:
        self.model, self.ends = model, ends
        seen = (dataset.observations.min(0), dataset.observations.max(0))
        self.states = _Bounds(*(torch.from_numpy(x).to(device) for x in seen))
        paid = (dataset.rewards.min(), dataset.rewards.max())
        self.rewards = _Bounds(*(torch.tensor(float(x), device=device) for x in paid))


@torch.no_grad()
def _returns(
    world: _World, algorithm: Algorithm, dataset: TransitionDataset, options: Options
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(elites, starts) mean discounted returns of imagined episodes."""
    policy, spaces = algorithm.acting_policy, dataset.spaces
    drawn = options.stochastic and policy.has_density

    def act(obs: Tensor) -> Tensor:
        seen = algorithm.network_input(obs)
        return _as_input(policy.sample(seen) if drawn else policy.mode(seen), spaces)

    first = torch.from_numpy(dataset.observations[dataset.episode_starts])
    repeats = math.ceil(EPISODES / len(first))
    device = algorithm.update_count.device
    starts = first.repeat_interleave(repeats, 0).to(device)
    model, found = world.model, []
    elites = model.elites.clone()
    for elite in elites:
        model.elites.fill_(elite)  # every row by this one
        found.append(_imagined(world, act, starts, options).view(len(first), repeats).mean(1))
    model.elites.copy_(elites)
    return torch.stack(found).double().cpu().numpy()


def _imagined(
    world: _World, act: Callable[[Tensor], Tensor], obs: Tensor, options: Options
) -> Tensor:
    """(B,) discounted returns from (B, O) raw observations."""
    total = torch.zeros(len(obs), device=obs.device)
    going = torch.arange(len(obs), device=obs.device)
    discount = 1.0
    for _ in range(horizon_of(options)):
        if not len(going):
            break
        batch, _ = next(rollouts(world.model, act, world.ends, world.states(obs), 1, options.gamma))
        total[going] += discount * world.rewards(batch.reward)
        discount *= options.gamma
        lives = batch.discount > 0.0
        obs, going = batch.next_obs[lives], going[lives]
    return total
