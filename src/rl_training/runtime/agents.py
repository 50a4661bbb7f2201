"""Learners: one agent, or many agents of one algorithm in a batched update."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from rl_training.algorithms.base import Act, Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.swap import holding
from rl_training.execution import batching
from rl_training.models import Carry
from rl_training.runtime.compiling import fused
from rl_training.runtime.randomness import RandomBlocks, kinds_of

Draw = Callable[[Algorithm], Any]
"""Draws a batch for the given algorithm, whose random numbers it uses."""


class Learner(Protocol):
    """What an engine runs."""

    device: torch.device
    slow_to_compile: bool
    fuses: bool
    """Whether it is compiled in pieces with gradients of their own, at its first update."""
    cycle: int
    """Updates after which delayed steps repeat."""

    def phase(self) -> int:
        """The place of the next update in the cycle."""

    def attached(self) -> AbstractContextManager[None]:
        """While active, the algorithm uses what belongs to the run: random numbers sampled ahead
        and compiled pieces. Outside it is as it was built, apart from what it has learned."""

    def prepare(self) -> int | None:
        """Prepare on the host; returns for how many updates that suffices, None for any."""

    def update(self) -> Metrics:
        """Draw a batch and learn from it, with fixed shapes and without a host sync."""

    def compile(self, compiled: Callable[[Callable[..., Metrics]], Callable[..., Metrics]]) -> None:
        """Replace the pieces that can be compiled."""

    def tensors(self) -> list[Tensor]:
        """All tensors that `update` writes to."""


class Attached:
    """A context that replaces attributes of an algorithm and restores them on exit."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._own = vars(algorithm)
        self.values: dict[str, Any] = {}
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        if self.values:
            self._before.append({k: self._own[k] for k in self.values if k in self._own})
            self._own.update(self.values)

    def __exit__(self, *_: object) -> None:
        if self.values:
            for name in self.values:
                self._own.pop(name, None)
            self._own.update(self._before.pop())


class SingleLearner:
    """One algorithm; `learned` is called with each batch after its update.

    `touched` are the tensors outside the algorithm that `draw` and `learned` write to.
    With a seed, the random numbers of its updates are sampled ahead.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        draw: Draw,
        learned: Callable[[Any], None] | None = None,
        touched: Sequence[Tensor] = (),
        seed: int | None = None,
    ) -> None:
        self.algorithm, self.draw, self.learned, self.touched = algorithm, draw, learned, touched
        self.cycle = algorithm.cycle
        self.device = algorithm.update_count.device
        self.slow_to_compile = algorithm.slow_to_compile
        self.fuses = bool(algorithm.fused_pieces())
        self.random = None if seed is None else random_blocks(algorithm, draw, [seed])
        self._attached = Attached(algorithm)
        if self.random is not None:
            self._attached.values["drawn_ahead"] = self.random
        self._step: Callable[..., Metrics] = algorithm.step
        self._whole: Callable[[], Metrics] = self._draw_and_step

    def phase(self) -> int:
        return int(self.algorithm.update_count) % self.cycle

    def attached(self) -> Attached:
        return self._attached

    def prepare(self) -> int | None:
        if self.random is None:
            return None
        return self.random.prepare(int(self.algorithm.update_count))

    def compile(self, compiled: Callable[[Callable[..., Metrics]], Callable[..., Metrics]]) -> None:
        for name, piece in self.algorithm.fused_pieces().items():
            self._attached.values[name] = fused(piece)
        if self.fuses:
            return
        for name in self.algorithm.pieces:
            self._attached.values[name] = compiled(getattr(self.algorithm, name))
        if self.algorithm.pieces:
            return
        if self.random is None:
            self._step = compiled(self._step)
        else:
            self._whole = compiled(self._whole)

    def script(self, scripted: Callable[[Callable[[Any], Metrics]], Any]) -> None:
        """Replace the method that learns from a batch."""
        name = self.algorithm.learns_in
        if self.random is None and name is not None:
            self._attached.values[name] = scripted(getattr(self.algorithm, name))

    def update(self) -> Metrics:
        if self.random is not None:
            return self._whole()
        batch = self.draw(self.algorithm)
        metrics = self._step(batch)
        if self.learned is not None:
            self.learned(batch)
        return metrics

    def _draw_and_step(self) -> Metrics:
        assert self.random is not None
        with self.random.row_of([numbers[0] for numbers in self.random.numbers]):
            return self.algorithm.step(self.draw(self.algorithm))

    def tensors(self) -> list[Tensor]:
        own = [*self.algorithm.state_tensors(), *self.touched]
        return own if self.random is None else [*own, *self.random.counters]


class VmapLearner:
    """Agents of one algorithm and config with different seeds, in one batched update.

    Corresponding tensors of all agents are stacked along a first axis, and the agents' own
    tensors become views of them: each agent remains a complete algorithm that can act, be saved
    and be restored.

    `draw` draws a batch for the agent that it is given; with `batches`, every update takes the
    agents' parts of what that returns instead, a tree of tensors with a first axis of agents.
    `touched` are the tensors outside the agents that `batches` writes to.
    """

    def __init__(
        self,
        agents: Sequence[Algorithm],
        draw: Draw | None,
        seeds: Sequence[int],
        batches: Callable[[], Any] | None = None,
        touched: Sequence[Tensor] = (),
    ) -> None:
        self.agents, self.draw, self.batches, self.touched = agents, draw, batches, touched
        self.device, self.cycle = agents[0].update_count.device, agents[0].cycle
        self.slow_to_compile, self.fuses = agents[0].slow_to_compile, False
        self.template = copy.deepcopy(agents[0])
        self.random = random_blocks(self.template, self._draw_once, seeds)
        self.template.drawn_ahead = self.random
        self.stacked: list[Tensor] = []
        for tensors in zip(*(agent.state_tensors() for agent in agents), strict=True):
            together = torch.stack([tensor.detach() for tensor in tensors])
            self.stacked.append(together)
            for tensor, own in zip(tensors, together, strict=True):
                tensor.data = own
        self._whole: Callable[..., Metrics] = self._update_all

    def _draw_once(self, agent: Algorithm) -> Any:
        """A batch as the first agent gets it."""
        if self.batches is None:
            assert self.draw is not None
            return self.draw(agent)
        return tree_map(lambda x: x[0] if isinstance(x, Tensor) else x, self.batches())

    def phase(self) -> int:
        return int(self.agents[0].update_count) % self.cycle

    def attached(self) -> AbstractContextManager[None]:
        return nullcontext()  # the template belongs to this learner

    def prepare(self) -> int | None:
        return self.random.prepare(int(self.agents[0].update_count))

    def compile(self, compiled: Callable[[Callable[..., Metrics]], Callable[..., Metrics]]) -> None:
        self._whole = compiled(self._whole)

    def update(self) -> Metrics:
        """Metrics have a first axis of agents."""
        return self._whole(*(() if self.batches is None else (self.batches(),)))

    def _update_all(self, *batches: Any) -> Metrics:
        leaves, structure = tree_flatten(batches)
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

        def one(tensors: list[Tensor], numbers: list[Tensor], own: list[Tensor]) -> Metrics:
            rest = iter(own)
            filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            batch = tree_unflatten(filled, structure)
            with holding(self.template, tensors), self.random.row_of(numbers):
                return self.template.step(batch[0] if batch else self._draw_once(self.template))

        with batching(len(self.agents)):
            metrics: Metrics = torch.vmap(one)(self.stacked, self.random.numbers, given)
        return metrics

    def every(self, work: Callable[..., Any], *inputs: Any) -> Any:
        """`work(agent, ...)` for all agents at once, each with its part of the inputs, trees of
        tensors with a first axis of agents, as the results are; gradients are off."""

        def one(tensors: list[Tensor], *own: Any) -> Any:
            with holding(self.template, tensors):
                return work(self.template, *own)

        with batching(len(self.agents)), torch.no_grad():
            return torch.vmap(one)(self.stacked, *inputs)

    def act(self, obs: Tensor, carry: Carry | None = None) -> Act:
        """(agents, B, ...) actions without exploration for as many raw observations."""
        if carry is None:
            first = self.template.initial_carry(obs.shape[1])
            carry = tree_map(lambda x: x.expand(len(self.agents), *x.shape), first)

        acted: Act = self.every(_best_action, obs, carry)
        return acted

    def tensors(self) -> list[Tensor]:
        return [*self.stacked, *self.random.counters, *self.touched]


def _best_action(agent: Algorithm, obs: Tensor, carry: Carry) -> Act:
    return agent.act(obs, explore=False, carry=carry)


def random_blocks(algorithm: Algorithm, draw: Draw, seeds: Sequence[int]) -> RandomBlocks:
    """The random numbers of updates of `algorithm`, which is not changed."""
    trial = copy.deepcopy(algorithm)
    kinds = kinds_of(trial, lambda: trial.step(draw(trial)))
    return RandomBlocks(kinds, seeds, algorithm.update_count.device)
