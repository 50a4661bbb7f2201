"""Soft actor-critic.

Haarnoja, Zhou, Abbeel and Levine 2018, arXiv:1801.01290; temperature as in
Haarnoja et al. 2018, arXiv:1812.05905.

Kept: twin critics whose minimum serves target and policy, entropy in the target,
tanh-Gaussian policy, automatic temperature (its logarithm is what is tuned, as in the
authors' code) with target entropy -|A|, soft target updates. Order: critics, policy with
the new critics, temperature, targets. Changed: the log standard deviation is clamped to
[-5, 2] instead of [-20, 2].
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from typing_extensions import TypeVar

from rl_training.algorithms.base import Algorithm, Networks
from rl_training.algorithms.critic_steps import (
    add_soft_optimizers,
    critic_step,
    make_targets,
    policy_step,
)
from rl_training.algorithms.critics import (
    action_noise,
    entropy_target,
    policy_choice,
    soft_networks,
    soft_policy_loss,
    temperature_loss,
)
from rl_training.algorithms.functional import Metrics, soft_update
from rl_training.algorithms.params import (
    LearningRate,
    NetworkKindParams,
    OffPolicyParams,
    PolicyDelay,
    TargetNetworkParams,
)
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Finite, Positive
from rl_training.experiment.ranges import Log
from rl_training.models import Policy
from rl_training.replay.batch import Batch


class SoftParams(TargetNetworkParams):
    """Knobs of the update itself, wherever its minibatches come from."""

    fixed_temperature: Positive | None = None
    """Weight of the entropy, held constant; tuned automatically by default."""
    target_entropy: Finite | None = None
    """Entropy aimed at; default: minus the number of action components, or 30% of uniform."""
    temperature_lr: LearningRate = 3e-4
    """Learning rate of the temperature."""
    initial_temperature: Annotated[Positive, Log(0.01, 1.0)] = 1.0
    """Initial weight of the entropy, if it is tuned."""
    policy_delay: PolicyDelay = 1
    """Updates of the critics per step of the policy and the temperature."""


class SACParams(OffPolicyParams, NetworkKindParams, SoftParams):
    """And those of the loop."""


S = TypeVar("S", bound=SoftParams, default=SACParams)


class SACAlgorithm(Algorithm[S, Batch]):
    """Soft actor-critic."""

    Params: ClassVar[type[SoftParams]] = SACParams
    loop: ClassVar[str] = "off_policy"
    learns_in: str | None = "update"
    paper: ClassVar[str] = "Haarnoja et al. 2018"
    summary: ClassVar[str] = "sample-efficient continuous control with an entropy bonus"
    losses: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss", "temperature_loss")
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})

    def __init__(self, spaces: Spaces, params: S, normalize_observations: bool = False) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.cycle = params.policy_delay
        self.model = self.actor_and_critics()
        self.target_critics = make_targets(self, self.model.critics)
        self.target_entropy = entropy_target(spaces, params.target_entropy, -1.0, 0.3)
        self.log_temperature = add_soft_optimizers(
            self, self.model.policy, self.model.critics, params.initial_temperature
        )

    @property
    def policy(self) -> Policy:
        return self.model.policy

    def other_networks(self) -> Networks:
        return soft_networks(self.model.critics, self.target_critics, self.log_temperature)

    def update(self, batch: Batch) -> Metrics:
        policy, critics = self.model.policy, self.model.critics
        rows = batch.reward.shape[0]
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            chosen, next_log_prob = policy_choice(policy, batch.next_obs, action_noise(self, rows))
            bonus = -batch.discount * temperature * next_log_prob
        metrics = critic_step(self, critics, self.target_critics, batch, chosen, bonus)
        noise, due = action_noise(self, rows), self.is_due(self.params.policy_delay)
        metrics |= policy_step(
            self,
            policy,
            lambda: soft_policy_loss(policy, critics, batch.obs, noise, temperature),
            due,
        )
        if self.params.fixed_temperature is None:
            metrics |= self.minimize(
                lambda: temperature_loss(
                    self.log_temperature, metrics["entropy"], self.target_entropy
                ),
                "temperature",
                due=due,
            )
        if self.target_critics is not None:
            soft_update(self.target_critics, critics, self.params.tau)
        return metrics | {"temperature": temperature}
