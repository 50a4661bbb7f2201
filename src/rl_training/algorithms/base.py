"""The base class of algorithms: networks, named optimisers, `update` and `act`."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.learner import DrawnAhead, P
from rl_training.algorithms.loops import check_keys
from rl_training.algorithms.networks import NetworkMaker
from rl_training.algorithms.optim import Optimizer, move_towards
from rl_training.algorithms.params import AnyParams
from rl_training.algorithms.refusals import refuse_unfit
from rl_training.envs.spaces import Spaces
from rl_training.execution import can_branch_on, without_gradients
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.models import (
    Carry,
    ObservationNormalizer,
    OwnNetworks,
    Policy,
    RecurrentMemory,
)
from rl_training.replay.batch import Batch, normalized

STANDARDIZED = ("simba", "simbav2")
"""Kinds of networks whose observations are standardised as they learn."""
Networks = dict[str, nn.Module | nn.Parameter]
"""Learned networks and parameters by name."""

B = TypeVar("B", default=Any)
"""The batches that it learns from, as its loop makes them."""


class Act(NamedTuple):
    """Actions in inner units, and the carry of a recurrent policy."""

    action: Tensor
    carry: Carry = ()


class Algorithm(NetworkMaker[P], Generic[P, B]):
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
    recurrent: bool = False
    """Whether the policy has a carry from step to step; knobs may decide."""
    acts_by_tensors: ClassVar[bool] = False
    """Whether the actions that its `act` draws depend on tensors alone, and no branch on their
    values: on a GPU it is then captured in a graph. Of a subclass's own `act` it is said anew."""
    slow_to_compile: bool = False
    """Whether an update has so many operations that it is not compiled by default."""
    cycle: int = 1
    """Updates after which its delayed steps repeat: a run makes a form of the update for each place
    in the cycle, without the steps that are not due there; knobs may decide."""
    learns_in: str | None = None
    """The method that learns from a batch by the same operations on tensors every time, if long
    online runs on the host are to record it; knobs may decide."""
    pieces: ClassVar[tuple[str, ...]] = ()
    """Methods that are compiled separately because an update repeats them; without any, the
    whole update is compiled."""
    softer_weights: ClassVar[str] = ""
    """Advice if the advantage weights collapse; for algorithms that log `weight_metrics`."""
    outside_update: ClassVar[tuple[str, ...]] = ()
    """Optimisers that `update` does not step, because the loop does."""
    own_temperature: float = 0.0
    """At which episodes are drawn by their return where `return_temperature` is not set."""

    reward_divisor: Tensor
    """The divisor of rewards; only for networks of the kind simbav2."""
    last_td_errors: Tensor
    """(B,) of the last update, for prioritised replay; only in value-based algorithms."""

    def __init__(self, spaces: Spaces, params: P, normalize_observations: bool = False) -> None:
        super().__init__()
        refuse_unfit(type(self), spaces, params, normalize_observations)
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
                    "algo_kwargs.architecture: simbav2 has critics only for Box actions, but the "
                    f"task has {spaces.describe()}; use simba or crossq"
                )
            self.register_buffer("reward_divisor", torch.ones(()))
        self.averaged_policy: Policy | None = None
        self.optimizers: dict[str, Optimizer] = {}
        self.register_buffer("update_count", torch.zeros((), dtype=torch.int64))
        # Set only while a run makes updates: see `runtime.agents`.
        self.drawn_ahead: DrawnAhead | None = None
        # Fraction of the budget spent, a number or a tensor with one; online loops set it before
        # acting, for schedules.
        self.fraction: float | Tensor = 0.0
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
    def takes_task(cls, spaces: Spaces) -> bool:
        """Whether it takes the actions, masks and observations of a task, so that it may be
        recommended for it; a subclass that refuses more adds it here."""
        return (
            spaces.action_kind in cls.action_kinds
            and (cls.takes_masks or not spaces.has_mask)
            and ("image" in cls.observation_kinds or not spaces.is_image)
        )

    @classmethod
    def check_config(cls, config: TrainConfig) -> None:
        """Refuse configurations that do not fit the algorithm; subclasses add their own checks."""
        check_keys(cls, config)

    @property
    def gamma(self) -> float:
        """Discount of the task; 1 for algorithms that use no returns."""
        return self.params.discount

    @property
    def memory(self) -> RecurrentMemory | None:
        """What the policy remembers of the observations before, where it has a carry of that."""
        return None

    @property
    def acting_policy(self) -> Policy:
        """The policy, or the average of it where the knobs ask for one."""
        return self.policy if self.averaged_policy is None else self.averaged_policy

    def acting_networks(self) -> dict[str, nn.Module]:
        """What the policy acts with, by name: all of it is taken over by a run that starts from
        this one."""
        own: dict[str, nn.Module] = {"policy": self.policy}
        return own if self.memory is None else {**own, "memory": self.memory}

    def other_networks(self) -> Networks:
        """Further networks that another run may start with, by name: the same name in two
        algorithms means that they are interchangeable, given the same rewards and discount."""
        return {}

    def own_knobs(self, text: str) -> str:
        """A message that names knobs of the policy, with the keys they have here."""
        return text

    def fused_pieces(self) -> dict[str, Any]:
        """Attributes whose compiled forms replace them in a compiled run: functions, and named
        tuples of functions, each compiled by itself and with its gradient. For updates that are
        too long to compile as a whole."""
        return {}

    @abstractmethod
    def update(self, batch: B) -> Metrics:
        """Learn from one batch; the metrics are detached 0-d tensors on the device."""

    def step(self, batch: B) -> Metrics:
        """Count, update, and record the first loss that is not finite."""
        self.update_count.add_(1)  # `+=` would set the attribute, too, at ten times the price
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

    def act(self, obs: Tensor, *, explore: bool, carry: Carry | None = None) -> Act:
        """Inner actions for a batch of raw observations.

        `carry` is what the previous step returned; without one every row starts an episode.
        """
        if torch.is_grad_enabled():
            with torch.no_grad():
                return Algorithm.act(self, obs, explore=explore, carry=carry)
        policy, normalizer, forgets = self.acting_parts
        if forgets and not normalizer.active:
            action = policy.sample(obs) if explore else policy.mode(obs)
            return tuple.__new__(Act, (action, ()))  # half the price of `Act(action)`
        seen, carry = self.remembered(self.network_input(obs), carry)
        return Act(policy.sample(seen) if explore else policy.mode(seen), carry)

    @cached_property
    def acting_parts(self) -> tuple[Policy, ObservationNormalizer, bool]:
        """The policy that acts, what its observations pass before, and whether it has no memory.
        Modules stay the same objects; finding them at every step takes a tenth of a small
        network's time."""
        return self.acting_policy, self.normalizer, self.memory is None

    def network_input(self, obs: Tensor) -> Tensor:
        """Raw observations as the policy's network gets them."""
        normalizer: Any = self._modules["normalizer"]  # asking the module for it takes longer
        return normalizer(obs) if normalizer.active else obs

    def remembered(self, obs: Tensor, carry: Carry | None) -> tuple[Tensor, Carry]:
        """What the policy gets of normalised observations, and the carry after them."""
        memory = self.memory
        if memory is None:
            return obs, ()
        state = memory.step(obs, memory.initial(len(obs)) if carry is None else carry)
        return memory.beside(obs, state.hidden), state

    def initial_carry(self, rows: int) -> Carry:
        """The carry at a reset."""
        return () if self.memory is None else self.memory.initial(rows)

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
        """Called before the first update with the smallest and the largest reward of the data."""

    def draw_from(self, rows: Tensor, count: int) -> None:
        """From now on learn from the first `count` of `rows`, each as often as it occurs there."""
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
