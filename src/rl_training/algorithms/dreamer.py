"""Dreamer: a world model and a policy that is trained in imagination.

Hafner, Pasukonis, Ba and Lillicrap 2023, arXiv:2301.04104 (third generation), in the form of the
authors' current code.

Kept: categorical latents with 1% uniform, KL balance 1.0 / 0.1 with one free nat per step,
symlog vectors, two-hot reward and value, a continuation head that includes the discount,
imagination from every state of a batch, lambda-returns scaled by their range, REINFORCE for both
kinds of actions, a slow critic as regulariser, a critic loss on real sequences, LaProp with
adaptive gradient clipping, stored and refreshed latent contexts. Changed: float32 by default, a
plain image decoder (nearest-neighbour upsampling and convolutions after one dense layer).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.base import Networks
from rl_training.algorithms.functional import Loss, Metrics, soft_update
from rl_training.algorithms.optim import LaProp
from rl_training.algorithms.params import (
    BatchSize,
    LearningRate,
    OwnNetworkParams,
    ReplayParams,
    TargetRate,
    UpdatesPerStep,
)
from rl_training.algorithms.swap import replaced
from rl_training.algorithms.world_model_agent import WorldModelAgent
from rl_training.algorithms.world_models import (
    imagination_weights,
    imagined_policy_loss,
    kl_balance,
    lambda_return,
    return_scale,
)
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import LARGEST, Count, NonNegative, Positive, Rate, Whole
from rl_training.experiment.ranges import Choices, Log
from rl_training.experiment.renames import Renamed
from rl_training.models import frozen_copy
from rl_training.models.dreamer import (
    BINS,
    PLAIN,
    SIZES,
    CellWeights,
    ChainInputs,
    Kernels,
    LatentState,
    TwoHotHead,
    exponential_noise,
    in_bfloat16,
    product_weights,
)
from rl_training.replay.sequences import SequenceBatch


class DreamerParams(ReplayParams, OwnNetworkParams):
    """Knobs of Dreamer; its loop counts observations, one more per episode than actions."""

    renamed = {
        "imagination_steps": Renamed("rollout_length"),
        "entropy_scale": Renamed("entropy_coef"),
        "slow_rate": Renamed("tau"),
    }

    gradient_updates_per_step: UpdatesPerStep = 0.25
    """Updates per environment step; fractions are exact over time."""
    batch_size: BatchSize = 16
    """Sequences per update."""
    batch_length: Annotated[Whole, Field(ge=2)] = 64
    """Steps in each sequence."""
    size: Literal["tiny", "1m", "12m", "25m", "50m", "100m", "200m"] = "1m"
    """Size of all networks, named after the number of parameters."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of products and convolutions in updates; outputs of heads stay float32."""
    rollout_length: Count = 15
    """Imagined steps from every state of a batch."""
    horizon: Annotated[float, Field(gt=1.0, le=LARGEST, allow_inf_nan=False)] = 333.0
    """Time scale of discounting in steps: the discount is 1 - 1/horizon."""
    gae_lambda: Annotated[Rate, Choices((0.8, 0.9, 0.95, 0.98, 1.0))] = 0.95
    """Lambda of the returns: 0 bootstraps after one step, 1 at the end of the imagined rollout."""
    entropy_coef: Annotated[NonNegative, Log(1e-4, 3e-3)] = 3e-4
    """Weight of the policy's entropy, in units of the scaled returns."""
    lr: LearningRate = 4e-5
    """Learning rate of all networks."""
    lr_warmup: Count = 1_000
    """Updates over which the learning rate rises linearly from 0."""
    gradient_share: Positive = 0.3
    """Maximum norm of a gradient, relative to its parameter's norm."""
    free_nats: NonNegative = 1.0
    """KL divergence per step that is not penalised."""
    dynamics_scale: NonNegative = 1.0
    """Weight of the KL term that trains the prior."""
    representation_scale: NonNegative = 0.1
    """Weight of the KL term that trains the posterior."""
    replay_value_scale: NonNegative = 0.3
    """Weight of the value loss on real sequences."""
    tau: TargetRate = 0.02
    """Rate at which the slow critic follows the critic, per update."""
    slow_scale: NonNegative = 1.0
    """Weight of the critic's loss towards the slow critic."""
    return_range_rate: Rate = 0.01
    """Rate of the moving average of the return scale."""

    @property
    def widest_layer(self) -> int:
        """Units in the widest layer."""
        return SIZES[self.size].deter


class Imagination(NamedTuple):
    """(H + 1, N, ...) imagined rollouts, including their start states."""

    features: Tensor
    action: Tensor
    reward: Tensor
    continues: Tensor
    value: Tensor


TERMS = (
    "reconstruction_loss",
    "reward_loss",
    "continue_loss",
    "dynamics_loss",
    "representation_loss",
    "policy_loss",
    "value_loss",
    "replay_value_loss",
)
"""The terms of the loss; each has one weight."""


class DreamerAlgorithm(WorldModelAgent[DreamerParams]):
    """A world model and its policy, with one loss and one optimiser for all networks."""

    Params = DreamerParams
    loop: ClassVar[str] = "world_model"
    paper: ClassVar[str] = "Hafner et al. 2023"
    summary: ClassVar[str] = "learns a model of the world and practises in it"
    losses: ClassVar[tuple[str, ...]] = TERMS
    slow_to_compile = True  # as a whole: thousands of chained steps

    return_range: Tensor
    last_deter: Tensor
    """(B, T, D) of the last update, with `last_stoch` (B, T, latents), stored in the replay."""
    last_stoch: Tensor

    def __init__(
        self, spaces: Spaces, params: DreamerParams, normalize_observations: bool = False
    ) -> None:
        size = SIZES[params.size]
        super().__init__(spaces, params, size, normalize_observations)
        self._kernels: Kernels | None = None
        width = self.rssm.feature_dim
        self.value = TwoHotHead(width, size.units, 3, self.own_network("value", (width,), BINS))
        self.slow_value = frozen_copy(self.value)
        self.register_buffer("return_range", torch.zeros(()))
        trained = [p for p in self.parameters() if p.requires_grad]
        self._rounded_weights: list[nn.Parameter] = []
        self._rounded_values: list[nn.Parameter] = []
        if params.precision == "bfloat16":
            self._rounded_weights = product_weights(self)
            self._rounded_values = [*product_weights(self.value), *product_weights(self.slow_value)]
        self.optimizers["all"] = LaProp(trained, params.lr, params.gradient_share, params.lr_warmup)
        batch = params.batch_size, params.batch_length
        self.register_buffer("last_deter", torch.zeros(*batch, size.deter), persistent=False)
        stoch = torch.zeros(*batch, size.latents, dtype=torch.int64)
        self.register_buffer("last_stoch", stoch, persistent=False)

    def other_networks(self) -> Networks:
        return {
            "decoder": self.decoder,
            "reward head": self.reward,
            "continuation head": self.continues,
            "value": self.value,
            "slow value": self.slow_value,
        }

    def fused_pieces(self) -> dict[str, Any]:
        methods = (
            self._chain_inputs,
            self._observed_losses,
            self._imagined_step,
            self._foreseen,
            self._inside,
            self._replay_value_loss,
        )
        return {"_kernels": PLAIN, **{method.__name__: method for method in methods}}

    def update(self, batch: SequenceBatch) -> Metrics:
        p = self.params
        size, (rows, steps) = self.rssm.size, batch.reward.shape
        noise = self.uniform(rows, steps, size.latents, size.classes)
        kept: dict[str, Tensor] = {}

        def loss() -> Loss:
            with self._rounding(self._rounded_weights):
                inputs = self._chain_inputs(batch.obs, batch.action, batch.first, noise)
                before = self.latent(batch.context)
                states, posterior = self.rssm.chain(before, inputs, self._chain_kernels())
                features = states.features
                kept["deter"] = states.deter.detach()
                kept["stoch"] = states.stoch.detach().argmax(-1)
                goes_on = (~batch.terminal).to(features.dtype) * (1.0 - 1.0 / p.horizon)
                terms = self._observed_losses(
                    features, states.deter, posterior, batch.obs, batch.reward, goes_on
                )
                inside, returns = self._inside(self._imagine(states))
            terms |= {name: inside.metrics[name] for name in ("policy_loss", "value_loss")}
            with self._rounding(self._rounded_values):
                terms["replay_value_loss"] = self._replay_value_loss(
                    features, batch, goes_on, returns[0].reshape(rows, steps)
                )
            means = {name: term.mean() for name, term in terms.items()}
            weights = self.weights()
            total = torch.stack([weights[name] * means[name] for name in TERMS]).sum()
            rest = {k: v for k, v in inside.metrics.items() if k not in means}
            return Loss(total, means | rest | {"kl": means["dynamics_loss"]})

        metrics = self.minimize(loss, "all")
        self.return_range.copy_(metrics.pop("return_range"))
        soft_update(self.slow_value, self.value, p.tau)
        for last, new in ((self.last_deter, kept["deter"]), (self.last_stoch, kept["stoch"])):
            if last.shape != new.shape:  # a batch of another size than the configured one
                last.resize_(new.shape)
            last.copy_(new)
        return metrics

    @contextmanager
    def _rounding(self, weights: list[nn.Parameter]) -> Iterator[None]:
        """While active, networks with these weights compute in bfloat16.

        Copies of the weights take their place, which pass their gradients on to the weights. A
        copy adds up the gradients of its uses in bfloat16, so every use has copies of its own.
        """
        if not weights:
            yield
            return
        copies: list[Tensor] = []
        for trained, group in itertools.groupby(weights, _is_trained):
            with torch.set_grad_enabled(trained):
                copies += in_bfloat16(group)
        with replaced(self, weights, copies):
            yield

    def _chain_kernels(self) -> Kernels | None:
        """In bfloat16 the chain is one function: autograd would round its sums over the steps."""
        return self._kernels or (PLAIN if self._rounded_weights else None)

    def _chain_inputs(
        self, obs: Tensor, action: Tensor, first: Tensor, noise: Tensor
    ) -> ChainInputs:
        return self.rssm.chain_inputs(action, first, self.encoder(self.seen(obs)), noise)

    def _observed_losses(
        self,
        features: Tensor,
        deter: Tensor,
        posterior: Tensor,
        obs: Tensor,
        reward: Tensor,
        goes_on: Tensor,
    ) -> dict[str, Tensor]:
        """(B, T) losses of the world model."""
        prior = self.rssm.prior(deter)
        dynamics, representation = kl_balance(posterior.log(), prior.log(), self.params.free_nats)
        return {
            "reconstruction_loss": self.decoder.loss(features, self.seen(obs)),
            "reward_loss": self.reward.loss(self.reward(features), reward),
            "continue_loss": F.binary_cross_entropy_with_logits(
                self.continues(features).squeeze(-1), goes_on, reduction="none"
            ),
            "dynamics_loss": dynamics,
            "representation_loss": representation,
        }

    def weights(self) -> dict[str, float]:
        """The weights of the terms of the loss."""
        p = self.params
        return dict.fromkeys(TERMS, 1.0) | {
            "dynamics_loss": p.dynamics_scale,
            "representation_loss": p.representation_scale,
            "replay_value_loss": p.replay_value_scale,
        }

    @torch.no_grad()
    def _imagine(self, states: LatentState) -> Imagination:
        """Imagine rollouts of the policy from every state of a batch."""
        p, size = self.params, self.rssm.size
        state = LatentState(states.deter.flatten(0, 1), states.stoch.flatten(0, 1))
        count = state.deter.shape[0]
        features, actions = [], []
        chance = self.actor.noise(self, p.rollout_length + 1, count)
        wait = exponential_noise(self.uniform(p.rollout_length, count, size.latents, size.classes))
        cell = self.rssm.cell()
        for step in range(p.rollout_length):
            seen, action, state = self._imagined_step(state, chance[step], wait[step], cell)
            features.append(seen)
            actions.append(action)
        features.append(state.features)
        actions.append(self.actor.draw(features[-1], chance[-1]))
        stacked = torch.stack(features)
        return Imagination(stacked, torch.stack(actions), *self._foreseen(stacked))

    def _imagined_step(
        self, state: LatentState, chance: Tensor, wait: Tensor, cell: CellWeights
    ) -> tuple[Tensor, Tensor, LatentState]:
        """Features, the action in them, and the state that follows."""
        features = state.features
        action = self.actor.draw(features, chance)
        return features, action, self.rssm.imagine(state, action, wait, cell)

    def _foreseen(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards, continuations and values."""
        return (
            self.reward.mean(self.reward(features)),
            torch.sigmoid(self.continues(features).squeeze(-1)),
            self.value.mean(self.value(features)),
        )

    def _inside(self, dreamt: Imagination) -> tuple[Loss, Tensor]:
        """Losses of policy and value on imagined rollouts, and their returns."""
        p = self.params
        returns = lambda_return(dreamt.reward, dreamt.value, dreamt.continues, p.gae_lambda)
        weight = imagination_weights(dreamt.continues)[:-1]
        scale = return_scale(returns, self.return_range, p.return_range_rate)
        features = dreamt.features[:-1]
        log_prob, entropy = self.actor.log_prob_and_entropy(features, dreamt.action[:-1])
        policy = imagined_policy_loss(
            log_prob,
            entropy,
            returns,
            dreamt.value[:-1],
            weight,
            scale=scale.scale,
            entropy_scale=p.entropy_coef,
        )
        value = (weight * self._value_error(features, returns)).mean()
        metrics = {
            **policy.metrics,
            "value_loss": value,
            # weighted by the probability of reaching the state
            "return_mean": (weight * returns).sum() / weight.sum().clamp(min=1e-8),
            "return_scale": scale.scale,
            "return_range": scale.range,
            "imagined_reward": dreamt.reward.mean(),
            "imagined_continue": dreamt.continues.mean(),
        }
        return Loss(policy.total + value, metrics), returns

    def _replay_value_loss(
        self, features: Tensor, batch: SequenceBatch, goes_on: Tensor, imagined: Tensor
    ) -> Tensor:
        """The value loss on real rewards, bootstrapped with the imagined return of each state."""
        p = self.params
        alive = (~batch.last).to(features.dtype)
        trust = p.gae_lambda * alive
        returns = lambda_return(batch.reward.T, imagined.T, goes_on.T, trust.T).T
        return alive[:, :-1] * self._value_error(features[:, :-1], returns)

    def _value_error(self, features: Tensor, returns: Tensor) -> Tensor:
        """The critic's loss to the returns and to the slow critic."""
        log_probs = self.value(features)
        with torch.no_grad():
            slow = self.slow_value.mean(self.slow_value(features))
        error = self.value.loss(log_probs, returns.detach())
        return error + float(self.params.slow_scale) * self.value.loss(log_probs, slow)


def _is_trained(weight: nn.Parameter) -> bool:
    return weight.requires_grad
