"""The learned dynamics model: its knobs, its loss and rollouts in it; `fitting` fits it.

Chua, Calandra, McAllister and Levine 2018, arXiv:1805.12114 (the ensemble); Janner, Fu, Zhang
and Levine 2019, arXiv:1906.08253 (how MBPO uses it).

Kept: Gaussian members with learned bounds of the log-variance, weight decay per layer.
Changed: rewards and states are standardised separately, so that the likelihood neglects
neither; bounds and errors are in those units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.functional import Loss
from rl_training.algorithms.params import DiscountedParams, LearningRate, refuse_missing_part
from rl_training.experiment.config import (
    Count,
    Fraction,
    HiddenSizes,
    NonNegative,
    NonNegativeInt,
)
from rl_training.experiment.errors import ConfigError, TrainingDivergedError
from rl_training.experiment.ranges import Choices
from rl_training.models import MLPMOPOEnsembleModel
from rl_training.models.dynamics import Uncertainty
from rl_training.replay.batch import Batch

BOUND_COEF = 0.01
"""Weight of the distance between the bounds of the log-variance."""

MISSED_ENDS = 0.02
"""Fraction of the training terminations that may be missed in exchange for fewer false ones."""

Decays = Annotated[tuple[NonNegative, ...], Field(min_length=1, strict=False)]
Epochs = Annotated[tuple[NonNegativeInt, NonNegativeInt], Field(strict=False)]


class ModelParams(DiscountedParams):
    """Knobs of the model and of imagined rollouts."""

    num_members: Count = 7
    """Models in the ensemble."""
    num_elites: Count = 5
    """Models used for imagined steps: those with the smallest error on the holdout."""
    model_hidden_sizes: HiddenSizes = (200, 200, 200, 200)
    """Widths of the hidden layers of every model."""
    model_lr: LearningRate = 1e-3
    """Learning rate of the models."""
    model_batch_size: Count = 256
    """Transitions per step of a fit, for every model."""
    model_weight_decay: Decays = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    """Weight decay from the first to the last layer; spread evenly over any other depth."""
    holdout_ratio: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Fraction of the data that is held out of a fit to evaluate it."""
    max_holdout: Count = 5_000
    """Maximum number of transitions in the holdout."""
    model_patience: Count = 5
    """Epochs without improvement after which a fit stops."""
    model_max_epochs: Count | None = None
    """Maximum number of epochs of a fit; no limit by default."""
    termination: str = "auto"
    """Ends of imagined episodes: auto, a known task, learned, never, or package.module:name."""
    rollout_batch_size: Count = 100_000
    """Imagined rollouts that start together, in states of the real data."""
    rollout_length: Count = 1
    """Steps of a rollout at the start of the run."""
    final_rollout_length: Count | None = None
    """Steps of a rollout at the end of the growth; as at the start by default."""
    rollout_growth: Epochs = (20, 150)
    """Epochs between which the length grows linearly."""
    epoch_length: Count = 1_000
    """Environment steps, or updates without an environment, that count as one epoch."""
    retain_epochs: Count = 1
    """Epochs for which imagined transitions are kept."""
    model_buffer_capacity: Count | None = None
    """Maximum number of imagined transitions kept; follows from retain_epochs by default."""
    real_ratio: Annotated[Fraction, Choices((0.05, 0.2, 0.5))] = 0.05
    """Fraction of every minibatch that is real, to the nearest row."""

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
        have = info.data.get("num_members", chosen)  # absent if it was refused itself
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
        """Steps of a rollout that starts in `epoch`."""
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
        """The number of held-out transitions out of `rows`."""
        return min(int(rows * self.holdout_ratio), self.max_holdout)

    def refuse_small_data(self, rows: int, key: str) -> None:
        """Raise an error if the data are too few to split into training rows and a holdout."""
        if not 0 < self.holdout_rows(rows) < rows:
            raise ConfigError(
                f"{key}: {rows:,} transitions are too few to hold out the share "
                f"{self.holdout_ratio:g} of algo_kwargs.holdout_ratio from the model's fit; give "
                f"at least {math.ceil(1.0 / self.holdout_ratio):,}, or raise holdout_ratio"
            )


# --- the model and its loss ------------------------------------------------------------------


def ensemble_model(obs_dim: int, action_dim: int, params: ModelParams) -> MLPMOPOEnsembleModel:
    """Make the model that the knobs describe."""
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
    """The parameters that a fit trains and their weight decays: by layer for weights, else 0."""
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
    """Interpolate the given values to one weight decay per layer, first to last."""
    last = max(layers - 1, 1)
    return [given[round(layer * (len(given) - 1) / last)] for layer in range(layers)]


def dynamics_loss(
    mean: Tensor,
    log_var: Tensor,
    target: Tensor,
    max_log_var: Tensor,
    min_log_var: Tensor,
    beta: float = 0.0,
) -> Loss:
    """sum_m mean((mean_m - y)^2 exp(-log_var_m) + log_var_m) + 0.01 sum(max - min).

    `mean`, `log_var` and `target` are (members, B, D), the bounds (D,). The metric
    `member_losses` (members,) are the terms of the first sum.

    With `beta` every term is weighted by its predicted variance to the power of `beta`, a
    constant. The likelihood alone divides the gradient of an error by that variance, so that rare
    rows which are predicted badly at first count as noise and stay so (Seitzer, Tavakoli, Antic
    and Martius 2022, arXiv:2203.09168, who advise 0.5). At 1 means are fitted by squared errors.
    """
    assert mean.shape == log_var.shape == target.shape, (mean.shape, target.shape)
    error = (mean - target).square()
    terms = error * torch.exp(-log_var) + log_var
    if beta:
        terms = torch.exp(beta * log_var.detach()) * terms
    likelihoods = terms.mean((1, 2))
    bounds = (max_log_var - min_log_var).sum()
    return Loss(likelihoods.sum() + BOUND_COEF * bounds, {"member_losses": likelihoods})


def termination_loss(logits: Tensor, ended: Tensor) -> Loss:
    """-sum_m mean_b(y_b log sigmoid(z_mb) + (1 - y_b) log sigmoid(-z_mb)).

    `logits` z and `ended` y, which is 0 or 1, are (members, B). Half of the rows are terminal,
    however rare terminations are, so that z tends to log p(s' | end) / p(s' | no end);
    `termination_cut` is the threshold above which a state counts as terminal.
    """
    assert logits.shape == ended.shape, (logits.shape, ended.shape)
    losses = F.binary_cross_entropy_with_logits(logits, ended, reduction="none")
    return Loss(losses.mean(1).sum(), {})


def termination_cut(logits: Tensor, others: int) -> Tensor:
    """(members,) cuts that keep all but 2% of the (members, ends) `logits` of known ends.

    min(max(q, 0), log(others / ends) / 2), where q is a member's 0.02 quantile. At 0 both kinds of
    mistakes are equally likely per state, which makes many false terminations if true ones are
    rare. So the cut rises while it stays below the training terminations, at most half way to
    log(others / ends), where mistakes are fewest: unseen terminal states have lower logits.
    """
    ends = logits.shape[1]
    if not ends or others <= ends:
        return logits.new_zeros(logits.shape[0])
    return logits.quantile(MISSED_ENDS, dim=1).clamp(0.0, 0.5 * math.log(others / ends))


# --- imagining -------------------------------------------------------------------------------


def rollouts(
    model: MLPMOPOEnsembleModel,
    act: Callable[[Tensor], Tensor],
    ends: Callable[[Tensor], Tensor],
    obs: Tensor,
    length: int,
    gamma: float,
    uncertainty: Uncertainty | None = None,
) -> Iterator[tuple[Batch, Tensor | None]]:
    """Imagine up to `length` steps from (B, O) states, with the `uncertainty` of each step.

    `act` returns actions, and `ends` returns which imagined next states are terminal, where
    rollouts end. All rows of a step are computed together.
    """
    for step in range(length):
        if not len(obs):
            return
        action = act(obs)
        reward, next_obs, uncertain = model.imagine(obs, action, uncertainty)
        if not bool(torch.isfinite(next_obs).all() & torch.isfinite(reward).all()):
            raise TrainingDivergedError(
                f"imagined states became NaN or infinite at step {step + 1} of a rollout; lower "
                "algo_kwargs.rollout_length or algo_kwargs.model_lr"
            )
        ended = ends(next_obs)
        discount = torch.where(ended, 0.0, gamma)
        yield Batch(obs, action, reward, next_obs, discount), uncertain
        obs = next_obs[~ended]
