"""What the value-based algorithms share: knobs, exploration, targets and the quantile loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from rl_training.algorithms.base import Act, Algorithm
from rl_training.algorithms.functional import Loss, Metrics
from rl_training.algorithms.params import (
    BatchSize,
    LearningRate,
    MemoryParams,
    OffPolicyParams,
    PriorityExponents,
    ReplayParams,
    UpdatesPerStep,
    refuse_cut_sequences,
    without_knob,
)
from rl_training.envs.spaces import Spaces
from rl_training.execution import can_branch_on, is_batched, without_gradients
from rl_training.experiment.config import (
    Count,
    Fraction,
    NonNegativeInt,
    Positive,
    Rate,
    TrainConfig,
)
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.ranges import Choices, Linear, Log
from rl_training.models import Carry, Past, Policy, RecurrentMemory, frozen_copy
from rl_training.models.draws import normal, uniform_places
from rl_training.models.masks import random_allowed
from rl_training.models.value_networks import GreedyPolicy, ValueLayers
from rl_training.replay.batch import Batch


class ValueParams(OffPolicyParams, MemoryParams):
    """Knobs of algorithms that act by the largest action value."""

    layer_norm: bool = False
    """LayerNorm before the activations of the value network."""
    batch_size: BatchSize = 64
    """Transitions per update."""
    train_frequency: Count = 4
    """Environment steps between two rounds of updates."""
    gradient_updates_per_step: UpdatesPerStep = 0.5
    """Updates per environment step; fractions are exact over time."""
    lr: LearningRate = 5e-4
    """Learning rate of the value network."""
    adam_eps: Positive = 1e-8
    """Epsilon of Adam; larger values slow down weights with small gradients."""
    target_update_interval: Annotated[Count, Log(20, 2_000)] = 100
    """Updates between two copies of the online network into the target network."""
    double: bool = False
    """Choose the next action by the online network and rate it by the target network."""
    dueling: bool = False
    """Sum a state value and advantages from two separate streams."""
    n_step: Annotated[Count, Choices((1, 3, 5))] = 1
    """Rewards that are summed before the target bootstraps."""
    prioritized: bool = False
    """Replay transitions in proportion to their TD errors instead of uniformly."""
    priority_alpha: Fraction = 0.6
    """Exponent of the priorities; 0 is uniform, 1 proportional to the TD error."""
    priority_beta: Fraction = 0.4
    """Share of the sampling bias that is corrected at the start; it rises to 1 over the run."""
    epsilon_start: Fraction = 1.0
    """Initial fraction of random actions."""
    epsilon_end: Annotated[Fraction, Linear(0.01, 0.1)] = 0.05
    """Final fraction of random actions."""
    epsilon_fraction: Annotated[Rate, Linear(0.05, 0.5)] = 0.1
    """Fraction of the budget over which the fraction of random actions falls linearly."""
    noisy: bool = False
    """Explore by learned noise on the weights of the network's head instead of by epsilon."""
    noise_scale: Positive = 0.5
    """Initial scale of that noise."""
    burn_in: NonNegativeInt = 4
    """Steps before a sequence that bring a stored state of the recurrent layer up to date."""

    @property
    def sigma(self) -> float:
        """Initial scale of the noise on weights; 0 for none."""
        return self.noise_scale if self.noisy else 0.0

    @property
    def return_steps(self) -> int:
        return self.n_step

    @property
    def priority_exponents(self) -> PriorityExponents | None:
        if not self.prioritized:
            return None
        return PriorityExponents(self.priority_alpha, self.priority_beta)


class HuberParams(ValueParams):
    """Knobs of algorithms with a Huber loss."""

    kappa: Positive = 1.0
    """Size of a TD error from which the Huber loss is linear."""


EPSILON_KNOBS = ("epsilon_start", "epsilon_end", "epsilon_fraction")
EXPERIENCE_KNOBS = (
    *sorted(ReplayParams.model_fields),
    *("n_step", "prioritized", "priority_alpha", "priority_beta"),
    *EPSILON_KNOBS,
    *("noisy", "noise_scale"),
    *("memory", "memory_size", "sequence_length", "burn_in"),
)
"""Knobs of acting and of what is kept of it: a run from a data set reads none of them."""


def epsilon(fraction: float | Tensor, params: ValueParams) -> float | Tensor:
    """Share of random actions after `fraction` of the budget, a number or a tensor with one."""
    progress = fraction / params.epsilon_fraction
    if isinstance(progress, Tensor):
        progress = progress.clamp(0.0, 1.0)
    else:
        progress = min(max(progress, 0.0), 1.0)
    return params.epsilon_start + (params.epsilon_end - params.epsilon_start) * progress


def epsilon_greedy(greedy: Tensor, num_actions: int, epsilon: float | Tensor) -> Tensor:
    """Each action of `greedy`, (B,), replaced by a uniform one with probability `epsilon`."""
    # one number for both questions: below epsilon, its place there is the action
    place = uniform_places(greedy)
    least = epsilon.clamp(min=1e-12) if isinstance(epsilon, Tensor) else max(epsilon, 1e-12)
    uniform = (place * (num_actions / least)).long()
    return torch.where(place < epsilon, uniform.clamp(max=num_actions - 1), greedy)


def of_action(values: Tensor, action: Tensor) -> Tensor:
    """(B, ...) values of one action per row, from (B, ..., A) and (B,)."""
    assert action.shape == values.shape[:1], (values.shape, action.shape)
    index = action.view(-1, *(1,) * (values.dim() - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, index).squeeze(-1)


def td_target(batch: Batch, next_value: Tensor) -> Tensor:
    """r + discount * next value, for (B,) values or (B, N) quantiles."""
    reward, discount = batch.reward, batch.discount
    if next_value.dim() == 2:
        reward, discount = reward.unsqueeze(-1), discount.unsqueeze(-1)
    return reward + discount * next_value


def weighted_mean(per_sample: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of (B,) losses, with the importance weights of prioritised replay where given."""
    if weight is None:
        return per_sample.mean()
    assert weight.shape == per_sample.shape, (weight.shape, per_sample.shape)
    return (weight.detach() * per_sample).mean()


def quantile_huber_loss(
    quantiles: Tensor,
    target_quantiles: Tensor,
    taus: Tensor,
    weight: Tensor | None = None,
    target_weight: Tensor | None = None,
    *,
    kappa: float,
) -> Loss:
    """Quantile regression of `quantiles`, (B, N), on samples `target_quantiles`, (B, M).

    With delta_ij = target_j - quantile_i, the loss |tau_i - 1{delta_ij < 0}| *
    Huber(delta_ij) / kappa is summed over i, averaged over j and over the batch; QR-DQN,
    eq. 10. `taus`, (N,) or (B, N), belong to `quantiles`. `weight`, (B,), is that of
    prioritised replay; `target_weight`, (B, M) with sum 1, replaces the plain mean over j.
    `td_errors`, (B,), is the mean of |delta_ij|.
    """
    assert quantiles.dim() == target_quantiles.dim() == 2, (quantiles.shape, target_quantiles.shape)
    assert quantiles.shape[0] == target_quantiles.shape[0]
    assert taus.shape in (quantiles.shape, quantiles.shape[1:]), (taus.shape, quantiles.shape)
    assert target_weight is None or target_weight.shape == target_quantiles.shape
    per_quantile, slope, td_errors = _quantile_errors(
        quantiles, target_quantiles, taus, target_weight, kappa
    )
    # The value as it was computed, and a gradient that is known: the difference is 0.
    per_quantile = per_quantile - slope * (quantiles - quantiles.detach())
    total = weighted_mean(per_quantile.sum(-1), weight)
    return Loss(total, {"quantile_loss": total, "td_errors": td_errors})


@without_gradients
def _quantile_errors(
    quantiles: Tensor, targets: Tensor, taus: Tensor, share: Tensor | None, kappa: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, N) losses of the quantiles, how much they fall as each quantile rises, and (B,) mean
    errors; over the targets alike, or by their `share`."""
    delta = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # (B, N, M)
    clipped = delta.clamp(-kappa, kappa)  # the slope of the Huber loss
    below = clipped.clamp(max=0.0)  # the same where delta < 0
    rise = torch.sub(delta, clipped, alpha=0.5)
    error, scale = delta.abs(), 1.0 / kappa
    if share is None:
        error, scale = error.mean((-2, -1)), scale / delta.shape[-1]
    else:
        error = (error.mean(-2) * share).sum(-1)

    def total(terms: Tensor) -> Tensor:
        return terms.sum(-1) if share is None else torch.einsum("bnm,bm->bn", terms, share)

    # |tau - 1{delta < 0}| is tau + (1 - 2 tau) 1{delta < 0}, so tau multiplies sums over targets
    first, second = taus * scale, (1.0 - 2.0 * taus) * scale
    loss = first * total(clipped * rise) + second * total(below * rise)
    return loss, first * total(clipped) + second * total(below), error


V = TypeVar("V", bound=ValueParams, default=ValueParams)


class ValueAlgorithm(Algorithm[V, Batch]):
    """An online network, its copy for targets, and epsilon-greedy exploration."""

    loop: ClassVar[str] = "off_policy"
    learns_in: str | None = "learn"
    offline_loop: ClassVar[str | None] = "offline"
    action_kinds: ClassVar[frozenset[str]] = frozenset({"discrete"})
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})

    optimizer_name: ClassVar[str] = "quantiles"
    """Of the optimiser of the network's values."""

    last_td_errors: Tensor
    network: GreedyPolicy
    target_network: GreedyPolicy

    def __init__(self, spaces: Spaces, params: V, normalize_observations: bool = False) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.recurrent = self.slow_to_compile = params.remembers
        memory = self.make_memory() if params.remembers else None
        observed = self.observed() if memory is None else memory.out_dim
        hidden, dueling = self.layers("critic"), params.dueling
        self.network = self.make_network(
            ValueLayers(observed, spaces.action_dim, hidden, dueling, params.sigma)
        )
        self.network.memory = memory
        self.network.masked = spaces.has_mask
        self.target_network = frozen_copy(self.network)
        # listed once: looking them up costs as much as copying them
        self._online = list(self.network.parameters())
        self._target = list(self.target_network.parameters())
        self.register_buffer("last_td_errors", torch.zeros(params.batch_size), persistent=False)
        own = self.values_parameters()
        self.add_optimizer(self.optimizer_name, own, params.lr, eps=params.adam_eps)

    @classmethod
    def check_config(cls, config: TrainConfig) -> None:
        super().check_config(config)
        params, fields = config.params, cls.Params.model_fields

        def changed(names: Sequence[str]) -> Iterator[str]:
            return (name for name in names if getattr(params, name) != fields[name].default)

        if config.dataset is None:
            if params.remembers:
                cls._check_sequences(params)
            for name in changed(EPSILON_KNOBS if params.noisy else ()):
                raise ConfigError(
                    f"algo_kwargs.{name}: noisy networks explore by their weights, without "
                    f"epsilon; {without_knob(cls.Params, name)}, or set algo_kwargs.noisy=false"
                )
            return
        for name in changed(EXPERIENCE_KNOBS):
            raise ConfigError(
                f"algo_kwargs.{name}: {cls.name()} reads this key only where it learns in the "
                f"environment; {without_knob(cls.Params, name)}, or remove dataset to learn there"
            )

    @classmethod
    def _check_sequences(cls, params: ValueParams) -> None:
        refuse_cut_sequences(params, "batch_size")
        for name, plain in (("n_step", 1), ("prioritized", False)):
            if getattr(params, name) != plain:
                raise ConfigError(
                    f"algo_kwargs.{name}: with memory {cls.name()} learns from sequences that "
                    "are sampled uniformly, with one-step returns; "
                    f"{without_knob(cls.Params, name)}, or set algo_kwargs.memory=none"
                )

    def values_parameters(self) -> Iterable[nn.Parameter]:
        """What the loss of the values trains."""
        return self.network.parameters()

    @abstractmethod
    def make_network(self, layers: ValueLayers) -> GreedyPolicy: ...

    @abstractmethod
    def learn(self, batch: Batch) -> Metrics:
        """One step of the online network; the metrics include `td_errors`, (B,)."""

    def noise(self) -> Tensor | None:
        """New random numbers for one pass of a network; None if it has no noisy layers."""
        return self.normal(self.network.noise_size) if self.params.noisy else None

    @property
    def policy(self) -> Policy:
        return self.network

    def acting_networks(self) -> dict[str, nn.Module]:
        return {"policy": self.network, "target network": self.target_network}

    @property
    def memory(self) -> RecurrentMemory | None:
        return self.network.memory

    @staticmethod
    def states(network: GreedyPolicy, batch: Batch) -> Tensor:
        """(B, ...) what `network` gets of the states of a batch, as it remembers them."""
        past: Past | None = batch.past
        return batch.obs if past is None else network.recall(past)[:, :-1].flatten(0, 1)

    @staticmethod
    def next_states(network: GreedyPolicy, batch: Batch) -> Tensor:
        """(B, ...) what `network` gets of the states that follow."""
        past: Past | None = batch.past
        return batch.next_obs if past is None else network.recall(past)[:, 1:].flatten(0, 1)

    @without_gradients
    def act(self, obs: Tensor, *, explore: bool, carry: Carry | None = None) -> Act:
        noisy = self.params.noisy
        free = self.memory is None and not (self.spaces.has_mask or noisy)
        if explore and free and can_branch_on(obs) and not isinstance(self.fraction, Tensor):
            return Act(self._explored(obs, self.fraction))
        seen, carry = self.remembered(self.network_input(obs), carry)
        noise = None
        if explore and noisy:  # the same for all rows of one step
            noise = normal(self.network.noise_size, obs.device)
        action = self.network.mode(seen, noise)
        if explore and not noisy:
            share = epsilon(self.fraction, self.params)
            if self.spaces.has_mask:
                drawn = random_allowed(obs, self.spaces.action_dim)
                action = torch.where(
                    torch.rand(action.shape, device=obs.device) < share, drawn, action
                )
            else:
                action = epsilon_greedy(action, self.spaces.action_dim, share)
        return Act(action, carry)

    def _explored(self, obs: Tensor, fraction: float) -> Tensor:
        """`epsilon_greedy` on the host: the same actions from the same random numbers, and the
        network is not asked where chance decides alone."""
        count, share = self.spaces.action_dim, float(epsilon(fraction, self.params))
        places = torch.rand(obs.shape[0], dtype=torch.float64).tolist()
        uniform = [min(int(u * (count / max(share, 1e-12))), count - 1) for u in places]
        is_random = [u < share for u in places]
        if all(is_random):
            return torch.tensor(uniform)
        greedy = self.network.mode(self.network_input(obs))
        if not any(is_random):
            return greedy
        return torch.where(torch.tensor(is_random), torch.tensor(uniform), greedy)

    def every_action_value(self, obs: Tensor) -> Tensor:
        return self.network.q_values(obs)

    def action_values(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.network.q_values(obs).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def update(self, batch: Batch) -> Metrics:
        metrics = self.learn(batch)
        td_errors = metrics.pop("td_errors")
        if self.last_td_errors.shape != td_errors.shape:  # a batch of another size than the knob's
            self.last_td_errors.resize_(td_errors.shape)
        self.last_td_errors.copy_(td_errors)
        count, interval = self.update_count, self.params.target_update_interval
        due = int(count) % interval == 0 if can_branch_on(count) else count % interval == 0
        online, target = self._online, self._target
        if is_batched():  # several agents at once hold other tensors than those listed
            online, target = [*self.network.parameters()], [*self.target_network.parameters()]
        copy_where(due, online, target)
        inside = None if batch.past is None else batch.weight
        return {**metrics, "td_error_mean": weighted_mean(td_errors, inside)}


@without_gradients
def copy_where(due: Tensor | bool, source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    """target <- source where `due`; with a tensor the operations are the same whether or not."""
    if due is False:
        return
    for new, old in zip(source, target, strict=True):
        old.copy_(new if due is True else torch.where(due, new, old))
