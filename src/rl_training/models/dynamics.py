"""A probabilistic ensemble that predicts reward and next state with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.mlp import EnsembleMLP, truncated_normal_init_
from rl_training.models.normalizer import Standardizer

MAX_LOG_VAR, MIN_LOG_VAR = 0.5, -10.0
"""Initial values of the learned log-variance bounds, for standardised targets."""
ROWS_AT_ONCE = {"cpu": 8192, "cuda": 131_072}
"""Rows per pass while imagining; more would only move memory."""


Uncertainty = Callable[[Tensor, Tensor], Tensor]
"""Maps (members, B, 1 + O) means and standard deviations, in the task's units, to (B,)."""


class Prediction(NamedTuple):
    """A Gaussian of (reward, change of state), each (..., 1 + O); the reward comes first."""

    mean: Tensor
    log_var: Tensor


class Imagined(NamedTuple):
    """One imagined step of B rows."""

    reward: Tensor  # (B,)
    next_obs: Tensor  # (B, O)
    uncertainty: Tensor | None  # (B,)


class MLPMOPOEnsembleModel(nn.Module):
    """`num_members` Gaussian models of (reward, s' - s) given (s, a), as one batched module.

    Inputs and targets are standardised column by column with statistics that are part of the
    state, so that neither the reward nor a state component drowns the others. The
    log-variance is softly clamped between learned bounds. `elites` are the indices of the members
    used for imagined steps; a fit sets them. With `learned_termination` a classifier of the next
    state predicts terminations: where its logit exceeds the member's `termination_cut`.
    """

    elites: Tensor
    holdout_error: Tensor
    termination_cut: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        num_members: int = 7,
        num_elites: int = 5,
        learned_termination: bool = False,
    ) -> None:
        super().__init__()
        self.obs_dim, self.num_members, self.num_elites = obs_dim, num_members, num_elites
        width = 1 + obs_dim
        self.net = EnsembleMLP(
            num_members, obs_dim + action_dim, hidden_sizes, 2 * width, activation="silu"
        )
        truncated_normal_init_(self.net)
        self.max_log_var = nn.Parameter(torch.full((width,), MAX_LOG_VAR))
        self.min_log_var = nn.Parameter(torch.full((width,), MIN_LOG_VAR))
        self.inputs = Standardizer(obs_dim + action_dim)
        self.targets = Standardizer(width)
        self.termination: EnsembleMLP | None = None
        if learned_termination:
            self.termination = EnsembleMLP(num_members, obs_dim, hidden_sizes, 1, activation="silu")
            truncated_normal_init_(self.termination)
            self.register_buffer("termination_cut", torch.zeros(num_members))
        self.register_buffer("elites", torch.arange(num_elites))
        self.register_buffer("holdout_error", torch.zeros(num_members))

    # --- in standardised units, for fitting ---------------------------------------------------

    def forward(self, x: Tensor, members: Tensor | None = None) -> Prediction:
        """Predict from standardised (B, O + A) or (members, B, O + A): each (members, B, 1 + O)."""
        mean, log_var = self.net(x, members).chunk(2, dim=-1)
        log_var = self.max_log_var - F.softplus(self.max_log_var - log_var)
        return Prediction(mean, self.min_log_var + F.softplus(log_var - self.min_log_var))

    def termination_logits(self, next_obs: Tensor) -> Tensor:
        """(members, B) for raw (B, O) or (members, B, O) next observations."""
        assert self.termination is not None
        columns = slice(None, self.obs_dim)
        seen = (next_obs - self.inputs.mean[columns]) / self.inputs.std[columns]
        out: Tensor = self.termination(seen)
        return out.squeeze(-1)

    # --- in the task's units, for imagining ---------------------------------------------------

    def predict(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every member, each (members, B, 1 + O): reward first."""
        mean, log_var = self(self.inputs(torch.cat([obs, action], -1)))
        return self.targets.inverse(mean), (0.5 * log_var).exp() * self.targets.std

    @torch.no_grad()
    def imagine(
        self, obs: Tensor, action: Tensor, uncertainty: Uncertainty | None = None
    ) -> Imagined:
        """Sample each row from one elite, chosen at random for every row and call.

        An `uncertainty` evaluates all members, which costs as many times more.
        """
        size = ROWS_AT_ONCE[obs.device.type]
        pieces = zip(torch.split(obs, size), torch.split(action, size), strict=True)
        parts = [self._imagine(*piece, uncertainty) for piece in pieces]
        rewards, next_obs, uncertain = zip(*parts, strict=True)
        found = torch.cat(uncertain) if uncertainty is not None else None
        return Imagined(torch.cat(rewards), torch.cat(next_obs), found)

    def _imagine(self, obs: Tensor, action: Tensor, uncertainty: Uncertainty | None) -> Imagined:
        rows = obs.shape[0]
        chosen = torch.randint(self.num_elites, (rows,), device=obs.device)
        found = None
        if uncertainty is not None:
            means, stds = self.predict(obs, action)
            found = uncertainty(means, stds)
            place = (self.elites[chosen], torch.arange(rows, device=obs.device))
            mean, std = means[place], stds[place]
        else:
            x = self.inputs(torch.cat([obs, action], -1))
            mean, log_var = self.of_chosen(x, chosen)
            mean = self.targets.inverse(mean)
            std = (0.5 * log_var).exp() * self.targets.std
        drawn = mean + std * torch.randn_like(mean)
        return Imagined(drawn[:, 0], obs + drawn[:, 1:], found)

    def of_chosen(self, x: Tensor, chosen: Tensor) -> Prediction:
        """The prediction of elite `chosen[i]` for row i, where each elite computes only its rows.

        The rows are grouped by elite and padded to the largest group.
        """
        counts = torch.bincount(chosen, minlength=self.num_elites)
        order = chosen.argsort()
        elite = chosen[order]
        slot = torch.arange(len(x), device=x.device) - (counts.cumsum(0) - counts)[elite]
        padded = x.new_zeros(self.num_elites, int(counts.max()), x.shape[1])
        padded[elite, slot] = x[order]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(x), device=x.device)
        mean, log_var = self(padded, self.elites)
        place = (elite[back], slot[back])
        return Prediction(mean[place], log_var[place])

    @torch.no_grad()
    def ends(self, next_obs: Tensor) -> Tensor:
        """(B,) whether the learned classifier predicts a termination at raw next observations."""
        cut = self.termination_cut[:, None]
        parts = [
            (self.termination_logits(part) - cut).sigmoid().mean(0) > 0.5
            for part in torch.split(next_obs, ROWS_AT_ONCE[next_obs.device.type])
        ]
        return torch.cat(parts) if parts else next_obs.new_zeros(0, dtype=torch.bool)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if self.termination is not None:  # older states without cuts imply 0
            at_zero = torch.zeros_like(self.termination_cut)
            state_dict.setdefault(f"{prefix}termination_cut", at_zero)
        super()._load_from_state_dict(state_dict, prefix, *rest)
