"""Rollouts: the steps since the last update, what was carried in them, and their minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_structure, tree_unflatten

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.roles import RecurrentRolloutLearner
from rl_training.envs.spaces import Spaces
from rl_training.execution import can_branch_on
from rl_training.experiment.state import Stored
from rl_training.models import Carry
from rl_training.replay.rollout import RolloutBatch, sequences_of
from rl_training.runtime.loops import OptionalComponent


class RolloutSteps(NamedTuple):
    """The steps of a rollout, (T, E), with the policy's log-probabilities and values."""

    obs: Tensor  # (T, E, O) as given to the networks
    action: Tensor  # as drawn
    log_prob: Tensor
    value: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_value: Tensor  # value of the true final state of a truncated episode; else 0


class Rollout(OptionalComponent):
    """The steps since the last update: part of the checkpoint, so that a run may end in the
    middle of a rollout."""

    def __init__(
        self,
        steps: int,
        num_envs: int,
        spaces: Spaces,
        device: torch.device,
        carried: Carried | None = None,
    ) -> None:
        self.steps, self.num_envs, self.device = steps, num_envs, device
        self.carried = carried
        self._obs_shape = spaces.obs_shape
        self._action_shape = spaces.inner_action_shape
        self.first_seen = False
        """Whether the statistics include the first observation of the run."""
        self._steps: list[RolloutSteps] = []
        self._raw: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, raw_obs: Tensor, step: RolloutSteps) -> None:
        """Add one step, (E, ...), and its raw observation."""
        self._raw.append(raw_obs)
        self._steps.append(step)

    @property
    def is_full(self) -> bool:
        return len(self) == self.steps

    def clear(self) -> None:
        self._raw.clear()
        self._steps.clear()
        if self.carried is not None:
            self.carried.before.clear()

    def taken(self) -> RolloutSteps:
        return RolloutSteps(*(self._stacked(column) for column in zip(*self._steps, strict=True)))

    def raw_obs(self) -> Tensor:
        """(T, E, O) on the device."""
        return self._stacked(self._raw)

    def _stacked(self, column: Sequence[Tensor]) -> Tensor:
        """(T, E, ...) on the device, in one copy unless some steps come from a checkpoint."""
        if len({part.device for part in column}) > 1:
            column = [part.to(self.device) for part in column]
        return torch.stack(list(column)).to(self.device)

    def training_state(self) -> dict[str, Any]:
        columns = {"raw_obs": self.raw_obs(), **self.taken()._asdict()} if self._steps else {}
        kept = {name: column.cpu() for name, column in columns.items()}
        state = {"first_seen": self.first_seen, "columns": kept}
        return state if self.carried is None else {**state, "carried": self.carried.state()}

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "rollout")
        self.first_seen = stored.flag("first_seen")
        self.clear()
        columns = stored.section("columns")
        if columns.names():
            self._load_columns(columns)
        if self.carried is not None:
            self.carried.load(stored.section("carried"), len(self))

    def _load_columns(self, columns: Stored) -> None:
        kinds = {"raw_obs": (None, self._obs_shape), "obs": (None, self._obs_shape)}
        kinds["action"] = (None, self._action_shape)
        steps = columns.tensor("reward", torch.float32, None, self.num_envs).shape[0]
        if not 0 < steps <= self.steps:
            raise columns.wrong("reward", f"that of 1 to {self.steps} steps")
        found = []
        for name in ("raw_obs", *RolloutSteps._fields):
            dtype = torch.bool if name in ("terminated", "truncated") else torch.float32
            kind, shape = kinds.get(name, (dtype, ()))
            found.append(columns.tensor(name, kind, steps, self.num_envs, *shape))
        for raw, *step in zip(*found, strict=True):
            self.add(raw.to(self.device), RolloutSteps(*(x.to(self.device) for x in step)))


class Carried:
    """What a policy with memory carries in a rollout: now, and before each of its sequences."""

    def __init__(self, algorithm: Algorithm, num_envs: int) -> None:
        learner = cast(RecurrentRolloutLearner, algorithm)
        self.now, self.recall = learner.rollout_carry(num_envs), learner.recall
        self.length: int = algorithm.params.sequence_length
        self.before: list[Carry] = []

    def stacked(self) -> Carry:
        """(S, ...) carries before the sequences, in the order of `sequences_of`."""
        return tree_map(lambda *parts: torch.cat(parts), *self.before)

    def first(self, taken: RolloutSteps) -> Tensor:
        """(S, L), whether a step begins an episode; the first one begins with its carry."""
        ended = sequences_of(torch.logical_or(taken.terminated, taken.truncated), self.length)
        return torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], 1)

    def state(self) -> dict[str, Any]:
        return {
            "now": [part.cpu() for part in tree_leaves(self.now)],
            "before": [[part.cpu() for part in tree_leaves(carry)] for carry in self.before],
        }

    def load(self, stored: Stored, steps: int) -> None:
        like, begun = tree_leaves(self.now), -(-steps // self.length)
        self.now = self._tree(stored.tensors_like("now", like))
        self.before = [
            self._tree(Stored({"before": carry}, "rollout").tensors_like("before", like))
            for carry in stored.entries("before", begun)
        ]

    def _tree(self, leaves: list[Tensor]) -> Carry:
        pairs = zip(leaves, tree_leaves(self.now), strict=True)
        return tree_unflatten([new.to(own.device) for new, own in pairs], tree_structure(self.now))


class Minibatches:
    """Minibatches of a rollout in random order, in fixed memory and with fixed shapes; sizes count
    its rows, which are steps or sequences."""

    def __init__(self, rollout_size: int, batch_size: int, device: torch.device) -> None:
        self.size, self._batch_size = rollout_size, batch_size
        self._order = torch.arange(rollout_size, device=device)
        self._within = torch.arange(batch_size, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self._rollout: RolloutBatch | None = None

    def take(self, rollout: RolloutBatch) -> None:
        """Set the rollout, overwriting the last one."""
        if self._rollout is None:
            self._rollout = rollout
        else:
            for own, new in zip(tree_leaves(self._rollout), tree_leaves(rollout), strict=True):
                if own is not None:
                    own.copy_(new)

    def shuffle(self, order: Tensor) -> int:
        """Start a pass over the rows in this order; returns the number of minibatches."""
        self._order.copy_(order)
        self.position.zero_()
        return self.size // self._batch_size

    def next(self) -> RolloutBatch:
        assert self._rollout is not None
        # wraps around if more are requested than exist
        if can_branch_on(self.position):
            start = int(self.position)
            rows = self._order[start : start + self._batch_size]
            self.position.fill_((start + self._batch_size) % self.size)
        else:
            rows = self._order.index_select(0, self._within + self.position)
            self.position.add_(self._batch_size).remainder_(self.size)
        return self._rollout.map(lambda column: column.index_select(0, rows))
