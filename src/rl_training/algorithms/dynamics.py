"""Learning a model of the dynamics: its knobs, its loss, its fit, and rollouts in it.

Chua, Calandra, McAllister and Levine 2018, arXiv:1805.12114 (the ensemble); Janner, Fu, Zhang
and Levine 2019, arXiv:1906.08253 (how MBPO fits and uses it).

Kept: Gaussian members with learned bounds of the log-variance, a bootstrap per member, weight
decay per layer, a holdout drawn anew at every fit, early stopping with one snapshot per
member, elites by their squared error on the holdout, weights that go on from the last fit.

Deviates: targets are standardised, reward and states apart, so that the likelihood starves
neither; bounds and errors are in those units. A member's squared error on the holdout is the
geometric mean over reward and state components, not the arithmetic one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.base import DiscountedParams, refuse_missing_part
from rl_training.algorithms.functional import Loss, Metrics, clipped_gradients
from rl_training.algorithms.optim import FusedAdam
from rl_training.data.batch import Batch
from rl_training.experiment.config import (
    Count,
    Fraction,
    HiddenSizes,
    Interval,
    NonNegative,
    Positive,
)
from rl_training.experiment.errors import ConfigError, TrainingDivergedError
from rl_training.models import MLPMOPOEnsembleModel, Prediction

BOUND_COEF = 0.01
"""Weight of the distance between the bounds of the log-variance."""
IMPROVEMENT = 0.01
"""Share by which a member's holdout error has to fall for a new snapshot."""
PRECISE = 1e-6
"""Squared error, of a variance of 1, below which a column counts as known."""

Decays = Annotated[tuple[NonNegative, ...], Field(min_length=1, strict=False)]
Epochs = Annotated[tuple[Interval, Interval], Field(strict=False)]


class ModelParams(DiscountedParams):
    """Knobs of the model and of what is imagined in it."""

    num_members: Count = 7
    """Models in the ensemble."""
    num_elites: Count = 5
    """Models that imagine: those with the smallest error on the holdout."""
    model_hidden_sizes: HiddenSizes = (200, 200, 200, 200)
    """Widths of the hidden layers of every model."""
    model_lr: Positive = 1e-3
    """Learning rate of the models."""
    model_batch_size: Count = 256
    """Transitions per step of a fit, for every model."""
    model_weight_decay: Decays = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    """Weight decay from the first to the last layer; spread evenly over any other depth."""
    holdout_ratio: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Share of the data that a fit is judged by instead of learning from it."""
    max_holdout: Count = 5_000
    """Most transitions in the holdout."""
    model_patience: Count = 5
    """Epochs without a better model after which a fit stops."""
    model_max_epochs: Count | None = None
    """Most epochs of a fit; none by default."""
    termination: str = "auto"
    """What ends imagined episodes: auto, a known task, learned, never, or package.module:name."""
    rollout_batch_size: Count = 100_000
    """Imagined rollouts that are begun at once, in states of the real data."""
    rollout_length: Count = 1
    """Steps of a rollout, at the beginning."""
    final_rollout_length: Count | None = None
    """Steps of a rollout after it has grown; as at the beginning by default."""
    rollout_growth: Epochs = (20, 150)
    """Epochs between which the length grows, evenly."""
    epoch_length: Count = 1_000
    """Environment steps, or updates where there is no environment, that count as an epoch."""
    retain_epochs: Count = 1
    """Epochs for which imagined transitions are kept."""
    model_buffer_capacity: Count | None = None
    """Most imagined transitions that are kept; as many as retain_epochs says by default."""
    real_ratio: Fraction = 0.05
    """Share of every minibatch that is real, to the nearest whole row."""

    @property
    def widest_layer(self) -> int:
        return max(super().widest_layer, *self.model_hidden_sizes)

    @property
    def real_rows(self) -> int:
        """Real rows in every minibatch."""
        return round(self.batch_size * self.real_ratio)

    @field_validator("num_elites")
    @classmethod
    def _elites_exist(cls, chosen: int, info: ValidationInfo) -> int:
        have = info.data.get("num_members", chosen)  # absent where it was refused itself
        if chosen > have:
            raise ValueError(
                f"{chosen} elites cannot be chosen from the {have} of num_members; set at most "
                f"{have}, or raise num_members"
            )
        return chosen

    @field_validator("rollout_growth")
    @classmethod
    def _grows_forward(cls, epochs: tuple[int, int]) -> tuple[int, int]:
        if epochs[0] >= epochs[1]:
            raise ValueError(f"the first epoch must come before the last, got {list(epochs)}")
        return epochs

    @field_validator("real_ratio")
    @classmethod
    def _both_parts_fit(cls, ratio: float, info: ValidationInfo) -> float:
        refuse_missing_part(info.data.get("batch_size", 0), ratio)
        return ratio

    def length_at(self, epoch: int) -> int:
        """Steps of a rollout that begins in `epoch`."""
        first, last = self.rollout_growth
        end = (
            self.rollout_length if self.final_rollout_length is None else self.final_rollout_length
        )
        share = min(max((epoch - first) / (last - first), 0.0), 1.0)
        return math.floor(self.rollout_length + share * (end - self.rollout_length) + 1e-9)

    @property
    def longest(self) -> int:
        """Steps of the longest rollout of a run."""
        return max(self.rollout_length, self.final_rollout_length or 0)

    def holdout_rows(self, rows: int) -> int:
        """Of `rows` transitions those that a fit is judged by."""
        return min(int(rows * self.holdout_ratio), self.max_holdout)

    def refuse_small_data(self, rows: int, key: str) -> None:
        """Refuse data of which no part could be held out, or nothing be left to learn from."""
        if not 0 < self.holdout_rows(rows) < rows:
            raise ConfigError(
                f"{key}: {rows:,} transitions are too few to hold out the share "
                f"{self.holdout_ratio:g} of algo_kwargs.holdout_ratio from the model's fit; give "
                f"at least {math.ceil(1.0 / self.holdout_ratio):,}, or raise holdout_ratio"
            )


# --- the model and its loss ------------------------------------------------------------------


def ensemble_model(obs_dim: int, action_dim: int, params: ModelParams) -> MLPMOPOEnsembleModel:
    """The model that the knobs describe."""
    return MLPMOPOEnsembleModel(
        obs_dim,
        action_dim,
        params.model_hidden_sizes,
        params.num_members,
        params.num_elites,
        params.termination == "learned",
    )


def trained_parameters(
    model: MLPMOPOEnsembleModel, params: ModelParams
) -> tuple[list[nn.Parameter], list[float]]:
    """What a fit changes, and the weight decay of each: of weights by layer, of the rest none."""
    parameters, decays = list(model.parameters()), []
    by_weight = {
        id(weight): layer_decays(params.model_weight_decay, len(net.weights))[layer]
        for net in (model.net, model.termination)
        if net is not None
        for layer, weight in enumerate(net.weights)
    }
    decays = [by_weight.get(id(parameter), 0.0) for parameter in parameters]
    return parameters, decays


def layer_decays(given: tuple[float, ...], layers: int) -> list[float]:
    """One decay per layer from values that go from the first to the last."""
    last = max(layers - 1, 1)
    return [given[round(layer * (len(given) - 1) / last)] for layer in range(layers)]


def dynamics_loss(
    mean: Tensor, log_var: Tensor, target: Tensor, max_log_var: Tensor, min_log_var: Tensor
) -> Loss:
    """sum_m mean((mean_m - y)^2 exp(-log_var_m) + log_var_m) + 0.01 sum(max - min).

    `mean`, `log_var` and `target` are (members, B, D), the bounds (D,). The metric
    `member_losses` (members,) are the terms of the first sum.
    """
    assert mean.shape == log_var.shape == target.shape, (mean.shape, target.shape)
    error = (mean - target).square()
    likelihoods = (error * torch.exp(-log_var) + log_var).mean((1, 2))
    bounds = (max_log_var - min_log_var).sum()
    return Loss(likelihoods.sum() + BOUND_COEF * bounds, {"member_losses": likelihoods})


# --- fitting ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FitEpoch:
    """What one epoch of a fit has reached."""

    epoch: int
    holdout_error: tuple[float, ...]
    """Squared error of every member, in standardised units."""
    improved: tuple[bool, ...]
    """Members of which a snapshot was taken."""


@dataclass(frozen=True)
class FitReport:
    """What a fit has reached."""

    epochs: int
    rows: int
    """Transitions that were learned from."""
    metrics: dict[str, float]
    """Errors and calibration of the elites on the holdout, in standardised units."""


class Snapshots:
    """The best weights of every member so far, taken and restored member by member."""

    def __init__(self, model: MLPMOPOEnsembleModel) -> None:
        self.parameters = [*model.net.weights, *model.net.biases]
        self.best = torch.full((model.num_members,), math.inf, device=model.elites.device)
        self.saved = [parameter.detach().clone() for parameter in self.parameters]

    def take(self, error: Tensor) -> Tensor:
        """Keep the members whose `error` is clearly below their best; which ones, (members,)."""
        # the first error is always better; inf - inf would be no number
        better = error < self.best * (1.0 - IMPROVEMENT)
        self.best = torch.where(better, error, self.best)
        for saved, parameter in zip(self.saved, self.parameters, strict=True):
            saved[better] = parameter.detach()[better]
        return better

    @torch.no_grad()
    def restore(self) -> None:
        for saved, parameter in zip(self.saved, self.parameters, strict=True):
            parameter.copy_(saved)


class Fitting:
    """The fits of one model, to at most `capacity` transitions each.

    The rows of a fit lie in tensors that all fits share, with a cursor that every step moves on,
    so that an engine may take a step (`update`) as one piece of device work. `optimizer` is over
    `trained_parameters`.
    """

    def __init__(
        self,
        model: MLPMOPOEnsembleModel,
        optimizer: FusedAdam,
        params: ModelParams,
        capacity: int,
    ) -> None:
        self.model, self.optimizer, self.params = model, optimizer, params
        self.device, self.slow_to_compile = model.elites.device, False
        width, obs_dim = model.targets.mean.shape[0], model.obs_dim

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.inputs = zeros(capacity, model.inputs.mean.shape[0])
        self.targets = zeros(capacity, width)
        classified = capacity if model.termination is not None else 0
        self.next_obs, self.ended = zeros(classified, obs_dim), zeros(classified)
        self.order = zeros(model.num_members, capacity, dtype=torch.long)
        self.cursor = zeros(dtype=torch.long)
        self.failed = zeros(model.num_members, dtype=torch.bool)
        self._places = torch.arange(params.model_batch_size, device=self.device)
        self._step: Callable[[], Metrics] = self._next_step

    def fit(
        self,
        data: Batch,
        run: Callable[[int], Any] | None = None,
        on_epoch: Callable[[FitEpoch], None] | None = None,
    ) -> FitReport:
        """Fit the model to all of `data`, going on from its weights, and choose the elites.

        Stops when no member has improved for more than `model_patience` epochs; every member
        then has the weights of its best epoch. `run` takes so many steps of `update`; one
        after the other by default.
        """
        model, params, rows = self.model, self.params, data.reward.shape[0]
        params.refuse_small_data(rows, "dataset")
        order = torch.randperm(rows, device=self.device)
        held, learned = order[: params.holdout_rows(rows)], order[params.holdout_rows(rows) :]
        inputs, targets = self._take(data, learned)
        shape = (model.num_members, len(learned))
        bootstrap = learned[torch.randint(len(learned), shape, device=self.device)]
        snapshots = Snapshots(model)
        self.failed.fill_(False)
        epoch = since_better = 0
        while since_better <= params.model_patience and epoch != params.model_max_epochs:
            epoch += 1
            shuffled = torch.rand(shape, device=self.device).argsort(1)
            bootstrap = bootstrap.gather(1, shuffled)
            self._go_through(bootstrap, run)
            error = holdout_error(model, inputs[held], targets[held])
            failed = torch.where(self.failed.any(), self.failed, ~torch.isfinite(error))
            _refuse_divergence(failed, epoch)
            better = snapshots.take(error)
            since_better = 0 if bool(better.any()) else since_better + 1
            if on_epoch is not None:
                on_epoch(FitEpoch(epoch, tuple(error.tolist()), tuple(better.tolist())))
        snapshots.restore()
        model.holdout_error.copy_(snapshots.best)
        model.elites.copy_(snapshots.best.argsort()[: model.num_elites])
        metrics = holdout_metrics(model, inputs[held], targets[held])
        if model.termination is not None:
            wrong = model.ends(data.next_obs[held]) != (data.discount[held] == 0.0)
            metrics["termination_error"] = float(wrong.float().mean())
        return FitReport(epoch, len(learned), metrics)

    def _take(self, data: Batch, learned: Tensor) -> tuple[Tensor, Tensor]:
        """Standardise by the rows that are `learned` from; the inputs and targets of all."""
        model, rows = self.model, data.reward.shape[0]
        inputs = torch.cat([data.obs, data.action], -1)
        targets = torch.cat([data.reward[:, None], data.next_obs - data.obs], -1)
        model.inputs.set_from(inputs[learned])
        model.targets.set_from(targets[learned])
        self.inputs[:rows] = model.inputs(inputs)
        self.targets[:rows] = model.targets(targets)
        if model.termination is not None:
            self.next_obs[:rows] = data.next_obs
            self.ended[:rows] = (data.discount == 0.0).float()
        return self.inputs[:rows], self.targets[:rows]

    def _go_through(self, order: Tensor, run: Callable[[int], Any] | None) -> None:
        """Steps on all rows of the (members, N) `order`, of which the last may be smaller."""
        rows, size = order.shape[1], self.params.model_batch_size
        self.order[:, :rows] = order
        self.cursor.zero_()
        whole = rows // size
        if run is None:
            for _ in range(whole):
                self.update()
        elif whole:
            run(whole)
        if rows % size:
            self._step_on(order[:, whole * size :])

    def _next_step(self) -> Metrics:
        index = self.order.index_select(1, self._places + self.cursor)
        self.cursor += len(self._places)
        self._step_on(index)
        return {}

    def _step_on(self, index: Tensor) -> None:
        ends = None
        if self.model.termination is not None:
            ends = (self.next_obs[index], self.ended[index])
        losses = fit_step(
            self.model, self.optimizer, self.params, self.inputs[index], self.targets[index], ends
        )
        # the first to fail: through the common bounds it soon takes the others with it
        self.failed.copy_(torch.where(self.failed.any(), self.failed, ~torch.isfinite(losses)))

    # --- for an engine ------------------------------------------------------------------------

    def prepare(self) -> None:
        return None

    def update(self) -> Metrics:
        return self._step()

    def compile(self, compiled: Callable[[Callable[..., Metrics]], Callable[..., Metrics]]) -> None:
        self._step = compiled(self._step)

    def tensors(self) -> list[Tensor]:
        own = [*self.optimizer.parameters, *self.optimizer.tensors()]
        return [*own, self.cursor, self.failed]


def fit(
    model: MLPMOPOEnsembleModel,
    optimizer: FusedAdam,
    data: Batch,
    params: ModelParams,
    on_epoch: Callable[[FitEpoch], None] | None = None,
) -> FitReport:
    """One fit of a model (`Fitting.fit`)."""
    return Fitting(model, optimizer, params, len(data.reward)).fit(data, on_epoch=on_epoch)


def fit_step(
    model: MLPMOPOEnsembleModel,
    optimizer: FusedAdam,
    params: ModelParams,
    inputs: Tensor,
    targets: Tensor,
    ends: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """One step of every member on its own standardised (members, B, ...) rows.

    `ends` are raw next observations and whether they are terminal, for the learned classifier.
    Gives the (members,) losses of the dynamics.
    """
    prediction: Prediction = model(inputs)
    total, metrics = dynamics_loss(
        prediction.mean, prediction.log_var, targets, model.max_log_var, model.min_log_var
    )
    if ends is not None:
        logits = model.termination_logits(ends[0])
        losses = F.binary_cross_entropy_with_logits(logits, ends[1], reduction="none")
        total = total + losses.mean(1).sum()
    gradients = list(torch.autograd.grad(total, optimizer.parameters))
    if params.grad_clip is not None:
        gradients = clipped_gradients(gradients, params.grad_clip)
    optimizer.step(gradients)
    return metrics["member_losses"].detach()


@torch.no_grad()
def holdout_error(model: MLPMOPOEnsembleModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """(members,) mean squared error of standardised targets, geometric mean over their columns.

    In an arithmetic mean a column of noise would hide what the others still gain, and the fit
    would stop long before their deviations are right.
    """
    by_column: Tensor = (model(inputs).mean - targets).square().mean(1)
    return (by_column + PRECISE).log().mean(1).exp()


@torch.no_grad()
def holdout_metrics(
    model: MLPMOPOEnsembleModel, inputs: Tensor, targets: Tensor
) -> dict[str, float]:
    """Error, likelihood and calibration of the elites.

    `calibration` is the share of targets within one predicted deviation of the mean: 0.68
    where the deviations are right, less where the model is too sure of itself.
    """
    mean, log_var = model(inputs)
    mean, log_var = mean[model.elites], log_var[model.elites]
    error = (mean - targets).square()
    within = error <= log_var.exp()
    values = {
        "mse": error.mean(),
        "mse_reward": error[..., 0].mean(),
        "mse_state": error[..., 1:].mean(),
        "nll": 0.5 * (error * torch.exp(-log_var) + log_var).mean(),
        "calibration": within.float().mean(),
        "disagreement": mean.std(0, correction=0).mean(),
    }
    return {name: float(value) for name, value in values.items()}


def _refuse_divergence(failed: Tensor, epoch: int) -> None:
    if bool(failed.any()):
        member = int(failed.nonzero()[0])
        raise TrainingDivergedError(
            f"member {member} of the dynamics model has diverged in epoch {epoch} of its fit (its "
            "loss became NaN or infinite); lower algo_kwargs.model_lr, or set "
            "algo_kwargs.grad_clip"
        )


# --- imagining -------------------------------------------------------------------------------


def rollouts(
    model: MLPMOPOEnsembleModel,
    act: Callable[[Tensor], Tensor],
    ends: Callable[[Tensor], Tensor],
    obs: Tensor,
    length: int,
    gamma: float,
    with_spread: bool = False,
) -> Iterator[tuple[Batch, Tensor | None]]:
    """Up to `length` steps from (B, O) states, and the spread of each step's predictions.

    `act` gives actions, `ends` says of the imagined next states which are terminal; their
    rollouts end there. All rows of a step are computed together.
    """
    for step in range(length):
        if not len(obs):
            return
        action = act(obs)
        reward, next_obs, spread = model.imagine(obs, action, with_spread)
        if not bool(torch.isfinite(next_obs).all() & torch.isfinite(reward).all()):
            raise TrainingDivergedError(
                f"imagined states became NaN or infinite at step {step + 1} of a rollout; lower "
                "algo_kwargs.rollout_length or algo_kwargs.model_lr"
            )
        ended = ends(next_obs)
        discount = torch.where(ended, 0.0, gamma)
        yield Batch(obs, action, reward, next_obs, discount), spread
        obs = next_obs[~ended]
