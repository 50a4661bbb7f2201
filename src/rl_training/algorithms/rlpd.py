"""RLPD: reinforcement learning with prior data.

Ball, Smith, Kostrikov and Levine 2023, arXiv:2302.02948.

Kept: soft actor-critic on minibatches of which a fixed share is prior data; an ensemble of
critics with LayerNorm (Dense, LayerNorm, ReLU; none in the policy) whose target is the
minimum over a few of them, sampled for every update; many critic updates per
environment step, each followed by a soft target update, then one step of the policy, on
the mean of all critics, and of the temperature, on the last minibatch; target entropy
-|A|/2; entropy in the target can be switched off.

Changed: the critics' loss is summed over the ensemble (a factor that Adam cancels), the
temperature's loss is log T * (H - target), where the authors' is T * (H - target) with the same
parameter log T, layers start as PyTorch's do and log stds stay in [-5, 2], all as
in this package's SAC, to which RLPD reduces exactly with two critics, both in the target
and their minimum for the policy, without LayerNorm, at one update per step and a fixed
temperature.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

import torch
from pydantic import ValidationInfo, field_validator, model_validator
from torch import Tensor

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
    OfflineToOnlineParams,
    UpdatesPerStep,
)
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Count, Finite, NonNegativeInt, Positive
from rl_training.experiment.renames import Renamed
from rl_training.models import Policy
from rl_training.replay.batch import Batch, cut


class RLPDParams(OfflineToOnlineParams, NetworkKindParams):
    renamed = {"alpha": Renamed("fixed_temperature")}

    learning_starts: NonNegativeInt = 5_000
    """Environment steps before the first update; random unless the policy has learned before."""
    gradient_updates_per_step: UpdatesPerStep = 20.0
    """Critic updates per environment step; the policy is updated once per round of them."""
    num_critics: Count = 10
    """Critics in the ensemble."""
    num_min_critics: Count = 2
    """Critics whose minimum is the target, sampled for every update."""
    layer_norm: bool = True
    """Standardise every hidden layer of the critics before its ReLU."""
    policy_objective: Literal["mean", "min"] = "mean"
    """The value that the policy maximises: the critics' mean, or their minimum as in SAC."""
    fixed_temperature: Positive | None = None
    """Weight of the entropy, held constant; tuned automatically by default."""
    target_entropy: Finite | None = None
    """Entropy aimed at; default: minus half the action components, or 30% of uniform."""
    temperature_lr: LearningRate = 3e-4
    """Learning rate of the temperature."""
    backup_entropy: bool = True
    """Count the entropy bonus of the next action in the critics' target."""

    @property
    def updates_at_once(self) -> int:
        return math.ceil(self.gradient_updates_per_step)

    @model_validator(mode="after")
    def _scaled_from_the_start(self) -> Self:
        if self.architecture == "simbav2" and self.offline_pretrain_updates:
            raise ValueError(
                "offline_pretrain_updates: simbav2 divides rewards by the standard deviation of "
                "returns in the environment, which pretraining does not see; set it to 0, or use "
                "simba"
            )
        return self

    @field_validator("num_min_critics")
    @classmethod
    def _members_exist(cls, chosen: int, info: ValidationInfo) -> int:
        have = info.data.get("num_critics", chosen)  # absent where it was refused itself
        if chosen > have:
            raise ValueError(
                f"{chosen} critics cannot be chosen from the {have} of num_critics; set at most "
                f"{have}, or raise num_critics"
            )
        return chosen


class RLPDAlgorithm(Algorithm[RLPDParams, Batch]):
    """Reinforcement learning with prior data."""

    Params = RLPDParams
    loop: ClassVar[str] = "offline_to_online"
    paper: ClassVar[str] = "Ball et al. 2023"
    summary: ClassVar[str] = "from prior data to online improvement in few steps"
    losses: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss", "temperature_loss")
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
    pieces: ClassVar[tuple[str, ...]] = ("critic_step", "_policy_step")

    def __init__(
        self, spaces: Spaces, params: RLPDParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.model = self.actor_and_critics(params.num_critics)
        self.target_critics = make_targets(self, self.model.critics)
        self.target_entropy = entropy_target(spaces, params.target_entropy, -0.5, 0.3)
        self.log_temperature = add_soft_optimizers(
            self, self.model.policy, self.model.critics, start=1.0
        )

    @property
    def policy(self) -> Policy:
        return self.model.policy

    def other_networks(self) -> Networks:
        return soft_networks(self.model.critics, self.target_critics, self.log_temperature)

    def update(self, batch: Batch) -> Metrics:
        """One critic update on each cut of `batch_size` rows, then one step of the policy.

        A batch of fewer rows is one cut. Every cut counts as an update.
        """
        p = self.params
        rows = batch.reward.shape[0]
        slices = max(1, rows // p.batch_size)
        assert rows % slices == 0, (rows, slices)
        self.update_count += slices - 1  # `step` has counted the first
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():  # the policy waits for all critic updates: one pass for them all
            next_choice, next_log_prob = policy_choice(
                self.model.policy, batch.next_obs, action_noise(self, rows)
            )
            next_entropy = -batch.discount * temperature * next_log_prob
        members = self.drawn_members(slices)
        next_choices, next_entropies = next_choice.chunk(slices), next_entropy.chunk(slices)
        for i, part in enumerate(cut(batch, slices)):
            drawn = None if members is None else members[i]
            metrics = self.critic_step(part, next_choices[i], next_entropies[i], drawn)
        noise = action_noise(self, part.reward.shape[0])
        metrics |= self._policy_step(part.obs, noise, temperature)
        return metrics | {"temperature": temperature}

    def critic_step(
        self, batch: Batch, next_choice: Tensor, next_entropy: Tensor, members: Tensor | None
    ) -> Metrics:
        p, critics = self.params, self.model.critics
        bonus = next_entropy if p.backup_entropy else None
        metrics = critic_step(
            self, critics, self.target_critics, batch, next_choice, bonus, members
        )
        if self.target_critics is not None:
            soft_update(self.target_critics, critics, p.tau)
        return metrics

    def _policy_step(self, obs: Tensor, noise: Tensor | None, temperature: Tensor) -> Metrics:
        p, model = self.params, self.model
        metrics = policy_step(
            self,
            model.policy,
            lambda: soft_policy_loss(
                model.policy, model.critics, obs, noise, temperature, p.policy_objective
            ),
        )
        if p.fixed_temperature is None:
            metrics |= self.minimize(
                lambda: temperature_loss(
                    self.log_temperature, metrics["entropy"], self.target_entropy
                ),
                "temperature",
            )
        return metrics

    def drawn_members(self, slices: int) -> Tensor | None:
        """(slices, Z) numbers of critics, without repetition in a row; None means all."""
        p = self.params
        if p.num_min_critics == p.num_critics:
            return None
        return self.uniform(slices, p.num_critics).topk(p.num_min_critics).indices
