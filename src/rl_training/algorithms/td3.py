"""Twin delayed deep deterministic policy gradient.

Fujimoto, van Hoof and Meger 2018, arXiv:1802.09477.

Kept: twin critics whose minimum serves the target, a target policy whose actions are smoothed
with clipped noise, a policy and targets that step once every `policy_delay` updates, Gaussian
exploration noise, the policy gradient through the first critic. Changed: rates of 3e-4 as in
the authors' later code.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor
from typing_extensions import TypeVar

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.critic_steps import critic_step, make_targets, policy_step
from rl_training.algorithms.functional import Loss, Metrics, soft_update
from rl_training.algorithms.params import (
    NetworkKindParams,
    OffPolicyParams,
    PolicyDelay,
    TargetNetworkParams,
)
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import NonNegative
from rl_training.experiment.ranges import Linear
from rl_training.models import DeterministicPolicy, Policy, frozen_copy
from rl_training.replay.batch import Batch


class DeterministicParams(TargetNetworkParams):
    """Knobs of updates with a deterministic policy, wherever their minibatches come from."""

    policy_delay: PolicyDelay = 2
    """Updates of the critics per step of the policy and the target networks."""
    target_noise: Annotated[NonNegative, Linear(0.05, 0.5)] = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: NonNegative = 0.5
    """Largest size of that noise, per component."""

    @property
    def acting_noise(self) -> float:
        """Standard deviation of the noise on actions in training; runs from data draw none."""
        return 0.0


class TD3Params(OffPolicyParams, NetworkKindParams, DeterministicParams):
    exploration_noise: Annotated[NonNegative, Linear(0.05, 0.5)] = 0.1
    """Standard deviation of the noise on actions in training."""

    @property
    def acting_noise(self) -> float:
        return self.exploration_noise


def smoothed_action(action: Tensor, noise: Tensor, std: float, clip: float) -> Tensor:
    """clip(a + clip(std * noise, -c, c), -1, 1); TD3, eq. 14, with standard normal `noise`."""
    return (action + (std * noise).clamp(-clip, clip)).clamp(-1.0, 1.0)


def td3_policy_loss(q: Tensor) -> Loss:
    """-mean Q(s, pi(s)), for (B,) values."""
    loss = -q.mean()
    return Loss(loss, {"policy_loss": loss})


D = TypeVar("D", bound=DeterministicParams, default=DeterministicParams)


class DeterministicActorCritic(Algorithm[D, Batch]):
    """What TD3 and its relatives for data share: networks, smoothed targets, delayed steps."""

    losses: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")

    def __init__(self, spaces: Spaces, params: D, normalize_observations: bool = False) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.cycle = params.policy_delay
        actions, noise = spaces.action_dim, params.acting_noise
        self.actor = DeterministicPolicy(self.observed(), actions, self.layers("policy"), noise)
        self.critics = self.make_critics()
        crossed = params.network_kind == "crossq"  # which has no targets
        self.target_actor = None if crossed else frozen_copy(self.actor)
        self.target_critics = make_targets(self, self.critics)
        self.add_optimizer_of("policy", self.actor, params.policy_lr)
        self.add_optimizer_of("critics", self.critics, params.critic_lr)

    @property
    def policy(self) -> Policy:
        return self.actor

    def action_values(self, obs: Tensor, action: Tensor) -> Tensor:
        values: Tensor = self.critics(obs, action)
        return self.in_given_units(values.amin(0))

    def policy_loss(self, batch: Batch) -> Loss:
        """What the policy minimises."""
        raise NotImplementedError

    def critic_step(self, batch: Batch, next_action: Tensor) -> Metrics:
        """One step of the critics; `next_action` is the smoothed one of the target policy."""
        return critic_step(self, self.critics, self.target_critics, batch, next_action)

    def update(self, batch: Batch) -> Metrics:
        p = self.params
        with torch.no_grad():
            next_action = smoothed_action(
                (self.actor if self.target_actor is None else self.target_actor).mode(
                    batch.next_obs
                ),
                self.normal(batch.reward.shape[0], self.spaces.action_dim),
                p.target_noise,
                p.target_noise_clip,
            )
        metrics = self.critic_step(batch, next_action)
        due = self.is_due(p.policy_delay)
        metrics |= policy_step(self, self.actor, lambda: self.policy_loss(batch), due)
        if self.target_critics is not None and self.target_actor is not None:
            soft_update(self.target_critics, self.critics, p.tau, due)
            soft_update(self.target_actor, self.actor, p.tau, due)
        return metrics


class TD3Algorithm(DeterministicActorCritic[TD3Params]):
    """Twin delayed deep deterministic policy gradient."""

    Params = TD3Params
    loop: ClassVar[str] = "off_policy"
    learns_in: str | None = "update"
    paper: ClassVar[str] = "Fujimoto et al. 2018"
    summary: ClassVar[str] = "continuous control with a deterministic policy and twin critics"

    def policy_loss(self, batch: Batch) -> Loss:
        q: Tensor = self.critics(batch.obs, self.actor.mode(batch.obs))
        return td3_policy_loss(q[0])
