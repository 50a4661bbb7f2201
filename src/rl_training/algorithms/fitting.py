"""Fits a dynamics model to transitions.

Kept of Janner, Fu, Zhang and Levine 2019, arXiv:1906.08253: a bootstrap sample per member, a new
random holdout in every fit, early stopping with one snapshot per member, elites chosen by their
squared error on the holdout, weights continued from the last fit. Changed: a member's holdout
error is the geometric mean over reward and state components instead of the arithmetic one; Adam
is reset in every fit, because its moments do not match the gradients after a change of the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.dynamics import (
    ModelParams,
    dynamics_loss,
    termination_cut,
    termination_loss,
)
from rl_training.algorithms.functional import Metrics, clipped_gradients
from rl_training.algorithms.optim import FusedAdam
from rl_training.experiment.errors import TrainingDivergedError
from rl_training.models import MLPMOPOEnsembleModel, Prediction
from rl_training.replay.batch import Batch

IMPROVEMENT = 0.01
"""Relative decrease of a member's holdout error that is needed for a new snapshot."""
PRECISE = 1e-6
"""Squared error, for targets of variance 1, below which a column counts as solved."""

DIVERGED = 100.0
"""A member has diverged above this multiple of the squared error of predicting the mean."""


@dataclass(frozen=True)
class FitEpoch:
    """The result of one epoch of a fit."""

    epoch: int
    holdout_error: tuple[float, ...]
    """Squared error of every member, in standardised units."""
    improved: tuple[bool, ...]
    """Members whose snapshot was updated."""


@dataclass(frozen=True)
class FitReport:
    """The result of a fit."""

    epochs: int
    rows: int
    """Number of training transitions."""
    metrics: dict[str, float]
    """Errors and calibration of the elites on the holdout, in standardised units."""


class Snapshots:
    """The best weights of every member so far, including its termination head, saved and restored
    per member."""

    def __init__(self, model: MLPMOPOEnsembleModel) -> None:
        nets = [net for net in (model.net, model.termination) if net is not None]
        self.parameters = [parameter for net in nets for parameter in net.parameters()]
        self.best = torch.full((model.num_members,), math.inf, device=model.elites.device)
        self.saved = [parameter.detach().clone() for parameter in self.parameters]

    def take(self, error: Tensor) -> Tensor:
        """Save the members whose `error` is clearly below their best; returns a (members,) mask."""
        # the first error is always better; inf - inf would be NaN
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

    All fits share the tensors that hold the rows, with a cursor that every step advances, so that
    an engine can run a step (`update`) without a host sync. `optimizer` is over
    `trained_parameters`; `beta` is that of `dynamics_loss`.
    """

    def __init__(
        self,
        model: MLPMOPOEnsembleModel,
        optimizer: FusedAdam,
        params: ModelParams,
        capacity: int,
        beta: float = 0.0,
    ) -> None:
        self.model, self.optimizer, self.params, self.beta = model, optimizer, params, beta
        self.device = model.elites.device
        self.slow_to_compile, self.fuses, self.cycle = False, False, 1
        width, obs_dim = model.targets.mean.shape[0], model.obs_dim

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.inputs = zeros(capacity, model.inputs.mean.shape[0])
        self.targets = zeros(capacity, width)
        classified = capacity if model.termination is not None else 0
        self.next_obs, self.ended = zeros(classified, obs_dim), zeros(classified)
        self.order = zeros(model.num_members, capacity, dtype=torch.long)
        self.end_order = zeros(model.num_members, classified, dtype=torch.long)
        self.cursor = zeros(dtype=torch.long)
        self.failed = zeros(model.num_members, dtype=torch.bool)
        self._places = torch.arange(params.model_batch_size, device=self.device)
        self._step: Callable[[], Metrics] = self._next_step

    @staticmethod
    def memory_needed(model: MLPMOPOEnsembleModel, capacity: int) -> int:
        """Bytes that fits to `capacity` transitions need on the model's device.

        Includes temporary memory: the bootstrap, its shuffled order and that of the sorting.
        """
        columns, orders = model.inputs.mean.shape[0] + model.targets.mean.shape[0], 4
        if model.termination is not None:
            columns, orders = columns + model.obs_dim + 1, orders + 1
        return capacity * (4 * columns + orders * 8 * model.num_members)

    def fit(
        self,
        data: Batch,
        run: Callable[[int], Any] | None = None,
        on_epoch: Callable[[FitEpoch], None] | None = None,
    ) -> FitReport:
        """Fit the model to all of `data`, continuing from its weights, and choose the elites.

        Adam is reset: the moments of the last fit's gradients would make the first steps after a
        change of the data too large.

        Stops when no member has improved for more than `model_patience` epochs; every member
        then gets the weights of its best epoch. `run` runs a number of `update` steps, one after
        the other by default.
        """
        model, params, rows = self.model, self.params, data.reward.shape[0]
        params.refuse_small_data(rows, "dataset")
        order = torch.randperm(rows, device=self.device)
        held, learned = order[: params.holdout_rows(rows)], order[params.holdout_rows(rows) :]
        inputs, targets = self._take(data, learned)
        self.optimizer.start_over()
        shape = (model.num_members, len(learned))
        bootstrap = learned[torch.randint(len(learned), shape, device=self.device)]
        snapshots = Snapshots(model)
        self.failed.fill_(False)
        epoch = since_better = 0
        while since_better <= params.model_patience and epoch != params.model_max_epochs:
            epoch += 1
            shuffled = torch.rand(shape, device=self.device).argsort(1)
            bootstrap = bootstrap.gather(1, shuffled)
            self._draw_ends(learned)
            self._go_through(bootstrap, run)
            error = holdout_error(model, inputs[held], targets[held])
            failed = torch.where(self.failed.any(), self.failed, ~torch.isfinite(error))
            _refuse_divergence(failed, epoch, "its loss became NaN or infinite")
            better = snapshots.take(error)
            since_better = 0 if bool(better.any()) else since_better + 1
            if on_epoch is not None:
                on_epoch(FitEpoch(epoch, tuple(error.tolist()), tuple(better.tolist())))
        most = DIVERGED * max(1.0, float(geometric_mean(targets[held].square().mean(0))))
        why = f"its error is above {DIVERGED:g} times that of predicting the mean"
        _refuse_divergence(snapshots.best > most, epoch, why)
        snapshots.restore()
        model.holdout_error.copy_(snapshots.best)
        model.elites.copy_(snapshots.best.argsort()[: model.num_elites])
        metrics = holdout_metrics(model, inputs[held], targets[held])
        if model.termination is not None:
            self._set_cuts(learned)
            found = model.ends(self.next_obs[held])
            metrics |= termination_metrics(found, self.ended[held] == 1.0)
        return FitReport(epoch, len(learned), metrics)

    def _take(self, data: Batch, learned: Tensor) -> tuple[Tensor, Tensor]:
        """Standardise by the training rows `learned`; returns inputs and targets of all rows."""
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

    @torch.no_grad()
    def _set_cuts(self, learned: Tensor) -> None:
        ended = self.ended[learned] == 1.0
        logits = self.model.termination_logits(self.next_obs[learned[ended]])
        self.model.termination_cut.copy_(termination_cut(logits, len(learned) - logits.shape[1]))

    def _draw_ends(self, learned: Tensor) -> None:
        """Sample the rows for the termination heads in an epoch: terminal and other rows in
        alternation, with replacement from the training rows; any rows if only one kind exists."""
        if self.model.termination is None:
            return
        ended = self.ended[learned] == 1.0
        for first, chosen in enumerate((learned[ended], learned[~ended])):
            places = self.end_order[:, first : len(learned) : 2]
            rows = chosen if len(chosen) else learned
            places.copy_(rows[torch.randint(len(rows), places.shape, device=self.device)])

    def _go_through(self, order: Tensor, run: Callable[[int], Any] | None) -> None:
        """Run steps on all rows of the (members, N) `order`; the last one may be smaller."""
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
            self._step_on(torch.arange(whole * size, rows, device=self.device))

    def _next_step(self) -> Metrics:
        self._step_on(self._places + self.cursor)
        self.cursor += len(self._places)
        return {}

    def _step_on(self, places: Tensor) -> None:
        """One step on the rows at some positions of the epoch's order."""
        index, ends = self.order.index_select(1, places), None
        if self.model.termination is not None:
            seen = self.end_order.index_select(1, places)
            ends = (self.next_obs[seen], self.ended[seen])
        inputs, targets = self.inputs[index], self.targets[index]
        losses = fit_step(self.model, self.optimizer, self.params, inputs, targets, ends, self.beta)
        # the first member to fail: through the shared bounds the others soon follow
        self.failed.copy_(torch.where(self.failed.any(), self.failed, ~torch.isfinite(losses)))

    # --- for an engine ------------------------------------------------------------------------

    def phase(self) -> int:
        return 0

    def attached(self) -> AbstractContextManager[None]:
        return nullcontext()

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
    beta: float = 0.0,
) -> FitReport:
    """One fit of a model (`Fitting.fit`)."""
    fitting = Fitting(model, optimizer, params, len(data.reward), beta)
    return fitting.fit(data, on_epoch=on_epoch)


def fit_step(
    model: MLPMOPOEnsembleModel,
    optimizer: FusedAdam,
    params: ModelParams,
    inputs: Tensor,
    targets: Tensor,
    ends: tuple[Tensor, Tensor] | None = None,
    beta: float = 0.0,
) -> Tensor:
    """One step of every member on its own standardised (members, B, ...) rows.

    `ends` are raw next observations and whether they are terminal: separate rows for the learned
    classifier; `beta` is that of `dynamics_loss`. Returns the (members,) losses of the dynamics.
    """
    prediction: Prediction = model(inputs)
    total, metrics = dynamics_loss(
        prediction.mean, prediction.log_var, targets, model.max_log_var, model.min_log_var, beta
    )
    if ends is not None:
        total = total + termination_loss(model.termination_logits(ends[0]), ends[1]).total
    gradients = list(torch.autograd.grad(total, optimizer.parameters))
    if params.grad_clip is not None:
        gradients = clipped_gradients(gradients, params.grad_clip)
    optimizer.step(gradients)
    return metrics["member_losses"].detach()


@torch.no_grad()
def holdout_error(model: MLPMOPOEnsembleModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """(members,) mean squared error of standardised targets, geometric mean over their columns.

    In an arithmetic mean a column of noise would hide the progress of the others, and the fit
    would stop long before their standard deviations are right.
    """
    by_column: Tensor = (model(inputs).mean - targets).square().mean(1)
    return geometric_mean(by_column)


def geometric_mean(errors: Tensor) -> Tensor:
    """The geometric mean of squared errors over the last axis."""
    return (errors + PRECISE).log().mean(-1).exp()


@torch.no_grad()
def holdout_metrics(
    model: MLPMOPOEnsembleModel, inputs: Tensor, targets: Tensor
) -> dict[str, float]:
    """Error, likelihood and calibration of the elites.

    `calibration` is the fraction of targets within one predicted standard deviation of the
    mean: 0.68 if the standard deviations are right, less if the model is overconfident.
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


def termination_metrics(found: Tensor, ended: Tensor) -> dict[str, float]:
    """Precision and recall of (B,) booleans, each if it is defined.

    Terminations are rare, so accuracy says little: it is high even if none is found.
    """
    right = float((found & ended).sum())
    counts = {"recall": float(ended.sum()), "precision": float(found.sum())}
    return {f"termination_{name}": right / count for name, count in counts.items() if count}


def _refuse_divergence(failed: Tensor, epoch: int, why: str) -> None:
    if bool(failed.any()):
        member = int(failed.nonzero()[0])
        raise TrainingDivergedError(
            f"member {member} of the dynamics model has diverged in epoch {epoch} of its fit "
            f"({why}); lower algo_kwargs.model_lr, or set algo_kwargs.grad_clip"
        )
