"""Conservative Q-learning.

Kumar, Zhou, Tucker and Levine 2020, arXiv:2006.04779 (the CQL(H) objective on SAC).

Kept from the authors' code: logsumexp over uniform actions, policy actions at s and policy
actions of s' (evaluated at s), one weight per critic term, deterministic backup without the
entropy term, automatic temperature at the policy's learning rate, optional Lagrange multiplier.
Changed by default: the form of the authors' code without importance weights, with the data's
action in the sum; a cloning term in the policy's objective; a target entropy of minus four per
component; rows of better episodes drawn more often (Hong et al. 2023, arXiv:2306.13085;
`importance_weights: true` is the paper's objective, without the three others). The
sampled actions come from the policy after its own step of the update, the authors' from before
it. Left: the authors' first 40,000 updates of behaviour cloning for the policy, and further
objectives (docs/algorithms/cql.md). Discrete actions: sums over all actions are exact.

`calibrate` is Cal-QL (Nakamoto et al. 2023, arXiv:2303.05479): the term never pushes values of the
policy's actions below the return of the logged policy from there on. Kept from the authors' code:
uniform actions are not bounded. Changed: returns that a time limit cut go on with the target
critics' value; rows of the environment, whose returns are not known yet, are not bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, Networks
from rl_training.algorithms.critics import (
    action_noise,
    distance_to_data,
    entropy_target,
    mode_choice,
    policy_choice,
    policy_td_target,
    soft_networks,
    soft_policy_loss,
    td_target,
    temperature_loss,
)
from rl_training.algorithms.functional import (
    Loss,
    Metrics,
    bootstrapped_returns,
    critic_loss,
    soft_update,
)
from rl_training.algorithms.params import (
    BY_RETURN,
    LearningRate,
    OfflinePolicyParams,
    OfflineToOnlineParams,
    ReturnTemperature,
    TargetNetworkParams,
)
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import Count, Finite, NonNegative, Positive, TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.ranges import Log
from rl_training.experiment.renames import Renamed, opposite
from rl_training.models import ActionValueCritic, Policy, frozen_copy
from rl_training.replay.batch import Batch


def _threshold_of(gap: Any, others: Mapping[str, Any]) -> Any:
    """`lagrange_gap` bounded the gap itself, so that weight times it is the threshold."""
    weight = others.get("min_q_weight", CQLParams.model_fields["min_q_weight"].default)
    # anything but numbers is refused under the name that it has now
    return weight * gap if {type(gap), type(weight)} <= {int, float} else gap


class CQLParams(TargetNetworkParams, OfflineToOnlineParams, OfflinePolicyParams):
    renamed = {
        "n_action_samples": Renamed("num_action_samples"),
        "deterministic_backup": Renamed(
            "backup_entropy", opposite, ", and means the opposite (true is false)"
        ),
        "lagrange_gap": Renamed(
            "lagrange_threshold", _threshold_of, ", and means min_q_weight times the gap"
        ),
    }

    return_temperature: ReturnTemperature = None
    """Sample rows by exp(episode return / this); 0: uniform; default 0.1, Discrete actions 0."""
    policy_lr: LearningRate = 1e-4
    """Learning rate of the policy."""
    min_q_weight: Annotated[NonNegative, Log(0.1, 20.0)] = 5.0
    """Weight of the conservative term; larger trusts unseen actions less."""
    num_action_samples: Count = 10
    """Uniform, policy and next-policy actions per state in the conservative term, of each."""
    importance_weights: bool = False
    """The paper's objective: sampled values over their densities, without the data's action."""
    cloning_weight: NonNegative | None = None
    """Weight of the policy's distance to the data; 1 by default, in the paper's objective 0."""
    calibrate: bool = False
    """Cal-QL: push values of the policy's actions down no further than the logged returns."""
    lagrange_threshold: Finite | None = None
    """Tune a multiplier of the term so that min_q_weight * gap stays near this; off by default."""
    lagrange_lr: Positive = 3e-4
    """Learning rate of that multiplier."""
    backup_entropy: bool = False
    """Put the entropy bonus into the TD target."""
    backup_action: Literal["sampled", "mode"] = "sampled"
    """Action of the policy at s' whose value the TD target takes."""
    target_entropy: Finite | None = None
    """Entropy aimed at; default: -4 (the paper's: -1) per component, or 10% of uniform."""
    temperature_lr: LearningRate = 1e-4
    """Learning rate of the temperature."""

    @model_validator(mode="before")
    @classmethod
    def _older_runs_are_the_papers(cls, values: Any) -> Any:
        """A run stores every knob: one without `importance_weights` is from before there was
        another objective, and one without `return_temperature` drew all rows alike."""
        stored = {"min_q_weight", "lagrange_lr", "target_entropy", "temperature_lr", "tau", "gamma"}
        stored |= {"policy_lr", "critic_lr", "batch_size", "hidden_sizes"}
        if isinstance(values, dict) and stored <= values.keys():
            return {"importance_weights": True, "return_temperature": 0.0, **values}
        return values


def cql_loss(
    q_data: Tensor,
    td_target: Tensor,
    q_random: Tensor,
    q_policy: Tensor,
    q_next_policy: Tensor,
    log_prob_policy: Tensor,
    log_prob_next_policy: Tensor,
    *,
    action_dim: int,
    min_q_weight: float,
    multiplier: Tensor | float = 1.0,
    lagrange_threshold: float = 0.0,
    importance_weights: bool = True,
) -> Loss:
    """Squared TD error plus multiplier * (min_q_weight * gap - lagrange_threshold).

    The gap is logsumexp_a Q(s, a) - Q(s, data). `q_data` is (members, B), `td_target` (B,),
    the other values (members, samples, B) and the log-densities (samples, B). Each sampled
    value is divided by its density: 0.5 per component for uniform actions; or, without
    `importance_weights`, none is, and the data's value is in the sum. Terms are summed over
    members, averaged over the batch.
    """
    assert log_prob_policy.shape == q_policy.shape[1:], (log_prob_policy.shape, q_policy.shape)
    assert log_prob_next_policy.shape == q_next_policy.shape[1:]
    if importance_weights:
        parts = [
            q_random - action_dim * math.log(0.5),
            q_policy - log_prob_policy.detach(),
            q_next_policy - log_prob_next_policy.detach(),
        ]
    else:
        parts = [q_data.unsqueeze(1), q_random, q_policy, q_next_policy]
    candidates = torch.cat(parts, dim=1)
    # without the number of samples, as in the authors' code: a constant shift
    soft_max = torch.logsumexp(candidates, dim=1)
    return _conservative(q_data, td_target, soft_max, min_q_weight, multiplier, lagrange_threshold)


def calibrated(q: Tensor, reference: Tensor) -> Tensor:
    """max(Q(s, a), V_ref(s)) for (members, samples, B) values and (B,) references; Cal-QL, eq. 5.1.

    No gradient pushes a value down that is below its reference already.
    """
    assert reference.shape == q.shape[-1:], (q.shape, reference.shape)
    return torch.maximum(q, reference)


def cql_policy_loss(soft: Loss, distance: Tensor, *, cloning_weight: float) -> Loss:
    """The soft objective over the mean size of Q, plus cloning_weight * mean of (B,) distances."""
    cloning = distance.mean()
    total = soft.total + cloning_weight * cloning
    return Loss(total, {**soft.metrics, "policy_loss": total, "cloning_error": cloning})


def cql_discrete_loss(
    q: Tensor,
    action: Tensor,
    td_target: Tensor,
    *,
    min_q_weight: float,
    multiplier: Tensor | float = 1.0,
    lagrange_threshold: float = 0.0,
) -> Loss:
    """`cql_loss` with the exact logsumexp over Discrete actions.

    `q` is (members, B, actions), `action`, the data's, and `td_target` (B,).
    """
    assert q.shape[1:-1] == action.shape == td_target.shape
    index = action.view(1, -1, 1).expand(q.shape[0], -1, 1)
    q_data = q.gather(-1, index).squeeze(-1)
    return _conservative(
        q_data, td_target, torch.logsumexp(q, -1), min_q_weight, multiplier, lagrange_threshold
    )


def _conservative(
    q_data: Tensor,
    td_target: Tensor,
    soft_max: Tensor,
    min_q_weight: float,
    multiplier: Tensor | float,
    lagrange_threshold: float,
) -> Loss:
    gap = (soft_max - q_data).mean(-1)
    td = critic_loss(q_data, td_target.detach())
    conservative = (multiplier * (min_q_weight * gap - lagrange_threshold)).sum()
    return Loss(
        td + conservative,
        {
            "critic_loss": td,
            "conservative_loss": conservative,
            "conservative_gap": gap.mean(),
            "q_mean": q_data.mean(),
        },
    )


class CQLAlgorithm(Algorithm[CQLParams, Batch]):
    """Conservative Q-learning."""

    Params = CQLParams
    loop: ClassVar[str] = "offline"
    online_loop: ClassVar[str | None] = "offline_to_online"
    paper: ClassVar[str] = "Kumar et al. 2020"
    summary: ClassVar[str] = "actor-critic that rates unseen actions down"
    losses: ClassVar[tuple[str, ...]] = (
        "policy_loss",
        "temperature_loss",
        "critic_loss",
        "conservative_loss",
        "multiplier_loss",
    )
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})
    box_knobs: ClassVar[tuple[str, ...]] = (
        "num_action_samples",
        "importance_weights",
        "calibrate",
    )

    def __init__(
        self, spaces: Spaces, params: CQLParams, normalize_observations: bool = False
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.needs_returns = params.calibrate  # type: ignore[misc]
        self.model = self.actor_and_critics()
        self.target_critics = frozen_copy(self.model.critics)
        is_ours = not (spaces.is_discrete or params.importance_weights)
        self.own_temperature = BY_RETURN if is_ours else 0.0
        default = float(is_ours)
        asked = params.cloning_weight
        self.cloning_weight = default if asked is None else asked
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.target_entropy = entropy_target(
            spaces, params.target_entropy, -1.0 if params.importance_weights else -4.0, 0.1
        )
        self.add_optimizer("policy", self.model.policy.parameters(), params.policy_lr)
        self.add_optimizer("critics", self.model.critics.parameters(), params.critic_lr)
        self.add_optimizer("temperature", [self.log_temperature], params.temperature_lr)
        if params.lagrange_threshold is not None:
            self.log_multiplier = nn.Parameter(torch.zeros(()))
            self.add_optimizer("multiplier", [self.log_multiplier], params.lagrange_lr)

    @classmethod
    def check_config(cls, config: TrainConfig) -> None:
        super().check_config(config)
        if config.params.calibrate and config.dataset is None:
            raise ConfigError(
                "algo_kwargs.calibrate: the returns that bound the term are those of a data set; "
                "add one, for example 'dataset: {kind: npz, path: data.npz}', or remove this key"
            )

    @property
    def policy(self) -> Policy:
        return self.model.policy

    def other_networks(self) -> Networks:
        return soft_networks(self.model.critics, self.target_critics, self.log_temperature)

    def update(self, batch: Batch) -> Metrics:
        p = self.params
        model, rows = self.model, batch.reward.shape[0]
        temperature = self.log_temperature.detach().exp()
        metrics: Metrics = {"temperature": temperature}

        noise = action_noise(self, rows)
        metrics |= self.minimize(lambda: self._policy_loss(batch, noise, temperature), "policy")
        metrics |= self.minimize(
            lambda: temperature_loss(self.log_temperature, metrics["entropy"], self.target_entropy),
            "temperature",
        )
        target, next_log_prob = policy_td_target(
            model.policy, self.target_critics, batch, action_noise(self, rows)
        )
        if p.backup_action == "mode":
            with torch.no_grad():
                likeliest = mode_choice(model.policy, batch.next_obs)
            target = td_target(self.target_critics, batch, likeliest)
        if p.backup_entropy:
            target = target - batch.discount * temperature * next_log_prob
        metrics |= self.minimize(self._critics_loss(batch, target), "critics")
        if p.lagrange_threshold is not None:
            excess = p.min_q_weight * metrics["conservative_gap"] - p.lagrange_threshold

            def multiplier_loss() -> Loss:
                loss = -self.log_multiplier.exp().clamp(max=1e6) * excess
                return Loss(loss, {"multiplier_loss": loss})

            metrics |= self.minimize(multiplier_loss, "multiplier")
            metrics["multiplier"] = self.log_multiplier.detach().exp().clamp(max=1e6)
        soft_update(self.target_critics, model.critics, p.tau)
        return metrics

    def _policy_loss(self, batch: Batch, noise: Tensor | None, temperature: Tensor) -> Loss:
        weight, policy = self.cloning_weight, self.model.policy
        soft = soft_policy_loss(
            policy, self.model.critics, batch.obs, noise, temperature, relative=weight > 0.0
        )
        if not weight:
            return soft
        return cql_policy_loss(soft, distance_to_data(policy, batch), cloning_weight=weight)

    def _value_ahead(self, obs: Tensor) -> Tensor:
        """(B,) value of states in which a time limit cut the data's returns."""
        q: Tensor = self.target_critics(obs, mode_choice(self.model.policy, obs))
        return q.amin(0)

    def _critics_loss(self, batch: Batch, target: Tensor) -> Callable[[], Loss]:
        """What the critics minimise, with its actions drawn."""
        p: CQLParams = self.params
        policy, critics = self.model.policy, self.model.critics
        multiplier: Tensor | float = 1.0
        if p.lagrange_threshold is not None:
            multiplier = self.log_multiplier.detach().exp().clamp(max=1e6)
        weights: dict[str, Any] = {
            "min_q_weight": p.min_q_weight,
            "multiplier": multiplier,
            "lagrange_threshold": p.lagrange_threshold or 0.0,
        }
        if isinstance(critics, ActionValueCritic):
            return lambda: cql_discrete_loss(
                critics.of_all(batch.obs), batch.action, target, **weights
            )
        n, shape = p.num_action_samples, (batch.reward.shape[0], self.spaces.action_dim)
        with torch.no_grad():
            random = self.uniform(n, *shape) * 2.0 - 1.0
            current, log_prob = policy_choice(policy, batch.obs, self.normal(n, *shape))
            following, log_prob_next = policy_choice(policy, batch.next_obs, self.normal(n, *shape))
            actions = torch.cat([batch.action.unsqueeze(0), random, current, following])
        reference = bootstrapped_returns(batch, self._value_ahead) if p.calibrate else None

        def loss() -> Loss:
            # one pass of the critics over the data's action and all 3n samples
            q = critics.of_samples(batch.obs, actions)
            q_random, q_current, q_following = torch.split(q[:, 1:], n, dim=1)
            if reference is not None:
                q_current = calibrated(q_current, reference)
                q_following = calibrated(q_following, reference)
            return cql_loss(
                q[:, 0],
                target,
                q_random,
                q_current,
                q_following,
                log_prob,
                log_prob_next,
                action_dim=shape[1],
                importance_weights=p.importance_weights,
                **weights,
            )

        return loss
