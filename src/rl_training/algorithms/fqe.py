"""Fitted Q evaluation: what a given policy is worth, from data of another one.

Le, Voloshin and Yue 2019, arXiv:1903.08738; the form with networks is that of Voloshin et al.
2019 and Fu et al. 2021.

Kept: one critic whose target is r + gamma E Q(s', a') with a' from the policy that is evaluated,
never from the data. The expectation over Discrete actions is exact; Box actions are drawn, or the
policy's likeliest one is taken. Targets are clipped to what rewards of the data can add up to.
Added: a horizon, as the number of steps to go and its logarithm beside the observation, and
resampled episodes per seed, so that several seeds trained at once are bootstrap replicates.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Loss, Metrics, critic_loss, soft_update
from rl_training.algorithms.params import (
    DiscountedParams,
    LearningRate,
    TargetRate,
    ValueRange,
)
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import (
    Count,
    Section,
    TrainConfig,
)
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import algorithm_class
from rl_training.models import (
    ActionValueCritic,
    BoxPolicy,
    CategoricalPolicy,
    EnsembleCritic,
    GaussianPolicy,
    Policy,
    critics_for,
    frozen_copy,
)
from rl_training.replay.batch import Batch

DRAWS = 16
"""Box actions per state over which a value is averaged."""
STEP_INPUTS = 2
"""Inputs that say how many steps of a horizon are left."""


class EvaluatedPolicy(Section):
    """The policy that is evaluated: enough to build it again, and to recognise its weights."""

    algo: str
    """Algorithm that it was trained with."""
    algo_kwargs: dict[str, Any] = {}
    """Knobs of that algorithm."""
    fingerprint: str | None = None
    """16 hex digits that change when any of its weights changes."""

    def build(self, spaces: Spaces) -> Policy:
        """With new weights."""
        cls = algorithm_class(self.algo)
        params = cls.Params.parse(self.algo_kwargs, "algo_kwargs.policy.")
        if params.network_factory is not None:
            raise ConfigError(
                f"algo_kwargs.networks: FQE builds the policy again from its knobs, and "
                f"'{params.network_factory}' is code of its own; evaluate it in its environment"
            )
        learner: Algorithm = cls(spaces, params)
        if learner.recurrent:
            raise ConfigError(
                f"init_from: the policy of {cls.name()} looks at whole episodes, and FQE evaluates "
                "policies of single observations; evaluate it in its environment"
            )
        return learner.policy


def policy_fingerprint(policy: Policy, *statistics: Tensor) -> str:
    """16 hex digits that change when a weight changes, or a statistic of its observations."""
    digest = hashlib.sha256(type(policy).__name__.encode())
    for name, tensor in policy.state_dict().items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    for tensor in statistics:
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return digest.hexdigest()[:16]


class FQEParams(DiscountedParams):
    tau: TargetRate = 5e-3
    """Rate at which the target network follows the critic, per update."""
    critic_lr: LearningRate = 3e-4
    """Learning rate of the critic."""
    horizon: Count | None = None
    """Steps that are counted; without a horizon all of them, which needs gamma below 1."""
    stochastic: bool = False
    """Evaluate sampled actions of the policy instead of its likeliest ones."""
    value_range: ValueRange | None = None
    """Smallest and largest possible return, where known; else from the rewards of the data."""
    bootstrap: bool = False
    """Learn from episodes resampled with replacement by the run's seed: one replicate per seed."""
    policy: EvaluatedPolicy | None = None
    """The policy that is evaluated, as read from init_from; a run fills it in."""

    @model_validator(mode="after")
    def _returns_are_finite(self) -> Self:
        if self.gamma == 1.0 and self.horizon is None:
            raise ValueError(
                "gamma: with 1 returns may grow forever; set horizon, the steps that count, or a "
                "gamma below 1"
            )
        return self

    def steps_worth(self, steps: Tensor) -> Tensor:
        """What a reward of 1 at each of so many steps adds up to."""
        if self.gamma == 1.0:
            return steps
        return (1.0 - self.gamma**steps) / (1.0 - self.gamma)


def fqe_loss(q: Tensor, target: Tensor) -> Loss:
    """Squared error of the (1, B) critic to (B,) targets."""
    loss = critic_loss(q, target)
    return Loss(loss, {"critic_loss": loss, "q_mean": q.mean()})


def fqe_target(
    reward: Tensor, discount: Tensor, next_value: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """r + discount * V(s') within [low, high], all (B,) or scalars."""
    return torch.clamp(reward + discount * next_value, low, high)


class FQEAlgorithm(Algorithm[FQEParams, Batch]):
    """Fitted Q evaluation of a policy that never changes."""

    Params = FQEParams
    loop: ClassVar[str] = "offline"
    paper: ClassVar[str] = "Le et al. 2019"
    summary: ClassVar[str] = "value of a given policy, from data alone"
    losses: ClassVar[tuple[str, ...]] = ("critic_loss",)
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})

    reward_low: Tensor
    reward_high: Tensor

    def __init__(
        self, spaces: Spaces, params: FQEParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        kind, actions = spaces.action_kind, spaces.action_dim
        width = spaces.obs_dim + (0 if params.horizon is None else STEP_INPUTS)
        self.critics = critics_for(kind, 1, width, actions, self.layers("critic"))
        self.target_critics = frozen_copy(self.critics)
        if params.policy is None:
            self.evaluated = self.make_policy()
        else:
            self.evaluated = params.policy.build(spaces)
        self.evaluated.requires_grad_(False)
        for name in ("reward_low", "reward_high"):
            self.register_buffer(name, torch.zeros(()))
        self.add_optimizer("critics", self.critics.parameters(), params.critic_lr)

    @property
    def policy(self) -> Policy:
        return self.evaluated

    @property
    def resamples_episodes(self) -> bool:
        return self.params.bootstrap

    def refuse_missing_start(self, init_from: str | None) -> None:
        if init_from is None and int(self.update_count) == 0:
            raise ConfigError(
                "init_from: FQE says what the policy of another run is worth; give that run's "
                "folder or a checkpoint"
            )

    def see_rewards(self, low: float, high: float) -> None:
        self.reward_low.fill_(low)
        self.reward_high.fill_(high)

    def update(self, batch: Batch) -> Metrics:
        rows = batch.reward.shape[0]
        noise = None if self.spaces.is_discrete else self.normal(rows, self.spaces.action_dim)
        to_go = self._steps_to_go(rows)
        with torch.no_grad():
            following = None if to_go is None else to_go - 1.0
            next_value = self._values(
                self.target_critics, batch.next_obs, self._chosen(batch.next_obs, noise), following
            )
            if to_go is not None:  # nothing is counted after the last step
                next_value = next_value * (to_go > 1.0)
            low, high = self.reachable(to_go)
            target = fqe_target(batch.reward, batch.discount, next_value, low, high)
            unclipped = batch.reward + batch.discount * next_value
            clipped = (target != unclipped).float().mean()

        def loss() -> Loss:
            return fqe_loss(self.critics(self._seen(batch.obs, to_go), batch.action), target)

        metrics = self.minimize(loss, "critics")
        soft_update(self.target_critics, self.critics, self.params.tau)
        return {**metrics, "target_clipped": clipped}

    def reachable(self, to_go: Tensor | None) -> tuple[Tensor, Tensor]:
        """Smallest and largest return of so many steps, by rewards of the data."""
        if self.params.value_range is not None:
            low, high = self.params.value_range
            return torch.full_like(self.reward_low, low), torch.full_like(self.reward_high, high)
        if to_go is None:
            worth = torch.full_like(self.reward_low, 1.0 / (1.0 - self.params.gamma))
        else:
            worth = self.params.steps_worth(to_go)
        # an episode may end after one step, so what is paid at every step is no bound from below
        return (
            torch.minimum(self.reward_low, self.reward_low * worth),
            torch.maximum(self.reward_high, self.reward_high * worth),
        )

    def _steps_to_go(self, rows: int) -> Tensor | None:
        if self.params.horizon is None:
            return None
        return 1.0 + (self.uniform(rows) * self.params.horizon).floor()

    def _seen(self, obs: Tensor, to_go: Tensor | None) -> Tensor:
        """Observations and, with a horizon, the share of its steps that is left.

        Where episodes are much shorter than the horizon, values change within the last few steps
        only, which the share alone would squeeze together: an error of each is passed on to the
        next. So the share of the logarithm stands beside it.
        """
        if to_go is None:
            return obs
        assert self.params.horizon is not None
        share = to_go / self.params.horizon
        logarithm = torch.log1p(to_go) / math.log1p(self.params.horizon)
        return torch.cat([obs, torch.stack([share, 2.0 * logarithm - 1.0], -1)], -1)

    def _chosen(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """(B, actions) probabilities of Discrete actions, or (B, A) Box actions."""
        policy, drawn = self.evaluated, self.params.stochastic
        if noise is None:
            if drawn and isinstance(policy, CategoricalPolicy):
                log_probs: Tensor = policy(obs)
                return log_probs.exp()
            likeliest = policy.mode(obs).unsqueeze(-1)
            none = obs.new_zeros((*obs.shape[:-1], self.spaces.action_dim))
            return none.scatter(-1, likeliest, 1.0)
        if drawn and isinstance(policy, BoxPolicy):
            return policy.rsample(obs, noise)[0]
        if drawn and isinstance(policy, GaussianPolicy):
            return (policy.mean(obs) + policy.log_std.exp() * noise).clamp(-1.0, 1.0)
        return policy.mode(obs)

    def _values(
        self,
        critics: EnsembleCritic | ActionValueCritic,
        obs: Tensor,
        chosen: Tensor,
        to_go: Tensor | None,
    ) -> Tensor:
        """(B,) values of what `_chosen` gave."""
        seen = self._seen(obs, to_go)
        if isinstance(critics, ActionValueCritic):
            return (chosen * critics.of_all(seen)[0]).sum(-1)
        values: Tensor = critics(seen, chosen)
        return values[0]

    # --- what it has learned ------------------------------------------------------------------

    @property
    def _draws_actions(self) -> bool:
        return self.params.stochastic and self.evaluated.has_density

    def _whole_horizon(self, obs: Tensor) -> Tensor | None:
        horizon = self.params.horizon
        return None if horizon is None else obs.new_full((obs.shape[0],), float(horizon))

    def drawn_actions(self, obs: Tensor) -> list[Tensor]:
        """What the policy does, the same at every call: (B, actions) probabilities of Discrete
        actions, or (B, A) Box actions, several draws of them where they are drawn."""
        if self.spaces.is_discrete:
            return [self._chosen(obs, None)]
        draws = DRAWS if self._draws_actions else 1
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(draws, *obs.shape[:-1], self.spaces.action_dim, generator=generator)
        return [self._chosen(obs, one) for one in noise.to(obs.device)]

    @torch.no_grad()
    def action_values(self, obs: Tensor, action: Tensor, to_go: Tensor | None = None) -> Tensor:
        """(B,) Q of given actions, by default over the whole horizon."""
        if to_go is None:
            to_go = self._whole_horizon(obs)
        values: Tensor = self.critics(self._seen(obs, to_go), action)
        return values[0]

    @torch.no_grad()
    def state_values(self, obs: Tensor, to_go: Tensor | None = None) -> Tensor:
        """(B,) expected Q of the policy's actions, by default over the whole horizon."""
        if to_go is None:
            to_go = self._whole_horizon(obs)
        values = [
            self._values(self.critics, obs, chosen, to_go) for chosen in self.drawn_actions(obs)
        ]
        return torch.stack(values).mean(0)


def fingerprint_of(source: Algorithm) -> str:
    """16 hex digits of a policy and of the statistics by which it sees observations."""
    seen = (source.normalizer.mean, source.normalizer.std) if source.normalizer.active else ()
    return policy_fingerprint(source.acting_policy, *seen)


def evaluated_policy(source_config: TrainConfig, source: Algorithm) -> EvaluatedPolicy:
    """A description from which the policy of a run can be built again."""
    known = source_config.params
    if isinstance(known, FQEParams) and known.policy is not None:
        return known.policy
    return EvaluatedPolicy(
        algo=source_config.algo,
        algo_kwargs=known.model_dump(mode="json"),
        fingerprint=fingerprint_of(source),
    )
