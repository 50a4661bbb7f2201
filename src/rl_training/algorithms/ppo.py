"""Proximal policy optimisation.

Schulman, Wolski, Dhariwal, Radford and Klimov 2017, arXiv:1707.06347.

Kept: the clipped surrogate, generalised advantages, several epochs of minibatches over
each rollout. From the authors' code: orthogonal initialisation (gain 0.01 for the
policy's last layer, 1 for the value's), advantage normalisation per minibatch, optional
clipped value loss, gradient clipping, running observation and reward normalisation as
options. Policy and value have separate networks and gradient norms, unless they are to share
layers, as the authors' do on images. A time limit bootstraps
with the value of the true final state. With `memory` a GRU or LSTM of each remembers earlier
observations; minibatches are then sequences that start from what was carried when acting.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, Networks
from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.params import (
    ActorCriticParams,
    BatchSize,
    DiscountedParams,
    GradClip,
    LearningRate,
    MemoryParams,
    Widths,
)
from rl_training.envs.spaces import Spaces
from rl_training.execution import can_branch_on, without_gradients
from rl_training.experiment.config import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Schedule,
)
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.ranges import Choices, Linear, Log
from rl_training.experiment.renames import Renamed
from rl_training.models import (
    MLP,
    ChoicePolicy,
    GaussianPolicy,
    LastHidden,
    Policy,
    RecurrentMemory,
    RolloutCarry,
    RolloutMemory,
    ValueNetwork,
    orthogonal_init_,
)
from rl_training.replay.rollout import RolloutBatch


class PPOParams(DiscountedParams, ActorCriticParams, MemoryParams):
    renamed = {"rollout_steps": Renamed("rollout_length")}

    batch_size: BatchSize = 64
    """Steps per minibatch; must divide rollout_length times the number of environments."""
    hidden_sizes: Widths = (64, 64)
    """Widths of the hidden layers of policy and value network."""
    shared_layers: bool = False
    """Let policy and value share all layers but the last, and one optimiser; usual for images."""
    grad_clip: GradClip = 0.5
    """Maximum gradient norm per network, or of both where they share layers."""
    rollout_length: Annotated[Count, Choices((256, 512, 1024, 2048), by_default=False)] = 2048
    """Steps per environment between two rounds of updates."""
    epochs: Annotated[Count, Choices((4, 10, 20), by_default=False)] = 10
    """Passes over each rollout."""
    gae_lambda: Annotated[Fraction, Choices((0.8, 0.9, 0.95, 0.98, 1.0))] = 0.95
    """Lambda of GAE: 0 for one-step advantages, 1 for Monte Carlo returns."""
    clip: Annotated[Positive, Linear(0.1, 0.4)] = 0.2
    """Clip range of the probability ratio around 1."""
    clip_schedule: Schedule = Schedule()
    """Schedule of the factor on clip over the run."""
    value_clip: Positive | None = None
    """Clip range of the value around the rollout's value; off by default."""
    value_coef: Annotated[Positive, Log(0.1, 2.0)] = 0.5
    """Weight of the value loss, and factor of a separate value network's learning rate."""
    entropy_coef: Annotated[NonNegative, Choices((0.0, 1e-3, 3e-3, 0.01, 0.03))] = 0.0
    """Weight of the entropy bonus."""
    entropy_schedule: Schedule = Schedule()
    """Schedule of the factor on entropy_coef over the run."""
    normalize_advantages: bool = True
    """Standardise advantages within each minibatch."""
    target_kl: Positive | None = None
    """Skip the remaining epochs when the KL divergence exceeds 1.5 times this; off by default."""
    normalize_observations: bool = False
    """Standardise observations by running statistics, which are stored with the policy."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    squash_mean: bool = False
    """Bound the mean of Box actions by a tanh, as the policies trained on data do."""
    initial_std: Annotated[Positive, Log(0.1, 1.0, by_default=False)] = 1.0
    """Standard deviation of Box actions at the start; the action range is 2 wide."""
    lr: LearningRate = 3e-4
    """Learning rate of the policy; value_coef scales that of a separate value network."""
    adam_eps: Positive = 1e-8
    """Epsilon of Adam; larger values slow down weights with small gradients."""


def ppo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    entropy: Tensor,
    value: Tensor,
    old_value: Tensor,
    returns: Tensor,
    *,
    clip: Tensor | float,
    value_clip: float | None,
    value_coef: float,
    entropy_coef: Tensor | float,
) -> Loss:
    """-mean(min(r A, clip(r, 1 - c, 1 + c) A)) + value_coef * value loss - entropy bonus.

    All inputs (B,); r is exp(log_prob - old_log_prob). The value loss is half the mean
    squared error to the returns; with `value_clip`, the larger of the errors of the value
    and of the value clipped to that distance from `old_value`.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    gain = ratio * advantage
    least, metrics = _clipped(ratio.detach(), log_ratio.detach(), advantage, clip)
    # where the clipped one is the smaller it does not depend on the policy
    policy_loss = -torch.where(least < gain, least, gain).mean()
    if value_clip is None:
        # 1: the mean; the function of PyTorch around it takes as long
        value_loss = 0.5 * torch.ops.aten.mse_loss(value, returns, 1)
    else:
        near = old_value + (value - old_value).clamp(-value_clip, value_clip)
        error = torch.maximum((value - returns).square(), (near - returns).square())
        value_loss = 0.5 * error.mean()
    entropy_mean = entropy.mean()
    total = policy_loss + value_coef * value_loss
    if isinstance(entropy_coef, Tensor) or entropy_coef:
        total = total - entropy_coef * entropy_mean
    losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy_mean}
    return Loss(total, {**losses, **metrics})


@without_gradients
def _clipped(
    ratio: Tensor, log_ratio: Tensor, advantage: Tensor, clip: Tensor | float
) -> tuple[Tensor, Metrics]:
    """The clipped gain, the KL divergence and the share of ratios that are clipped."""
    if isinstance(clip, Tensor) and can_branch_on(clip):
        clip = float(clip)
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)  # type: ignore[arg-type]
    kl = (ratio - 1.0 - log_ratio).mean()
    outside = (clipped != ratio).to(ratio.dtype).mean()
    return clipped * advantage, {"approx_kl": kl, "clip_fraction": outside}


class PPOAlgorithm(Algorithm[PPOParams, RolloutBatch]):
    """Proximal policy optimisation."""

    Params = PPOParams
    loop: ClassVar[str] = "on_policy"
    learns_in: str | None = "update"
    paper: ClassVar[str] = "Schulman et al. 2017"
    summary: ClassVar[str] = "robust policy gradients where steps are cheap"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss", "value_loss")
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete", "multi_discrete"})
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})

    clip: Tensor
    entropy_coef: Tensor

    def __init__(
        self, spaces: Spaces, params: PPOParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations or params.normalize_observations)
        self.recurrent = self.slow_to_compile = params.remembers
        self.memories: RolloutMemory | None = None
        if params.remembers:
            self.memories = RolloutMemory(self.make_memory(), self.make_memory())
        seen = self.observed() if self.memories is None else self.memories.for_policy
        self.actor: ChoicePolicy | GaussianPolicy
        if spaces.is_box:
            shape = seen, spaces.action_dim, self.layers("policy")
            self.actor = GaussianPolicy(*shape, params.squash_mean, params.initial_std)
        else:
            self.actor = cast(ChoicePolicy, self.make_policy(observed=seen))
        if params.shared_layers:
            self.value = self._value_on_policy()
        else:
            self.value = self.make_value(None if self.memories is None else self.memories.for_value)
        orthogonal_init_(self)
        for net, gain in ((self.actor.net, 0.01), (self.value.net, 1.0)):
            if isinstance(net, MLP):  # the user's own are left as they are
                nn.init.orthogonal_(cast(nn.Linear, net.layers[-1]).weight, gain)
                if spaces.has_mask and len(net.layers) > 1:
                    # at first, which actions are allowed is noise beside the rest
                    nn.init.zeros_(cast(nn.Linear, net.layers[0]).weight[:, -spaces.action_dim :])
        self.register_buffer("clip", torch.tensor(params.clip), persistent=False)
        self.register_buffer("entropy_coef", torch.tensor(params.entropy_coef), persistent=False)
        policy, value = [*self.actor.parameters()], [*self.value.parameters()]
        if self.memories is not None:
            policy += self.memories.policy.parameters()
            value += self.memories.value.parameters()
        if params.shared_layers:
            self.add_optimizer("policy", policy + value, params.lr, eps=params.adam_eps)
            return
        self.add_optimizer("policy", policy, params.lr, eps=params.adam_eps)
        # Adam cancels a factor on the loss of a separate network, so it scales the learning rate
        rate = params.lr * params.value_coef / 0.5
        self.add_optimizer("value", value, rate, eps=params.adam_eps)

    def _value_on_policy(self) -> ValueNetwork:
        """One linear layer on the policy's last hidden one."""
        if self.memories is not None:
            raise ConfigError(
                "algo_kwargs.shared_layers: with memory policy and value have layers of their own; "
                "set it to false, or set algo_kwargs.memory=none"
            )
        for name in ("critic_hidden_sizes", "layer_norm"):
            if getattr(self.params, name):
                raise ConfigError(
                    f"algo_kwargs.{name}: with shared_layers the value has no hidden layers of its "
                    "own; remove this key, or set algo_kwargs.shared_layers=false"
                )
        net = self.actor.net
        if not isinstance(net, MLP):
            raise ConfigError(
                "algo_kwargs.shared_layers: a policy of your own (algo_kwargs.networks) has no "
                "layers to share; set it to false, or return None for the policy"
            )
        return ValueNetwork(LastHidden(net), self.layers("value").with_sizes(()))

    @property
    def policy(self) -> Policy:
        return self.actor

    @property
    def memory(self) -> RecurrentMemory | None:
        return None if self.memories is None else self.memories.policy

    def other_networks(self) -> Networks:
        if self.params.normalize_rewards:
            return {}  # the value's unit is specific to the earlier run
        own: Networks = {"value": self.value}
        return own if self.memories is None else {**own, "value memory": self.memories.value}

    def rollout_carry(self, rows: int) -> RolloutCarry:
        """What policy and value remember at a reset."""
        assert self.memories is not None
        return self.memories.initial(rows)

    def recall(self, obs: Tensor, carry: RolloutCarry) -> tuple[Tensor, RolloutCarry]:
        """What `collect` and `value` take of (B, ...) seen observations, and the carry after."""
        assert self.memories is not None
        return self.memories.step(obs, carry)

    def _seen(self, batch: RolloutBatch) -> Tensor:
        """What policy and value get of the steps of a batch."""
        if self.memories is None or batch.first is None or batch.carry is None:
            return batch.obs
        return self.memories.scan(batch.obs, batch.first, batch.carry).flatten(0, 1)

    @without_gradients
    def collect(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sample actions; returns them with log-probabilities and values, for seen observations.

        Box actions may lie outside [-1, 1]; they are clipped for the environment.
        """
        with self._hidden_once(obs):
            return *self.actor.draw(obs), self.value(obs)

    def _hidden_once(self, seen: Tensor) -> AbstractContextManager[None]:
        """While active, layers that policy and value share are computed once."""
        net = self.actor.net
        if self.params.shared_layers and isinstance(net, MLP):
            return net.hidden_once(seen)
        return nullcontext()

    def follow_schedules(self, step: int, horizon: int) -> None:
        """Set clip range and entropy weight after `step` environment steps; schedules last
        `horizon` steps unless they define their own length."""
        p = self.params
        self.clip.fill_(p.clip * p.clip_schedule.at(step, horizon))
        self.entropy_coef.fill_(p.entropy_coef * p.entropy_schedule.at(step, horizon))

    def update(self, batch: RolloutBatch) -> Metrics:
        p, steps = self.params, batch.steps()
        advantage = steps.advantage
        if p.normalize_advantages:
            std, mean = torch.std_mean(advantage)
            advantage = (advantage - mean) / (std + 1e-8)

        def loss() -> Loss:
            seen = self._seen(batch)
            with self._hidden_once(seen):
                log_prob, entropy = self.actor.log_prob_and_entropy(seen, steps.action)
                value = self.value(seen)
            bonus: Tensor | float = self.entropy_coef
            if not p.entropy_coef:  # a metric alone
                entropy, bonus = entropy.detach(), 0.0
            return ppo_loss(
                log_prob,
                steps.log_prob,
                advantage,
                entropy,
                value,
                steps.value,
                steps.returns,
                clip=self.clip,
                value_clip=p.value_clip,
                value_coef=p.value_coef,
                entropy_coef=bonus,
            )

        return self.minimize(loss, *self.optimizers)
