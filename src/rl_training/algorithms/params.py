"""Knobs that algorithms share; each algorithm adds its own in its own file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rl_training.algorithms.knob_limits import within_limit
from rl_training.experiment.config import (
    Count,
    Finite,
    Fraction,
    HiddenSizes,
    NonNegative,
    NonNegativeInt,
    Positive,
    Rate,
    Section,
)
from rl_training.experiment.config_errors import shortened
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.ranges import Choices, Log
from rl_training.models import (
    ActionDistribution,
    Activation,
    Architecture,
    MemoryKind,
    NetworkKind,
    Role,
)


def _in_order(value: tuple[float, float]) -> tuple[float, float]:
    if not value[0] < value[1]:
        raise ValueError("the first number must be below the second")
    return value


ValueRange = Annotated[tuple[Finite, Finite], Field(strict=False), AfterValidator(_in_order)]
"""The smallest and the largest return."""


def _factory_name(value: Any) -> str:
    """A function, or its name, as package.module:function."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", value):
        return value
    if not callable(value):
        raise ValueError(
            f"expected a function, or its name as package.module:function, got {shortened(value)}"
        )
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if not name or "<" in name:
        raise ValueError(
            "a run stores the function by its name, and this one cannot be imported; define it at "
            "the top of a module"
        )
    return f"{module}:{name}"


FactoryName = Annotated[str, BeforeValidator(_factory_name)]

LearningRate = Annotated[Positive, Log(1e-5, 1e-2)]
Discount = Annotated[Fraction, Choices((0.9, 0.95, 0.98, 0.99, 0.995, 0.999))]
TargetRate = Annotated[Rate, Log(1e-3, 0.1)]
Temperature = Annotated[Positive, Log(0.05, 10.0)]
ReturnTemperature = Annotated[NonNegative | None, Choices((0.0, 0.1, 0.3), by_default=False)]
BY_RETURN = 0.1
"""What algorithms that prefer better episodes by default take for it; Hong et al. 2023."""
PolicyDelay = Annotated[Count, Choices((1, 2, 3))]
WeightLimit = Annotated[Positive, Log(5.0, 200.0, by_default=False)]
GradClip = Annotated[Positive | None, Choices((None, 0.5, 1.0, 10.0), by_default=False)]
BatchSize = Annotated[Count, Choices((64, 128, 256, 512), by_default=False)]
Widths = Annotated[
    HiddenSizes, Choices(((64, 64), (128, 128), (256, 256), (256, 256, 256)), by_default=False)
]
UpdatesPerStep = Annotated[Positive, Choices((0.25, 0.5, 1.0, 2.0), by_default=False)]


class AnyParams(Section):
    """What the package reads from the knobs of any algorithm."""

    before_stored: ClassVar[Mapping[str, Any]] = {}
    """What runs that were stored before there was a knob did, where that is not its default."""

    @property
    def network_factory(self) -> str | None:
        """Name of the function that makes networks, where the user has one."""
        return None

    def layers(self, role: Role) -> Architecture:
        """The hidden layers of a network in this role."""
        raise NotImplementedError

    @property
    def clip_norm(self) -> float | None:
        """Largest gradient norm per optimiser."""
        return None

    @property
    def discount(self) -> float:
        """Discount of the task; 1 for algorithms that look at no return."""
        return 1.0

    @property
    def averaging(self) -> float:
        """Share by which an average of the policy, which acts, follows it; 0 where none does."""
        return 0.0

    @property
    def preference(self) -> float | None:
        """Temperature at which episodes are drawn by their return; 0 where all rows are alike,
        None where the algorithm chooses."""
        return 0.0

    @property
    def network_kind(self) -> NetworkKind:
        """How the layers of policies and critics are made."""
        return "mlp"

    @property
    def widest_layer(self) -> int:
        """Units of the widest hidden layer of any network."""
        raise NotImplementedError


class OwnNetworkParams(AnyParams):
    """Knobs of algorithms whose networks the user can make."""

    networks: FactoryName | None = None
    """Function of your own that makes networks, as package.module:function."""

    @property
    def network_factory(self) -> str | None:
        return self.networks


class Params(AnyParams):
    """Knobs that almost every algorithm has; each algorithm adds its own."""

    batch_size: BatchSize = 256
    """Transitions per update."""
    hidden_sizes: Widths = (256, 256)
    """Widths of the hidden layers of every network."""
    grad_clip: GradClip = None
    """Largest gradient norm per network; none by default."""

    @field_validator("*")
    @classmethod
    def _no_endless_work(cls, value: Any, info: ValidationInfo) -> Any:
        return within_limit(info.field_name or "", value)

    @property
    def clip_norm(self) -> float | None:
        return self.grad_clip

    @property
    def widest_layer(self) -> int:
        return max(self.hidden_sizes)


class AveragedPolicyParams(AnyParams):
    """Knob of algorithms that learn a policy without an environment to choose the last one by."""

    policy_average: Annotated[Fraction, Choices((0.0, 1e-3, 5e-3), by_default=False)] = 0.0
    """Rate of a moving average of the policy's weights, which then acts; 0 for none."""

    @property
    def averaging(self) -> float:
        return self.policy_average


class OfflinePolicyParams(AveragedPolicyParams):
    """Knobs of algorithms that learn a policy from data: what acts, and which episodes count."""

    before_stored: ClassVar[Mapping[str, Any]] = {"return_temperature": 0.0}

    return_temperature: ReturnTemperature = 0.0
    """Sample rows in proportion to exp(return of their episode, in 0..1, / this); 0 is uniform."""

    @property
    def preference(self) -> float | None:
        return self.return_temperature


class NetworkParams(Params, OwnNetworkParams):
    """Network knobs of algorithms that use MLPs."""

    activation: Activation = "relu"
    """Function after every hidden layer."""
    layer_norm: bool = False
    """LayerNorm before the activations of critics and value networks."""

    normed_roles: ClassVar[tuple[Role, ...]] = ("critic", "value")
    """Networks that `layer_norm` is for."""

    def hidden_sizes_of(self, role: Role) -> tuple[int, ...]:
        return self.hidden_sizes

    def layers(self, role: Role) -> Architecture:
        normed = self.layer_norm and role in self.normed_roles
        return Architecture(self.hidden_sizes_of(role), self.activation, normed)


class ActorCriticParams(NetworkParams):
    """Knobs of algorithms with a policy and a critic on networks of their own."""

    policy_hidden_sizes: HiddenSizes | None = None
    """Widths of the policy's hidden layers; hidden_sizes by default."""
    critic_hidden_sizes: HiddenSizes | None = None
    """Widths of the hidden layers of critics and value networks; hidden_sizes by default."""

    def hidden_sizes_of(self, role: Role) -> tuple[int, ...]:
        own = self.policy_hidden_sizes if role == "policy" else self.critic_hidden_sizes
        return own or self.hidden_sizes

    @property
    def widest_layer(self) -> int:
        return max(*self.hidden_sizes_of("policy"), *self.hidden_sizes_of("critic"))


class MemoryParams(AnyParams):
    """Knobs of algorithms whose networks may remember earlier observations."""

    memory: MemoryKind = "none"
    """Recurrent layer before the networks, for tasks where one observation says too little."""
    memory_size: Annotated[Count, Choices((32, 64, 128), by_default=False)] = 64
    """Units of the recurrent layer."""
    sequence_length: Count = 16
    """Steps through which gradients of the recurrent layer flow back."""

    @property
    def remembers(self) -> bool:
        return self.memory != "none"


class CloningParams(NetworkParams, OfflinePolicyParams):
    """Knobs of algorithms whose policy is fitted to the data's actions."""

    action_distribution: ActionDistribution = "gaussian"
    """Density of Box actions: a Gaussian around a mean inside the box, or the tanh of one."""


class DiscountedParams(NetworkParams):
    """Knobs of algorithms that look at returns."""

    gamma: Discount = 0.99
    """Discount per step; 1 only for tasks that end, because returns without an end grow forever."""

    @property
    def discount(self) -> float:
        return self.gamma


class TargetNetworkParams(DiscountedParams, ActorCriticParams):
    """Knobs of algorithms that bootstrap from slowly moving critics."""

    tau: TargetRate = 5e-3
    """Rate at which target networks follow the online ones, per update."""
    policy_lr: LearningRate = 3e-4
    """Learning rate of the policy."""
    critic_lr: LearningRate = 3e-4
    """Learning rate of the critics."""


class NetworkKindParams(TargetNetworkParams):
    """Knobs of algorithms whose policy and critics can be made in several ways."""

    architecture: NetworkKind = "mlp"
    """Layers of policy and critics: mlp, crossq (no target critics), simba or simbav2."""

    @property
    def network_kind(self) -> NetworkKind:
        return self.architecture

    def layers(self, role: Role) -> Architecture:
        sizes = self.hidden_sizes_of(role)
        if self.architecture.startswith("simba") and len(set(sizes)) != 1:
            raise ConfigError(
                f"algo_kwargs.architecture: {self.architecture} makes one block per hidden layer, "
                f"all of the same width, but the {role} has {list(sizes)}; give equal widths"
            )
        return replace(super().layers(role), kind=self.architecture)

    @model_validator(mode="after")
    def _one_way_to_make_networks(self) -> Self:
        if self.architecture != "mlp" and self.networks is not None:
            raise ValueError(
                f"networks: a function of your own replaces the layers that architecture="
                f"{self.architecture} stands for; remove one of the two keys"
            )
        return self


class PriorityExponents(NamedTuple):
    """Exponents of prioritised replay: of priorities, and of importance weights at the start."""

    alpha: float
    beta: float


class ReplayParams(AnyParams):
    """Knobs of loops that learn from a replay of their own experience."""

    buffer_capacity: Count = 1_000_000
    """Transitions the replay holds; the oldest are overwritten."""
    learning_starts: NonNegativeInt = 1_000
    """Environment steps with random actions before the first update."""
    train_frequency: Count = 1
    """Environment steps between two rounds of updates."""
    gradient_updates_per_step: UpdatesPerStep = 1.0
    """Updates per environment step; fractions are kept exactly over time."""

    @property
    def updates_at_once(self) -> int:
        """Updates that one `step` of the algorithm makes, of `batch_size` rows each."""
        return 1

    @property
    def return_steps(self) -> int:
        """Steps of the returns that the replay gives."""
        return 1

    @property
    def priority_exponents(self) -> PriorityExponents | None:
        """Of a prioritised replay; None where rows are drawn evenly."""
        return None


class OffPolicyParams(DiscountedParams, ReplayParams):
    """Knobs of the loop that learns from transitions of its own experience."""


class OfflineToOnlineParams(OffPolicyParams):
    """Knobs of the loop that learns from prior data and its own experience together."""

    learning_starts: NonNegativeInt = 1_000
    """Environment steps before the first update; random unless the policy has learned before."""
    offline_pretrain_updates: NonNegativeInt = 0
    """Updates on the prior data alone, before the first environment step."""
    offline_batch_ratio: Annotated[Fraction, Choices((0.25, 0.5, 0.75), by_default=False)] = 0.5
    """Share of every minibatch that is prior data, to the nearest whole row."""

    @property
    def offline_rows(self) -> int:
        """Rows of prior data in every minibatch."""
        return round(self.batch_size * self.offline_batch_ratio)

    def refuse_missing_part(self) -> None:
        """Refuse minibatches that cannot hold what the ratio says; a run from data has none."""
        try:
            refuse_missing_part(self.batch_size, self.offline_batch_ratio)
        except ValueError as error:
            raise ConfigError(f"algo_kwargs.offline_batch_ratio: {error}") from None


def refuse_cut_sequences(params: MemoryParams, *names: str) -> None:
    """Refuse knobs of these names that are no multiple of the sequences' length."""
    length = params.sequence_length
    for name in names:
        steps: int = getattr(params, name)
        if steps % length:
            raise ConfigError(
                f"algo_kwargs.sequence_length: {length:,} does not divide the {name} of {steps:,}, "
                "and a policy with memory learns from whole sequences; set a divisor, such as "
                f"{math.gcd(steps, length):,}, or another {name}"
            )


def without_knob(params: type[Section], name: str) -> str:
    """The advice to leave out a knob, which a packaged config may have set, so that only its
    default takes it back."""
    default = params.model_fields[name].get_default(call_default_factory=True)
    value = default if isinstance(default, str) else json.dumps(default)
    return f"remove this key, or set it to its default, {value}"


def refuse_missing_part(batch_size: int, ratio: float) -> None:
    """Refuse a share of the minibatch that rounds to none or all of it; size 0 is not known."""
    if batch_size and 0.0 < ratio < 1.0 and not 0 < round(batch_size * ratio) < batch_size:
        least = math.floor(0.5 / min(ratio, 1.0 - ratio)) + 1
        raise ValueError(
            f"a batch_size of {batch_size} cannot hold both parts at the ratio {ratio:g}; raise "
            f"batch_size to {least} or more, or take the ratio 0 or 1"
        )
