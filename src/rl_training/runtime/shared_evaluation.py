"""Evaluations of several agents at once, in one batched policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from rl_training.experiment.config import TrainConfig
from rl_training.models import Carry
from rl_training.runtime.agents import VmapLearner
from rl_training.runtime.evaluation import SELECTION_STATES, ActFunction, EvalResult, Evaluator
from rl_training.runtime.policy import env_actions


class SharedEvaluations:
    """Evaluates all agents when the first of them is due; the others read their results."""

    def __init__(
        self, config: TrainConfig, stack: VmapLearner, wanted: Callable[[], list[int]]
    ) -> None:
        self.stack, self.wanted = stack, wanted
        self.evaluator = Evaluator(
            config.environment,
            config.task_kwargs,
            stack.template.spaces,
            [SELECTION_STATES] * len(stack.agents),
            config.eval_max_steps,
        )
        self._found: dict[int, EvalResult] = {}
        self._tick = -1

    def of(self, agent: int) -> _OneOfMany:
        return _OneOfMany(self, agent)

    def result(self, agent: int, episodes: int) -> EvalResult:
        now = int(self.stack.agents[0].update_count)
        if now != self._tick or agent not in self._found:
            self._found, self._tick = self.run(episodes), now
        return self._found.pop(agent)

    def run(self, episodes: int) -> dict[int, EvalResult]:
        return self.evaluator.run_all(self._act, episodes, self.wanted())

    def _act(
        self, obs: np.ndarray[Any, Any], owners: Sequence[int], carry: Carry | None
    ) -> tuple[np.ndarray[Any, Any], Carry]:
        """Evaluate any number of rows per agent as a full (agents, rows) grid."""
        spaces = self.stack.template.spaces
        owner = np.asarray(owners)
        place = np.array([np.count_nonzero(owner[:i] == who) for i, who in enumerate(owner)])
        shape = (len(self.stack.agents), int(place.max()) + 1, *obs.shape[1:])
        grid = np.zeros(shape, spaces.obs_dtype)
        grid[owner, place] = obs

        def on_grid(kept: Tensor) -> Tensor:
            whole = kept.new_zeros(*shape[:2], *kept.shape[1:])
            whole[owner, place] = kept
            return whole

        spread = None if carry is None else tree_map(on_grid, carry)
        acted = self.stack.act(torch.as_tensor(grid, device=self.stack.device), spread)
        actions = acted.action.cpu().numpy()[owner, place]
        kept = tree_map(lambda whole: whole[owner, place], acted.carry)
        return env_actions(self.stack.agents[0], actions), kept

    def close(self) -> None:
        self.evaluator.close()


class _OneOfMany:
    """The evaluator of one agent, for its trainer."""

    def __init__(self, shared: SharedEvaluations, agent: int) -> None:
        self.shared, self.agent = shared, agent

    def run(self, act: ActFunction, episodes: int) -> EvalResult:
        return self.shared.result(self.agent, episodes)

    def start_from(self, seed: int) -> None:
        self.shared.evaluator.start_from(seed, self.agent)

    def close(self) -> None:
        pass
