"""Proof that an exported policy does what the trained agent does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

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
NUDGES = 24


@dataclass
class Parity:
    """What was compared, and how far the two were from one another."""

    tolerance: float
    observations: dict[str, int] = field(default_factory=dict)
    """How many of each kind of observation."""
    batches: tuple[int, ...] = BATCHES
    steps: int = 1
    largest_error: float = 0.0
    differing_actions: int = 0
    ties: int = 0
    """Rows in which the agent itself, with weights moved by their rounding, acts as the export."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Answer(NamedTuple):
    action: Array
    state: Any


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
        theirs: dict[str, Array] | None = None
        for obs in episode:
            noise = self.policy.drawn(len(obs), self.rng)
            if self.graph.draws:
                before, (expected, mine) = mine, self._drawn(obs, mine, noise)
            else:
                before, (expected, mine) = mine, self.predict(obs, mine)
            got, theirs = self.exported(obs, theirs, noise)
            unlike = self._unlike(expected, got)
            if self.graph.algorithm.recurrent:
                wanted = self._as_arrays(mine)
                for name, value in theirs.items():
                    unlike |= self._far(wanted[name], value, 1.0)
            if unlike.any():
                self._explain(
                    Answer(expected, mine), got, theirs, obs, before, noise, unlike, where
                )
                if theirs:
                    for name, value in self._as_arrays(mine).items():
                        theirs[name] = np.where(_column(unlike, value), value, theirs[name])
            same = ~unlike
            if same.any() and self.graph.algorithm.spaces.is_box:
                error = float((np.abs(got - expected) / self.scale)[same].max())
                self.parity.largest_error = max(self.parity.largest_error, error)

    def _drawn(self, obs: Array, state: Any, noise: Mapping[str, Array]) -> tuple[Array, Any]:
        """The agent's action for given random numbers."""
        with GivenNoise([torch.from_numpy(value) for value in noise.values()]):
            return self.acting(obs, state)

    def _as_arrays(self, state: Any) -> dict[str, Array]:
        leaves = tree_leaves(state)
        names = (port.name for port in self.graph.states)
        return {name: leaf.cpu().numpy() for name, leaf in zip(names, leaves, strict=True)}

    def _unlike(self, expected: Array, got: Array) -> Array:
        if not self.graph.algorithm.spaces.is_box:
            unlike: Array = (expected != got).reshape(len(got), -1).any(1)
            return unlike
        return self._far(expected, got, self.scale)

    def _far(self, expected: Array, got: Array, scale: Any) -> Array:
        size = np.maximum(scale, 1.0) if np.isscalar(scale) else scale
        error = np.abs(got.astype(np.float64) - expected) / size
        far: Array = ~(error <= self.parity.tolerance)  # NaN is far
        return np.asarray(far.reshape(len(far), -1).any(1))

    def _explain(
        self,
        answer: Answer,
        got: Array,
        theirs: Mapping[str, Array],
        obs: Array,
        before: Any,
        noise: Mapping[str, Array],
        unlike: Array,
        where: str,
    ) -> None:
        """Count rows that are ties, and refuse the others."""
        tied = np.zeros_like(unlike)
        for draw in range(NUDGES):
            with nudged(self.graph.algorithm, self.nudge, draw):
                if self.graph.draws:
                    action, state = self._drawn(obs, before, noise)
                else:
                    action, state = self.predict(obs, before)
            like = ~self._unlike(action, got)
            if self.graph.algorithm.recurrent:
                for name, value in self._as_arrays(state).items():
                    like &= ~self._far(value, theirs[name], 1.0)
            tied |= like & unlike
        wrong = unlike & ~tied
        self.parity.ties += int(tied.sum())
        if wrong.any():
            self.parity.differing_actions += int(wrong.sum())
            row = int(np.flatnonzero(wrong)[0])
            raise ExportError(
                f"the exported policy does not act as the agent: for {where} it does "
                f"{np.asarray(got[row]).tolist()} where the agent does "
                f"{np.asarray(answer.action[row]).tolist()}; nothing was written"
            )


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
