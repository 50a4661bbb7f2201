"""Fully parameterised quantile function.

Yang, Zhao, Lin, Qin, Bian and Liu 2019, arXiv:1911.02140.

Kept: fractions proposed by one layer on the detached features, quantiles by IQN's network,
Q as the sum of the quantiles at the fractions' midpoints times the fractions' widths, the
closed-form gradient of the 1-Wasserstein error as the fractions' only signal, an optimiser
of their own, an entropy bonus against collapse. Changed:
- Fractions are trained by Adam at a rate at which they move; the published RMSProp rate of
  2.5e-9 leaves them where they start.
- Quantiles are trained at the fractions as well as at their midpoints, because the gradient of
  the fractions reads them there. Without that training they are interpolated by the network,
  and the fractions move to the wrong places (docs/algorithms/fqf.md has figures).
- The target's fractions are those that the target network proposes for s', and a target
  quantile is weighted by its fraction's width, so that the target's mean is the Q(s', a') that
  chose a'. The paper uses the fractions of s with equal weights, which distorts the
  distribution once fractions are unequal.
Added as options: double, dueling (per quantile), prioritised and n-step replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.value_based import (
    HuberParams,
    ValueAlgorithm,
    of_action,
    quantile_huber_loss,
    td_target,
    weighted_mean,
)
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Count, NonNegative, Positive, Whole
from rl_training.experiment.ranges import Log
from rl_training.experiment.renames import Renamed
from rl_training.models.value_networks import FQFOutput, MLPFQFNetwork, ValueLayers
from rl_training.replay.batch import Batch


class FQFParams(HuberParams):
    renamed = {"n_fractions": Renamed("num_fractions")}

    num_fractions: Annotated[Whole, Field(ge=2)] = 32
    """Fractions proposed per state."""
    num_cosines: Count = 64
    """Cosines that embed a fraction."""
    fraction_lr: Annotated[Positive, Log(1e-6, 1e-3)] = 1e-4
    """Learning rate of the proposed fractions."""
    entropy_coef: Annotated[NonNegative, Log(1e-4, 0.1)] = 1e-3
    """Weight of the fractions' entropy, which keeps them from collapsing onto a few."""


def fqf_fraction_loss(
    taus: Tensor,
    quantiles_at_taus: Tensor,
    quantiles_hat: Tensor,
    weight: Tensor | None = None,
    *,
    entropy_coef: float,
) -> Loss:
    """The 1-Wasserstein error of N steps as a function of the fractions; FQF, eq. 5.

    `taus`, (B, N + 1), run from 0 to 1; `quantiles_at_taus`, (B, N - 1), are F at the inner
    ones and `quantiles_hat`, (B, N), F at the midpoints. The loss is linear in the fractions
    and has the error's gradient, 2 F(tau_i) - F(tau_hat_i) - F(tau_hat_{i-1}); its value has
    no meaning. No gradient reaches the quantiles. `weight`, (B,), is that of prioritised
    replay; it does not apply to the entropy, which is not an estimate over the data.
    """
    n = quantiles_hat.shape[-1]
    assert taus.shape[-1] == n + 1, (taus.shape, quantiles_hat.shape)
    assert quantiles_at_taus.shape[-1] == n - 1, (quantiles_at_taus.shape, quantiles_hat.shape)
    assert taus.shape[:-1] == quantiles_at_taus.shape[:-1] == quantiles_hat.shape[:-1]
    slope = 2.0 * quantiles_at_taus - quantiles_hat[..., 1:] - quantiles_hat[..., :-1]
    loss = weighted_mean((slope.detach() * taus[..., 1:-1]).sum(-1), weight)
    widths = taus.diff(dim=-1)
    entropy = -(widths * widths.clamp(min=1e-8).log()).sum(-1).mean()
    equal = torch.linspace(0.0, 1.0, n + 1, dtype=taus.dtype, device=taus.device)
    return Loss(
        loss - entropy_coef * entropy,
        {
            "fraction_loss": loss,
            "fraction_entropy": entropy,
            "fraction_shift": (taus - equal).abs().amax(-1).mean(),
        },
    )


class FQFAlgorithm(ValueAlgorithm[FQFParams]):
    """Fully parameterised quantile function."""

    Params = FQFParams
    paper: ClassVar[str] = "Yang et al. 2019"
    summary: ClassVar[str] = "Q-learning of the return's quantiles at learned fractions"
    losses: ClassVar[tuple[str, ...]] = ("quantile_loss", "fraction_loss")

    network: MLPFQFNetwork
    target_network: MLPFQFNetwork

    def __init__(
        self, spaces: Spaces, params: FQFParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.add_optimizer("fractions", self.network.fractions.parameters(), params.fraction_lr)

    def values_parameters(self) -> Iterable[nn.Parameter]:
        return self.network.quantile_parameters()

    def make_network(self, layers: ValueLayers) -> MLPFQFNetwork:
        return MLPFQFNetwork(layers, self.params.num_fractions, self.params.num_cosines)

    def learn(self, batch: Batch) -> Metrics:
        p = self.params
        network, n = self.network, p.num_fractions
        with torch.no_grad():
            next_obs = self.next_states(self.target_network, batch)
            following: FQFOutput = self.target_network(next_obs, self.noise())
            next_q = following.q_values
            if p.double:
                next_q = network.q_values(self.next_states(network, batch), self.noise())
            best = network.best(next_q, next_obs)
            target = td_target(batch, of_action(following.quantiles_hat, best))

        noise = self.noise()

        def loss() -> Loss:
            features = network.features(self.states(network, batch))
            taus, tau_hats = network.propose(features)
            at = torch.cat([tau_hats, taus[:, 1:-1].detach()], dim=-1)
            quantiles = of_action(network.quantiles(features, at, noise), batch.action)
            quantiles_hat, quantiles_at_taus = quantiles[:, :n], quantiles[:, n:]
            quantile = quantile_huber_loss(
                quantiles, target, at, batch.weight, following.widths, kappa=p.kappa
            )
            fraction = fqf_fraction_loss(
                taus, quantiles_at_taus, quantiles_hat, batch.weight, entropy_coef=p.entropy_coef
            )
            q_mean = (taus.diff(dim=-1) * quantiles_hat).sum(-1).mean()
            metrics = {**quantile.metrics, **fraction.metrics, "q_mean": q_mean}
            return Loss(quantile.total + fraction.total, metrics)

        # one pass for both: neither loss has a gradient for the other's parameters
        return self.minimize(loss, "quantiles", "fractions")
