"""The base class of algorithms: networks, named optimisers, `update` and `act`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from rl_training.algorithms.functional import Loss, Metrics, clipped_gradients
from rl_training.algorithms.loops import check_keys
from rl_training.algorithms.optim import EPS, FusedAdam, Optimizer, move_towards
from rl_training.algorithms.params import AnyParams
from rl_training.algorithms.swap import replaced
from rl_training.envs.spaces import ACTION_NAMES, Spaces
from rl_training.execution import can_branch_on, is_batched, without_gradients
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError
from rl_training.experiment.registry import working_algorithms
from rl_training.experiment.state import Stored
from rl_training.models import (
    ActionDistribution,
    ActorCritics,
    ActorValue,
    Architecture,
    Carry,
    Critics,
    NetworkKind,
    ObservationNormalizer,
    Observed,
    OwnNetwork,
    OwnNetworks,
    Policy,
    Role,
    ValueNetwork,
    critics_for,
    encoder_of_images,
    frozen_copy,
    policy_for,
    weights_on_sphere,
)
from rl_training.replay.batch import Batch, normalized

STANDARDIZED = ("simba", "simbav2")
"""Kinds of networks whose observations are standardised as they learn."""
ADAM: dict[NetworkKind, dict[str, float]] = {"crossq": {"beta1": 0.5}, "simba": {"decay": 0.01}}
"""How Adam differs for a kind of networks, as its authors have it."""
Networks = dict[str, nn.Module | nn.Parameter]
"""Learned networks and parameters by name."""

P = TypeVar("P", bound=AnyParams, default=Any)
"""The knobs of an algorithm."""
B = TypeVar("B", default=Any)
"""The batches that it learns from, as its loop makes them."""

RandomRows = Callable[[torch.Generator | None, int], Tensor]
"""Maps (generator, n) to n rows of random numbers on the device; None is the default generator."""


class DrawnAhead(Protocol):
    """Random numbers that were sampled before the update that uses them."""

    def take(self, rows: RandomRows) -> Tensor: ...


class Act(NamedTuple):
    """Actions in inner units, and the carry of a recurrent policy."""

    action: Tensor
    carry: Carry = ()


class Algorithm(nn.Module, Generic[P, B]):
    """Base class; `class MyAlgorithm(Algorithm[MyParams, Batch])` names its knobs and batches.

    State is complete by construction: weights and targets are modules, counters and
    running statistics are buffers, optimisers sit in `optimizers`; `training_state`
    returns all of it and no algorithm adds to it. `update` must be capturable: fixed
    shapes, no host sync, no branch on a tensor's value, noise only from `normal` and
    `uniform`.
    """

    Params: ClassVar[type[AnyParams]]
    loop: ClassVar[str]
    """The name of its loop, one of `loops.LOOPS`."""
    online_loop: ClassVar[str | None] = None
    """The loop of a run with `total_timesteps`, if it is another one."""
    offline_loop: ClassVar[str | None] = None
    """The loop of a run with a `dataset`, if `loop` learns in the environment."""
    paper: ClassVar[str]
    summary: ClassVar[str]
    """One line for `rl-training list`."""
    action_kinds: ClassVar[frozenset[str]] = frozenset({"box"})
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector"})
    takes_masks: ClassVar[bool] = True
    """Whether it keeps to the actions that a mask in the observations allows."""
    box_knobs: ClassVar[tuple[str, ...]] = ()
    """Knobs that have a meaning for Box actions alone."""
    needs_returns: ClassVar[bool] = False
    needs_next_actions: ClassVar[bool] = False
    """Whether batches of a data set hold the next action of the data."""
    needs_rewards: ClassVar[bool] = True
    """Whether the data of a run must have rewards."""
    recurrent: ClassVar[bool] = False
    """Whether the policy has a carry from step to step."""
    slow_to_compile: ClassVar[bool] = False
    """Whether an update has so many operations that it is not compiled by default."""
    losses: ClassVar[tuple[str, ...]] = ()
    """Metrics of `update` that are watched for NaN and infinity."""
    pieces: ClassVar[tuple[str, ...]] = ()
    """Methods that are compiled separately because an update repeats them; without any, the
    whole update is compiled."""
    softer_weights: ClassVar[str] = ""
    """Advice if the advantage weights collapse; for algorithms that log `weight_metrics`."""
    outside_update: ClassVar[tuple[str, ...]] = ()
    """Optimisers that `update` does not step, because the loop does."""

    update_count: Tensor
    nonfinite_at: Tensor
    reward_divisor: Tensor
    """What rewards are divided by; only for networks of the kind simbav2."""
    last_td_errors: Tensor
    """(B,) of the last update, for prioritised replay; only in value-based algorithms."""

    def __init__(self, spaces: Spaces, params: P, normalize_observations: bool = False) -> None:
        super().__init__()
        if spaces.action_kind not in self.action_kinds:
            kinds = " or ".join(ACTION_NAMES[kind] for kind in sorted(self.action_kinds))
            fitting = [
                name
                for name, other in working_algorithms().items()
                if spaces.action_kind in other.action_kinds
            ]
            raise EnvironmentSetupError(
                f"algo: {self.name()} takes {kinds} actions, but the task has "
                f"{spaces.describe()}; choose one of {', '.join(fitting)}"
            )
        self._refuse_unread_knobs(spaces, params)
        if spaces.has_mask and not self.takes_masks:
            raise EnvironmentSetupError(
                f"algo: {self.name()} does not keep to action masks, which the task has; choose "
                "another algorithm, or wrap the environment so that it gives none"
            )
        if spaces.is_image and "image" not in self.observation_kinds:
            fitting = [
                name
                for name, other in working_algorithms().items()
                if "image" in other.observation_kinds and spaces.action_kind in other.action_kinds
            ]
            raise EnvironmentSetupError(
                f"algo: {self.name()} takes vector observations, but the task has "
                f"{spaces.describe()}; choose an algorithm for images ({', '.join(fitting)}), or "
                "wrap the environment"
            )
        if spaces.is_image and normalize_observations:
            raise ConfigError(
                "algo_kwargs.normalize_observations: images are divided by 255 and need no "
                "statistics; remove this key"
            )
        self.spaces = spaces
        self.params: P = params
        factory = params.network_factory
        self._own_networks = None if factory is None else OwnNetworks(factory, spaces, params)
        width = 0 if spaces.is_image else spaces.obs_dim
        kept = spaces.action_dim if spaces.has_mask else 0
        # Statistics are the data's, or run along with the batches.
        self.runs_statistics = params.network_kind in STANDARDIZED and not normalize_observations
        active = normalize_observations or self.runs_statistics
        self.normalizer = ObservationNormalizer(width, active, kept)
        if params.network_kind == "simbav2":
            if spaces.is_discrete:
                raise ConfigError(
                    "algo_kwargs.architecture: simbav2 has critics of Box actions alone, but the "
                    f"task has {spaces.describe()}; use simba or crossq"
                )
            self.register_buffer("reward_divisor", torch.ones(()))
        self.averaged_policy: Policy | None = None
        self.optimizers: dict[str, Optimizer] = {}
        self.register_buffer("update_count", torch.zeros((), dtype=torch.int64))
        # Set only while a run makes updates: see `runtime.agents`.
        self.drawn_ahead: DrawnAhead | None = None
        # Fraction of the budget spent; online loops set it before acting, for schedules.
        self.fraction = 0.0
        # First update at which each loss was not finite, -1 while all were: read by the
        # trainer at its ticks, so that no update has to wait for the host.
        never = torch.full((len(self.losses),), -1, dtype=torch.int64)
        self.register_buffer("nonfinite_at", never, persistent=False)
        self.register_buffer("own_rows", None, persistent=False)

    @classmethod
    def name(cls) -> str:
        """Short public name, such as AWR."""
        return cls.__name__.removesuffix("Algorithm")

    @classmethod
    def loops(cls) -> tuple[str, ...]:
        """The loops that runs of this algorithm can have."""
        other = cls.online_loop or cls.offline_loop
        return (cls.loop,) if other is None else (cls.loop, other)

    @classmethod
    def loop_of(cls, config: TrainConfig) -> str:
        """The loop of a run: if there are two, a budget of environment steps or a data set
        decides."""
        if cls.offline_loop is not None and config.dataset is not None:
            return cls.offline_loop
        online = cls.online_loop
        return cls.loop if online is None or config.total_timesteps is None else online

    @classmethod
    def check_config(cls, config: TrainConfig) -> None:
        """Refuse configurations that do not fit the algorithm; subclasses add their own checks."""
        check_keys(cls, config)

    @classmethod
    def _refuse_unread_knobs(cls, spaces: Spaces, params: Any) -> None:
        for name in () if spaces.is_box else cls.box_knobs:
            if getattr(params, name) != type(params).model_fields[name].default:
                raise ConfigError(
                    f"algo_kwargs.{name}: {cls.name()} reads this key for Box actions alone, but "
                    f"the task has {spaces.describe()}; remove this key"
                )

    # --- networks -----------------------------------------------------------------------------

    def own_network(
        self, role: Role, in_shape: tuple[int, ...], out_dim: int | None
    ) -> OwnNetwork | None:
        """The network that the user's factory makes, see `NetworkRequest`; None without one."""
        return None if self._own_networks is None else self._own_networks(role, in_shape, out_dim)

    def observed(self) -> Observed:
        """What one network of this task looks at; an encoder of its own for images."""
        if self._own_networks is not None:
            shape, images = self.spaces.obs_shape, self.spaces.is_image
            own = self._own_networks("encoder", shape, None, images)
            if own is not None:
                return own
        return encoder_of_images(self.spaces) if self.spaces.is_image else self.spaces.obs_dim

    def layers(self, role: Role) -> Architecture:
        """The layers of one network of this algorithm."""
        layers = self.params.layers(role)
        if self._own_networks is None:
            return layers
        return replace(layers, own=partial(self._own_networks, role))

    def make_policy(
        self, distribution: ActionDistribution = "gaussian", state_dependent_std: bool = True
    ) -> Policy:
        """The stochastic policy that fits the action space; for Box actions see `policy_for`."""
        spaces = self.spaces
        return policy_for(
            self.observed(),
            spaces.action_kind,
            spaces.action_dim,
            self.layers("policy"),
            distribution,
            state_dependent_std,
            masked=spaces.has_mask,
            choices=spaces.action_choices,
        )

    def make_critics(self, num_critics: int = 2, masked: bool = True) -> Critics:
        """Critics that fit the action space; with `masked` they know a task's action masks."""
        spaces = self.spaces
        return critics_for(
            spaces.action_kind,
            num_critics,
            self.observed(),
            spaces.action_dim,
            self.layers("critic"),
            masked=masked and spaces.has_mask,
        )

    def make_value(self) -> ValueNetwork:
        """A state value."""
        return ValueNetwork(self.observed(), self.layers("value"))

    def actor_and_critics(
        self, num_critics: int = 2, distribution: ActionDistribution = "tanh_gaussian"
    ) -> ActorCritics:
        """A policy and critics, on networks of their own."""
        return ActorCritics(self.make_policy(distribution), self.make_critics(num_critics))

    def actor_and_value(
        self, distribution: ActionDistribution, state_dependent_std: bool = True
    ) -> ActorValue:
        """A policy and a state value, on networks of their own."""
        return ActorValue(self.make_policy(distribution, state_dependent_std), self.make_value())

    @property
    def gamma(self) -> float:
        """Discount of the task; 1 for algorithms that use no returns."""
        return self.params.discount

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """The policy that acts."""

    @property
    def acting_policy(self) -> Policy:
        """The policy, or the average of it where the knobs ask for one."""
        return self.policy if self.averaged_policy is None else self.averaged_policy

    def acting_networks(self) -> dict[str, nn.Module]:
        """What the policy acts with, by name: all of it is taken over by a run that starts from
        this one."""
        return {"policy": self.policy}

    def other_networks(self) -> Networks:
        """Further networks that another run may start with, by name: the same name in two
        algorithms means that they are interchangeable, given the same rewards and discount."""
        return {}

    def own_knobs(self, text: str) -> str:
        """A message that names knobs of the policy, with the keys they have here."""
        return text

    @abstractmethod
    def update(self, batch: B) -> Metrics:
        """Learn from one batch; the metrics are detached 0-d tensors on the device."""

    def step(self, batch: B) -> Metrics:
        """Count, update, and record the first loss that is not finite."""
        self.update_count += 1
        metrics = self.update(self.prepared(batch))
        if self.averaged_policy is not None:
            self._move_average(self.averaged_policy)
        watched = [metrics.get(name) for name in self.losses]
        if can_branch_on(self.update_count):
            for i, value in enumerate(watched):
                if value is not None and not math.isfinite(value) and self.nonfinite_at[i] < 0:
                    self.nonfinite_at[i] = self.update_count
        elif watched:
            known = next(value for value in watched if value is not None)
            finite = torch.ones_like(known)  # for a loss that is switched off
            values = torch.stack([finite if value is None else value for value in watched])
            bad = ~torch.isfinite(values) & (self.nonfinite_at < 0)
            self.nonfinite_at.copy_(torch.where(bad, self.update_count, self.nonfinite_at))
        return metrics

    def prepared(self, batch: B) -> B:
        """The batch as networks want it that standardise what they see as they learn."""
        kind = self.params.network_kind
        if kind not in STANDARDIZED:
            return batch
        assert isinstance(batch, Batch)
        changed: Batch = batch
        if self.runs_statistics:
            self.normalizer.observe(changed.obs)
            changed = normalized(changed, self.normalizer)
        if kind == "simbav2":
            changed = changed._replace(reward=changed.reward / self.reward_divisor)
        return changed  # type: ignore[return-value]

    @without_gradients
    def _move_average(self, averaged: Policy) -> None:
        """A plain mean at first, so that the initial weights are forgotten at once."""
        rate, count = self.params.averaging, self.update_count
        targets: list[Tensor] = list(averaged.parameters())
        sources: list[Tensor] = list(self.policy.parameters())
        if can_branch_on(count):
            move_towards(targets, sources, max(rate, 1.0 / int(count)))
        else:
            move_towards(targets, sources, 1.0, (1.0 / count).clamp(min=rate))

    @without_gradients
    def act(self, obs: Tensor, *, explore: bool, carry: Carry | None = None) -> Act:
        """Inner actions for a batch of raw observations.

        `carry` is what the previous step returned; without one every row starts an episode.
        """
        obs = self.network_input(obs)
        policy = self.acting_policy
        return Act(policy.sample(obs) if explore else policy.mode(obs))

    def network_input(self, obs: Tensor) -> Tensor:
        """Raw observations as the policy's network gets them."""
        normalizer: Any = self._modules["normalizer"]  # asking the module for it takes longer
        return normalizer(obs) if normalizer.active else obs

    def initial_carry(self, rows: int) -> Carry:
        """The carry at a reset."""
        return ()

    def with_action(self, carry: Carry, action: Tensor) -> Carry:
        """The carry after executing `action` in place of the policy's."""
        return carry

    # --- what it has learned ------------------------------------------------------------------
    #
    # For normalised observations and inner actions, without gradients. None if an algorithm has
    # nothing of the kind; one whose networks have other names overrides these.

    def action_values(self, obs: Tensor, action: Tensor) -> Tensor | None:
        """(B,) expected returns of given actions: the smallest of the critics' values."""
        critics = self.other_networks().get("critics")
        if not isinstance(critics, nn.Module):
            return None
        values: Tensor = critics(obs, action)
        return self.in_given_units(values.amin(0))

    def in_given_units(self, values: Tensor) -> Tensor:
        """Values of the critics as sums of rewards as they were given."""
        scaled = self.params.network_kind == "simbav2"
        return values * self.reward_divisor if scaled else values

    def every_action_value(self, obs: Tensor) -> Tensor | None:
        """(B, actions) expected returns of all Discrete actions."""
        rows, count = obs.shape[0], self.spaces.action_dim
        actions = torch.arange(count, device=obs.device).repeat(rows)
        values = self.action_values(obs.repeat_interleave(count, 0), actions)
        return None if values is None else values.view(rows, count)

    def state_values(self, obs: Tensor) -> Tensor | None:
        """(B,) expected returns of states, or of the policy's most likely actions in them."""
        value = self.other_networks().get("value")
        if not isinstance(value, nn.Module):
            return self.action_values(obs, self.acting_policy.mode(obs))
        values: Tensor = value(obs)
        return values

    def td_errors(self, batch: Batch) -> Tensor | None:
        """(B,) r + discount * V(s') - Q(s, a), or with V(s) where there is no Q."""
        following = self.state_values(batch.next_obs)
        expected = self.action_values(batch.obs, batch.action)
        if expected is None:
            expected = self.state_values(batch.obs)
        if expected is None or following is None:
            return None
        return batch.reward + batch.discount * following - expected

    def log_probs(self, obs: Tensor, action: Tensor) -> Tensor | None:
        """(B,) log-densities or log-probabilities of given actions."""
        policy = self.acting_policy
        return policy.log_prob(obs, action) if policy.has_density else None

    # --- data ---------------------------------------------------------------------------------

    own_rows: Tensor | None
    """Rows of the data set that this learner draws from, where those are not all alike."""
    own_row_count: Tensor

    @property
    def resamples_episodes(self) -> bool:
        """Whether it learns from episodes of the data drawn with replacement, by its seed."""
        return False

    def refuse_missing_start(self, init_from: str | None) -> None:
        """Refuse to learn without the run that `init_from` names, where one is needed."""

    def see_rewards(self, low: float, high: float) -> None:
        """Be given the smallest and the largest reward of the data, before the first update."""

    def draw_from(self, rows: Tensor, count: int) -> None:
        """From here on learn from the first `count` of `rows`, as often as each stands there."""
        self.register_buffer("own_rows", rows, persistent=False)
        size = torch.tensor(count, dtype=torch.float64, device=rows.device)
        self.register_buffer("own_row_count", size, persistent=False)

    def drawn_rows(self, size: int) -> Tensor:
        """(size,) of the rows that `draw_from` named."""
        assert self.own_rows is not None
        device = self.own_rows.device

        def uniform(generator: torch.Generator | None, n: int) -> Tensor:
            kind: dict[str, Any] = {"dtype": torch.float64, "device": device}
            return torch.rand(n, size, generator=generator, **kind)

        place = (self.random(uniform) * self.own_row_count).long()
        return self.own_rows.index_select(0, place)

    # --- randomness ---------------------------------------------------------------------------

    def random(self, rows: RandomRows) -> Tensor:
        """One row of random numbers: the next of those sampled ahead, if there are any."""
        return rows(None, 1)[0] if self.drawn_ahead is None else self.drawn_ahead.take(rows)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal noise."""
        device = self.update_count.device
        return self.random(lambda g, n: torch.randn(n, *shape, generator=g, device=device))

    def uniform(self, *shape: int) -> Tensor:
        """Noise in [0, 1)."""
        device = self.update_count.device
        return self.random(lambda g, n: torch.rand(n, *shape, generator=g, device=device))

    # --- optimisation -------------------------------------------------------------------------

    def add_optimizer(
        self,
        name: str,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float | Sequence[float] = 0.0,
        eps: float = EPS,
        **options: Any,
    ) -> None:
        """An Adam under `name`, on the device its parameters already live on."""
        self.optimizers[name] = FusedAdam(parameters, lr, weight_decay, eps, **options)
        if name == "policy" and self.params.averaging:  # the policy is there now
            self.averaged_policy = frozen_copy(self.policy)

    def add_optimizer_of(self, name: str, network: nn.Module, lr: float) -> None:
        """The Adam of a policy or of critics, as their kind of network wants it."""
        options: dict[str, Any] = dict(ADAM.get(self.params.network_kind, {}))
        if self.params.network_kind == "simbav2":
            options["on_sphere"] = weights_on_sphere(network)
        self.add_optimizer(name, network.parameters(), lr, **options)

    def minimize(self, loss: Callable[[], Loss], *names: str, due: Tensor | None = None) -> Metrics:
        """One backward pass and one step of each named optimiser.

        The only place where gradients are taken. Gradients reach the parameters of the
        named optimisers and no others, and are clipped per optimiser. `due` is a 0-d mask for
        steps that are not taken at every update: see `is_due`.
        """
        optimizers = [self.optimizers[name] for name in names]
        parameters = [p for optimizer in optimizers for p in optimizer.parameters]
        gradients, metrics = self._gradients(loss, parameters)
        start, clip = 0, self.params.clip_norm
        for optimizer in optimizers:
            own = gradients[start : start + len(optimizer.parameters)]
            start += len(own)
            if clip is not None:
                own = clipped_gradients(own, clip)
            optimizer.step(own, due)
        return {key: value.detach() for key, value in metrics.items()}

    def is_due(self, interval: int) -> Tensor | None:
        """The mask of a step that is taken in the first of every `interval` updates."""
        return None if interval == 1 else (self.update_count - 1) % interval == 0

    def _gradients(
        self, loss: Callable[[], Loss], parameters: list[Tensor]
    ) -> tuple[list[Tensor], Metrics]:
        if not is_batched():
            total, metrics = loss()
            return list(torch.autograd.grad(total, parameters)), metrics

        def of(values: list[Tensor]) -> Loss:
            with replaced(self, parameters, values):
                return loss()

        gradients, metrics = torch.func.grad(of, has_aux=True)(parameters)
        return gradients, metrics

    def state_tensors(self) -> list[Tensor]:
        """All tensors that an update writes to."""
        optimizers = self.optimizers.values()
        own = [*self.parameters(), *self.buffers()]
        return own + [x for optimizer in optimizers for x in optimizer.tensors()]

    def set_lr_factor(self, factor: float, only: tuple[str, ...] | None = None) -> None:
        """Set each scheduled optimiser's learning rate to its base times `factor`."""
        for name, optimizer in self.optimizers.items():
            if only is None or name in only:
                optimizer.lr.fill_(optimizer.base_lr * factor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Behind `.to()` and its like: the optimisers follow their parameters."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers.values():
            optimizer.move(fn)
        return self

    # --- state --------------------------------------------------------------------------------

    def training_state(self) -> dict[str, Any]:
        """The complete state for an exact resume."""
        return {
            "modules": self.state_dict(),
            "optimizers": {name: opt.training_state() for name, opt in self.optimizers.items()},
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "algorithm")
        load_module(self, stored.section("modules"))
        optimizers = stored.section("optimizers")
        for name, optimizer in self.optimizers.items():
            optimizer.load_training_state(optimizers.section(name))

    def first_nonfinite(self) -> tuple[str, int] | None:
        """The losses that were NaN or infinite first, in words, and the update at which."""
        found = dict(zip(self.losses, self.nonfinite_at.tolist(), strict=True))
        bad = [at for at in found.values() if at >= 0]
        if not bad:
            return None
        blamed = " and ".join(name for name, at in found.items() if at == min(bad))
        return blamed.replace("_", " "), min(bad)

    def nonfinite_weight(self) -> str | None:
        """Name of a weight or statistic that is NaN or infinite."""
        for name, tensor in self.state_dict().items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return name
        return None


def load_module(module: nn.Module, stored: Stored) -> None:
    """Copy stored weights and buffers into a module after checking every one.

    `load_state_dict` alone would convert whatever numbers it finds.
    """
    own = module.state_dict()
    module.load_state_dict({name: stored.tensor_like(name, value) for name, value in own.items()})
