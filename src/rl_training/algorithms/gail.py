"""GAIL: generative adversarial imitation learning.

Ho and Ermon 2016, arXiv:1606.03476; off-policy as in Kostrikov et al. 2019 (DAC),
arXiv:1809.02925.

Kept: a discriminator separates the demonstrations' state-action pairs from the policy's, by
binary cross-entropy with a small bonus for its own entropy. The policy learns from the
discriminator's output on its steps, never from the environment's reward. Labels are
those of the authors' code: the expert is 1. Rewards always come from the current
discriminator.

Changed: the policy is trained by this package's PPO or SAC, unchanged, instead of TRPO; the
discriminator uses minibatches, with the gradient penalty of Gulrajani et al. 2017 and
spectral normalisation as options; there are no absorbing states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import ValidationInfo, field_validator
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.base import Act, Algorithm, Networks
from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.params import BatchSize, GradClip, LearningRate, Params, Widths
from rl_training.algorithms.ppo import PPOAlgorithm, PPOParams
from rl_training.algorithms.sac import SACAlgorithm, SACParams
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import (
    Count,
    NonNegative,
    TrainConfig,
)
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.ranges import Choices
from rl_training.experiment.renames import Renamed
from rl_training.models import Carry, MLPGAILDiscriminator, Policy, RecurrentMemory
from rl_training.replay.batch import Batch
from rl_training.replay.imitation import ImitationBatch, Pairs

RewardForm = Literal["softplus", "log_sigmoid", "logit"]


class GAILParams(Params):
    renamed = {"entropy_bonus": Renamed("discriminator_entropy_coef")}

    hidden_sizes: Widths = (64, 64)
    """Widths of the hidden layers of the discriminator."""
    batch_size: BatchSize = 256
    """Pairs of the expert, and as many of the policy, per discriminator step."""
    grad_clip: GradClip = None
    """Maximum gradient norm of the discriminator; none by default."""
    generator: Literal["ppo", "sac"] = "ppo"
    """Algorithm that trains the policy: ppo, or sac, which needs far fewer steps (Box actions)."""
    ppo: PPOParams = PPOParams()
    """Knobs of the generator ppo, as in the algorithm of that name."""
    sac: SACParams = SACParams()
    """Knobs of the generator sac, as in the algorithm of that name."""
    reward_form: RewardForm = "softplus"
    """Reward from the logit: softplus (never negative), log_sigmoid (never positive) or logit."""
    discriminator_lr: LearningRate = 3e-4
    """Learning rate of the discriminator."""
    discriminator_updates: Count | None = None
    """Discriminator steps: 8 per rollout with ppo, 1 per update with sac by default."""
    discriminator_entropy_coef: NonNegative = 1e-3
    """Weight of the discriminator's entropy, which keeps it from being overconfident."""
    gradient_penalty: Annotated[NonNegative, Choices((0.0, 1.0, 10.0))] = 0.0
    """Weight of (gradient norm - 1)^2 at points between pairs of expert and policy."""
    spectral_norm: bool = False
    """Divide the discriminator's weight matrices by their largest singular values."""
    demo_episodes: Count | None = None
    """Number of demonstrations to learn from, the first of the data; all by default."""
    demo_subsample: Count = 1
    """Keep every n-th step of a demonstration, from a random offset."""

    @property
    def discriminator_steps(self) -> int:
        """`discriminator_updates`, or its default with this generator."""
        return self.discriminator_updates or (8 if self.generator == "ppo" else 1)

    @property
    def widest_layer(self) -> int:
        policy = self.ppo if self.generator == "ppo" else self.sac
        return max(super().widest_layer, policy.widest_layer)

    @field_validator("ppo", "sac")
    @classmethod
    def _belongs_to_the_generator(cls, knobs: Params, info: ValidationInfo) -> Params:
        chosen, name = info.data.get("generator"), str(info.field_name)
        if chosen not in (None, name) and knobs != type(knobs)():
            raise ValueError(
                f"the generator is {chosen}, which does not read these knobs; remove them, or set "
                f"algo_kwargs.generator={name}"
            )
        return knobs


def gail_reward(logits: Tensor, form: RewardForm = "softplus") -> Tensor:
    """The policy's reward for pairs with these discriminator logits.

    With D = sigmoid(logit), the probability that a pair is the expert's: softplus is
    -log(1 - D), never negative, for tasks that terminate on failure; log_sigmoid is log D,
    never positive, for tasks that terminate on success; logit is log D - log(1 - D), of
    both signs. With a fixed horizon any of them works.
    """
    if form == "softplus":
        return F.softplus(logits)
    return F.logsigmoid(logits) if form == "log_sigmoid" else logits


def gail_discriminator_loss(
    expert_logits: Tensor,
    policy_logits: Tensor,
    penalty: Tensor | None = None,
    *,
    entropy_bonus: float = 0.0,
    gradient_penalty: float = 0.0,
) -> Loss:
    """-mean log D(expert) - mean log(1 - D(policy)) - bonus * entropy + weight * penalty.

    Logits are (B,) each, positive for the expert; `penalty` is the result of
    `input_gradient_penalty`. The entropy is the mean entropy of D over all pairs.
    """
    expert, policy = F.softplus(-expert_logits).mean(), F.softplus(policy_logits).mean()
    both = torch.cat([expert_logits, policy_logits])
    entropy = (F.softplus(both) - torch.sigmoid(both) * both).mean()
    loss = expert + policy
    total = loss - entropy_bonus * entropy
    metrics = {"discriminator_loss": loss, "discriminator_entropy": entropy}
    if penalty is not None:
        total = total + gradient_penalty * penalty
        metrics["gradient_penalty"] = penalty
    with torch.no_grad():
        expert_right = (expert_logits > 0).float().mean()
        policy_right = (policy_logits <= 0).float().mean()
    metrics |= {
        "discriminator_accuracy": 0.5 * (expert_right + policy_right),
        "expert_accuracy": expert_right,
        "policy_accuracy": policy_right,
    }
    return Loss(total, metrics)


def input_gradient_penalty(
    logits: Callable[[Tensor], Tensor], expert: Tensor, policy: Tensor, share: Tensor
) -> Tensor:
    """Mean of (|d logits / d input| - 1)^2 at share * expert + (1 - share) * policy.

    Inputs (B, D), `share` (B, 1) in [0, 1]. Gulrajani et al. 2017, eq. 3.
    """
    between = (share * expert + (1.0 - share) * policy).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(logits(between).sum(), between, create_graph=True)
    # keeps the gradient of the norm finite where the input gradient is zero
    norm = (gradient.square().sum(-1) + 1e-12).sqrt()
    return (norm - 1.0).square().mean()


class GAILAlgorithm(Algorithm[GAILParams, ImitationBatch]):
    """Generative adversarial imitation learning.

    The policy is that of `generator`, a complete PPO or SAC with its own networks, optimisers
    and normaliser, which are all part of this algorithm's state.
    """

    Params = GAILParams
    loop: ClassVar[str] = "imitation"
    paper: ClassVar[str] = "Ho and Ermon 2016"
    summary: ClassVar[str] = "imitates demonstrations without any reward, in a simulator"
    losses: ClassVar[tuple[str, ...]] = ("discriminator_loss",)
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
    needs_rewards: ClassVar[bool] = False

    def __init__(
        self, spaces: Spaces, params: GAILParams, normalize_observations: bool = False
    ) -> None:
        assert not normalize_observations  # refused by `check_config`
        kind = PPOAlgorithm if params.generator == "ppo" else SACAlgorithm
        self.losses = (*GAILAlgorithm.losses, *kind.losses)  # type: ignore[misc]
        super().__init__(spaces, params)
        self.generator: Algorithm
        if params.generator == "ppo":
            self.generator = PPOAlgorithm(spaces, params.ppo)
        else:
            self.generator = SACAlgorithm(spaces, params.sac)
        self.normalizer = self.generator.normalizer
        self.recurrent = self.generator.recurrent
        self.slow_to_compile = self.generator.slow_to_compile
        self.discriminator = MLPGAILDiscriminator(
            spaces.obs_dim,
            spaces.action_kind,
            spaces.action_dim,
            params.hidden_sizes,
            params.spectral_norm,
        )
        self.optimizers |= self.generator.optimizers
        self.add_optimizer(
            "discriminator", self.discriminator.parameters(), params.discriminator_lr
        )

    @classmethod
    def check_config(cls, config: TrainConfig) -> None:
        super().check_config(config)
        params = config.params
        if params.generator == "sac" and params.sac.architecture == "simbav2":
            raise ConfigError(
                "algo_kwargs.sac.architecture: simbav2 divides rewards by the standard deviation "
                "of returns, which is not tracked for a discriminator's rewards; use simba, "
                "crossq or mlp"
            )
        if config.dataset is None:
            return
        defaults = type(config.dataset).model_fields
        for key, instead in (
            ("rewards", "GAIL never uses the rewards of demonstrations"),
            ("returns", "GAIL never uses the rewards of demonstrations"),
            (
                "normalize_observations",
                "the discriminator keeps statistics of its own, and a policy has "
                "algo_kwargs.ppo.normalize_observations",
            ),
        ):
            if getattr(config.dataset, key) != defaults[key].default:
                raise ConfigError(f"dataset.{key}: {instead}; remove this key")

    @property
    def policy(self) -> Policy:
        return self.generator.policy

    @property
    def memory(self) -> RecurrentMemory | None:
        return self.generator.memory

    def other_networks(self) -> Networks:
        """Prefixed, because networks trained on the discriminator's rewards fit only here."""
        inner = {f"imitation {k}": v for k, v in self.generator.other_networks().items()}
        return {**inner, "discriminator": self.discriminator}

    def own_knobs(self, text: str) -> str:
        return text.replace("algo_kwargs.", f"algo_kwargs.{self.params.generator}.")

    @property
    def gamma(self) -> float:
        return self.generator.gamma

    def network_input(self, obs: Tensor) -> Tensor:
        return self.generator.network_input(obs)

    def act(self, obs: Tensor, *, explore: bool, carry: Carry | None = None) -> Act:
        return self.generator.act(obs, explore=explore, carry=carry)

    @torch.no_grad()
    def reward(self, obs: Tensor, action: Tensor) -> Tensor:
        """(B,) rewards of the current discriminator, for raw observations."""
        return gail_reward(self.discriminator(obs, action), self.params.reward_form)

    def update(self, batch: ImitationBatch) -> Metrics:
        """Run discriminator steps on equal slices of the pairs, then one update of the generator
        on the experience, with rewards of the new discriminator; either part may be missing."""
        metrics: Metrics = {}
        if batch.expert is not None and batch.policy is not None:
            pieces = self.params.discriminator_steps
            for expert, policy in zip(
                batch.expert.cut(pieces), batch.policy.cut(pieces), strict=True
            ):
                metrics = self._discriminator_step(expert, policy)
        experience = batch.experience
        if isinstance(experience, Batch):
            reward = self.reward(experience.obs, experience.action)
            experience = experience._replace(reward=reward)
        if experience is not None:
            self.generator.update_count += 1
            metrics |= self.generator.update(self.generator.prepared(experience))
        return metrics

    def _discriminator_step(self, expert: Pairs, policy: Pairs) -> Metrics:
        p = self.params
        judge = self.discriminator
        judge.observe(torch.cat([expert.obs, policy.obs]))
        judge.refresh()
        theirs, ours = judge.inputs(*expert), judge.inputs(*policy)
        share = self.uniform(theirs.shape[0], 1) if p.gradient_penalty else None

        def loss() -> Loss:
            penalty = None
            if share is not None:
                penalty = input_gradient_penalty(judge.logits, theirs, ours, share)
            logits = judge.logits(theirs), judge.logits(ours)
            result = gail_discriminator_loss(
                *logits,
                penalty,
                entropy_bonus=p.discriminator_entropy_coef,
                gradient_penalty=p.gradient_penalty,
            )
            with torch.no_grad():
                expert_reward, reward = (gail_reward(x, p.reward_form) for x in logits)
            return Loss(
                result.total,
                result.metrics
                | {
                    "expert_reward_mean": expert_reward.mean(),
                    "reward_mean": reward.mean(),
                    "reward_std": reward.std(correction=0),
                },
            )

        return self.minimize(loss, "discriminator")
