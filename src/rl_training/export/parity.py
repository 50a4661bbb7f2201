"""Proof that an exported policy does what the trained agent does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from rl_training.algorithms.base import Algorithm
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ExportError
from rl_training.export.graph import GivenNoise, PolicyGraph
from rl_training.export.run_policy import Policy
from rl_training.export.vectors import VectorPolicy
from rl_training.runtime.policy import ActingPolicy

Array = np.ndarray[Any, Any]
Predict = Callable[[Array, Any], tuple[Array, Any]]
"""`predict` of the agent: observations and its state to flat actions and the next state."""

BATCHES = (1, 7, 64)
STEPS = 20
"""Of the episodes by which a recurrent policy is compared."""
TOLERANCE = 1e-5
HALF_TOLERANCE = 1e-2
"""Largest difference of Box actions, in units of half their range where that is above 1."""
NUDGES, ROUNDINGS = 24, 4.0
"""Times that the agent's weights are moved by their rounding, and how often as far as that moves
the agent's state the export's may be from it."""


@dataclass
class Parity:
    """What was compared, and how far the two were from one another."""

    tolerance: float
    observations: dict[str, int] = field(default_factory=dict)
    """How many of each kind of observation."""
    batches: tuple[int, ...] = BATCHES
    steps: int = 1
    largest_error: float = 0.0
    ties: int = 0
    """Rows in which the agent itself, with weights moved by their rounding, acts as the export."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(
    graph: PolicyGraph,
    predict: Predict,
    policy: Policy,
    sources: Mapping[str, Array],
    half: bool,
) -> Parity:
    """Compare by observations of each source; ExportError where actions differ."""
    algorithm = graph.algorithm
    parity = Parity(HALF_TOLERANCE if half else TOLERANCE)
    parity.steps = STEPS if algorithm.recurrent else 1
    comparison = _Comparison(graph, predict, policy, parity, 2.0**-11 if half else 2e-7)
    for name, observations in sources.items():
        parity.observations[name] = len(observations)
        for rows in BATCHES:
            for episode in _episodes(observations, rows, parity.steps):
                comparison.run(episode, f"observations '{name}' in batches of {rows}")
    return parity


def _episodes(observations: Array, rows: int, steps: int) -> Iterator[Array]:
    """(steps, rows, ...) pieces; of the small batches a few only."""
    per_piece = rows * steps
    count = max(1, len(observations) // per_piece)
    if rows < max(BATCHES):
        count = min(count, 16 if steps == 1 else 2)
    for i in range(count):
        index = (np.arange(per_piece) + i * per_piece) % len(observations)
        yield observations[index].reshape(steps, rows, *observations.shape[1:])


class _Comparison:
    def __init__(
        self, graph: PolicyGraph, predict: Predict, policy: Policy, parity: Parity, nudge: float
    ) -> None:
        self.graph, self.predict, self.policy, self.parity = graph, predict, policy, parity
        self.exported, self.nudge = VectorPolicy(policy), nudge
        self.rng = np.random.default_rng(0)
        self.acting = ActingPolicy(graph.algorithm, deterministic=not graph.draws)
        self.scale = action_scale(graph.algorithm.spaces)

    def run(self, episode: Array, where: str) -> None:
        """One piece, step by step; both keep their own state."""
        mine: Any = None
        theirs: dict[str, Array] = {}
        for obs in episode:
            noise = self.policy.drawn(len(obs), self.rng)
            expected, mine = self._agent(obs, mine, noise)
            before, (got, theirs) = theirs, self.exported(obs, theirs, noise)
            unlike = self._unlike(expected, got)
            wanted = self._as_arrays(mine)
            for name, value in wanted.items():
                unlike |= strayed(value, theirs[name], self.parity.tolerance)
            if unlike.any():
                step = _Step(where, obs, noise, before, expected, got, theirs)
                self._explain(step, unlike)
                for name, value in wanted.items():
                    theirs[name] = np.where(_column(unlike, value), value, theirs[name])
            same = ~unlike
            if same.any() and self.graph.algorithm.spaces.is_box:
                error = float((np.abs(got - expected) / self.scale)[same].max())
                self.parity.largest_error = max(self.parity.largest_error, error)

    def _agent(self, obs: Array, state: Any, noise: Mapping[str, Array]) -> tuple[Array, Any]:
        """The agent's action, for given random numbers where actions are drawn."""
        if not self.graph.draws:
            return self.predict(obs, state)
        with GivenNoise([torch.from_numpy(value) for value in noise.values()]):
            return self.acting(obs, state)

    def _as_arrays(self, state: Any) -> dict[str, Array]:
        if not self.graph.states:
            return {}
        names = (port.name for port in self.graph.states)
        leaves = tree_leaves(state)
        return {name: leaf.cpu().numpy() for name, leaf in zip(names, leaves, strict=True)}

    def _as_carry(self, state: Mapping[str, Array]) -> Any:
        """A state of the export as the agent's."""
        parts = [torch.from_numpy(state[port.name]) for port in self.graph.states if state]
        return tree_unflatten(parts, self.graph.carry_form) if parts else None

    def _unlike(self, expected: Array, got: Array) -> Array:
        """Rows in which actions differ."""
        if not self.graph.algorithm.spaces.is_box:
            unlike: Array = (expected != got).reshape(len(got), -1).any(1)
            return unlike
        error = np.abs(got.astype(np.float64) - expected) / self.scale
        return np.asarray(~(error <= self.parity.tolerance).all(1))  # NaN is far

    def _explain(self, step: _Step, unlike: Array) -> None:
        """Count rows that are ties, and refuse the others.

        The agent goes on from the state that the export had, with weights moved by their rounding.
        In a tie it takes the export's action with some of them; and the export's state is no
        further from the agent's than `ROUNDINGS` times what that moves.
        """
        start = self._as_carry(step.before)
        action, state = self._agent(step.obs, start, step.noise)
        wanted = self._as_arrays(state)
        tied = ~self._unlike(action, step.got)
        rounding = {name: np.zeros_like(flat) for name, flat in _flat(wanted).items()}
        for draw in range(NUDGES):
            with nudged(self.graph.algorithm, self.nudge, draw):
                action, state = self._agent(step.obs, start, step.noise)
            tied |= ~self._unlike(action, step.got)
            for name, flat in _flat(self._as_arrays(state)).items():
                moved = np.abs(flat - wanted[name].reshape(flat.shape))
                rounding[name] = np.maximum(rounding[name], moved)
        wrong = unlike & ~tied
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            did, should = (np.asarray(x[row]).tolist() for x in (step.got, step.expected))
            raise _difference(step.where, f"it does {did} where the agent does {should}")
        for name, value in wanted.items():
            allowed = ROUNDINGS * rounding[name]
            far = strayed(value, step.theirs[name], self.parity.tolerance, allowed)
            if (far & unlike).any():
                raise _difference(step.where, f"its output 'next_{name}' is not the agent's state")
        self.parity.ties += int(self._unlike(step.expected, step.got).sum())


class _Step(NamedTuple):
    """One step in which the two differ."""

    where: str
    obs: Array
    noise: Mapping[str, Array]
    before: Mapping[str, Array]
    """The state of the export."""
    expected: Array
    got: Array
    theirs: Mapping[str, Array]


def _difference(where: str, what: str) -> ExportError:
    return ExportError(
        f"the exported policy does not act as the agent: for {where} {what}; nothing was written"
    )


def _flat(state: Mapping[str, Array]) -> dict[str, Array]:
    return {name: value.reshape(len(value), -1) for name, value in state.items()}


def strayed(expected: Array, got: Array, tolerance: float, rounding: Array | float = 0.0) -> Array:
    """Rows in which a part of the state differs by more than the tolerance, in units of its largest
    number where that is above 1, and by more than a `rounding`."""
    flat = expected.reshape(len(expected), -1)
    error = np.abs(got.reshape(flat.shape).astype(np.float64) - flat)
    scale = np.abs(flat).max(1, initial=1.0, keepdims=True)
    return np.asarray(~(error <= np.maximum(tolerance * scale, rounding)).all(1))  # NaN is far


def _column(mask: Array, like: Array) -> Array:
    return mask.reshape(-1, *(1,) * (like.ndim - 1))


def action_scale(spaces: Spaces) -> Array:
    """What errors of Box actions are divided by: half their range, at least 1."""
    low, high = np.asarray(spaces.action_low), np.asarray(spaces.action_high)
    return np.asarray(np.maximum(0.5 * (high - low), 1.0))


@contextmanager
def nudged(algorithm: Algorithm, size: float, seed: int) -> Iterator[None]:
    """Inside, weights are off by a rounding: what then changes was a tie."""
    generator = torch.Generator().manual_seed(seed)
    own = [p for p in algorithm.parameters() if p.is_floating_point()]
    kept = [p.detach().clone() for p in own]
    with torch.no_grad():
        for weight in own:
            noise = torch.empty(weight.shape).uniform_(-1.0, 1.0, generator=generator)
            weight.mul_(1.0 + size * noise.to(weight))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, before in zip(own, kept, strict=True):
                weight.copy_(before)
