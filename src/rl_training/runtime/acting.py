"""Acting again and again, in training and in evaluations; on a GPU in CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from rl_training.algorithms.base import Act, Algorithm
from rl_training.envs.global_random import untouched_randomness
from rl_training.models.carry import Carry
from rl_training.runtime.graphs import WARM_UP, CaptureError, capture, no_host_sync


class RepeatedActing:
    """`Algorithm.act` for many calls of one thread, with few different numbers of rows.

    On a GPU an algorithm whose actions depend on tensors alone acts in CUDA graphs, one for each
    number of rows: choosing an action is hundreds of small operations, which take longer
    to launch than to make. A graph draws the random numbers that would be drawn without it. It is
    captured after `patience` calls with its number of rows.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        explore: bool,
        patience: int = 0,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.algorithm, self.explore = algorithm, explore
        self.device = algorithm.update_count.device
        self._patience, self._note = patience, note
        self._captures = self.device.type == "cuda" and acts_by_tensors(type(algorithm))
        self._graphs: dict[int, ActingGraph] = {}
        self._calls: Counter[int] = Counter()

    def __call__(self, obs: Tensor, carry: Carry | None) -> Act:
        """Actions for observations on the host."""
        rows = len(obs)
        if self._captures:
            carry = self.algorithm.initial_carry(rows) if carry is None else carry
            if rows not in self._graphs and self._calls[rows] >= self._patience:
                self._capture(obs, carry)
            self._calls[rows] += 1
        graph = self._graphs.get(rows)
        if graph is not None:
            return graph(obs, carry)
        return self.algorithm.act(obs.to(self.device), explore=self.explore, carry=carry)

    def _capture(self, obs: Tensor, carry: Carry) -> None:
        try:
            with torch.cuda.device(self.device):
                graph = ActingGraph(self.algorithm, obs.to(self.device), carry, self.explore)
                self._graphs[len(obs)] = graph
        except CaptureError as error:
            self._captures = False
            if self._note is not None:
                self._note(f"acting cannot be captured, it runs eagerly ({error})")


class ActingGraph:
    """Acts on copies of what it is given; raises `CaptureError` when made, if that cannot be."""

    def __init__(self, algorithm: Algorithm, obs: Tensor, carry: Carry, explore: bool) -> None:
        carry = tree_map(torch.clone, carry)

        def act() -> Act:
            return algorithm.act(obs, explore=explore, carry=carry)

        def warm_up() -> None:
            for _ in range(WARM_UP):
                act()
            with no_host_sync():
                act()

        self._pieces: list[Callable[[], None]]
        self._pieces, self._acted = capture(warm_up, act, untouched_randomness)
        self._obs, self._carry = obs, tree_leaves(carry)

    def __call__(self, obs: Tensor, carry: Carry) -> Act:
        self._obs.copy_(obs)
        torch._foreach_copy_(self._carry, tree_leaves(carry))
        for piece in self._pieces:
            piece()
        # copies: the next call overwrites them, and a step that fails must change nothing
        return Act(*tree_map(torch.clone, tuple(self._acted)))


def acts_by_tensors(kind: type[Algorithm]) -> bool:
    """Whether a class says so of the `act` that it has; not of one that a subclass overrides."""
    for base in kind.__mro__:
        if "acts_by_tensors" in vars(base):
            return bool(vars(base)["acts_by_tensors"])
        if "act" in vars(base):
            return False
    return False
