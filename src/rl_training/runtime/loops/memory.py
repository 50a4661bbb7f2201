"""The memory of an off-policy loop: what it stores, and what updates sample from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.roles import ReplayKnobs
from rl_training.envs.collector import Step
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.memory import Claim, require_memory
from rl_training.models import CategoricalCritic, ReturnScale
from rl_training.replay.batch import Batch
from rl_training.replay.priorities import Priorities
from rl_training.replay.replay import ReplayBuffer
from rl_training.runtime.loops import Component, ModuleState
from rl_training.runtime.profile import Part


class Memory(Protocol):
    """Remembers the steps of the training environments."""

    @property
    def touched(self) -> Sequence[Tensor]:
        """Tensors that drawing a batch and `learned` write to."""

    def cut(self, restarted: NDArray[Any]) -> None:
        """Environments (a boolean mask) whose episodes were given up begin new ones."""

    def store(self, step: Step, fraction: float) -> None:
        """One step of every environment, after `fraction` of the run."""

    def learned(self, batch: Any) -> None:
        """Store the results of the update on `batch`."""

    def components(self) -> dict[str, Component]: ...
    def parts(self) -> list[Part]: ...


class TransitionMemory:
    """A replay of single transitions; `change` is made to every step before it is stored."""

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm,
        change: Callable[[Step], Step] | None = None,
    ) -> None:
        self.replay = make_replay(config, algorithm)
        self._algorithm, self._change = algorithm, change
        self._exponents = algorithm.params.priority_exponents
        self._scale: ReturnScale | None = None
        if algorithm.params.network_kind == "simbav2":
            largest = CategoricalCritic.largest
            self._scale = ReturnScale(config.num_envs, algorithm.gamma, largest)

    def draw(self, rows: int) -> Batch:
        return self.replay.sample(rows)

    @property
    def touched(self) -> Sequence[Tensor]:
        priorities = self.replay.priorities
        return () if priorities is None else (priorities.tree, priorities.max_priority)

    def cut(self, restarted: NDArray[Any]) -> None:
        self.replay.cut(restarted)

    def store(self, step: Step, fraction: float) -> None:
        step = step if self._change is None else self._change(step)
        self.replay.add(*step)
        ended = torch.from_numpy(step.terminated | step.truncated)
        self.stored(torch.from_numpy(step.reward), ended, fraction)

    def stored(self, reward: Tensor, ended: Tensor, fraction: float) -> None:
        """Follow a stored step with its (E,) rewards and ends, after `fraction` of the run."""
        if self._scale is not None:
            self._algorithm.reward_divisor.copy_(self._scale.after(reward, ended))
        if self.replay.priorities is not None:  # the correction is full at the end of the run
            beta = self._exponents.beta
            self.replay.priorities.set_beta(beta + (1.0 - beta) * min(fraction, 1.0))

    def learned(self, batch: Batch) -> None:
        if self.replay.priorities is not None and batch.index is not None:
            self.replay.feed_back(batch.index, self._algorithm.last_td_errors)

    def components(self) -> dict[str, Component]:
        if self._scale is None:
            return {"replay": self.replay}
        return {"replay": self.replay, "return_scale": ModuleState(self._scale)}

    def parts(self) -> list[Part]:
        return [Part(self.replay, "add", "buffer")]


def replay_claim(config: TrainConfig, algorithm: Algorithm) -> Claim:
    """The memory of the replay that a run is going to have, with its priorities."""
    p: ReplayKnobs = algorithm.params
    num_envs, n_step = config.num_envs, p.return_steps
    prioritized = p.priority_exponents is not None
    capacity = p.buffer_capacity // num_envs * num_envs
    needed = ReplayBuffer.memory_needed(capacity, algorithm.spaces, num_envs, n_step, prioritized)
    return Claim("a replay", capacity, needed)


def make_replay(config: TrainConfig, algorithm: Algorithm) -> ReplayBuffer:
    """An empty replay; refused if it does not fit into memory."""
    p: ReplayKnobs = algorithm.params
    spaces, num_envs, device = algorithm.spaces, config.num_envs, algorithm.update_count.device
    claim = replay_claim(config, algorithm)
    # Rows and priorities at once: what would fit is then true for both.
    require_memory(device, claim)
    priorities = None
    exponents = p.priority_exponents
    if exponents is not None:
        priorities = Priorities(claim.rows, device, **exponents._asdict())
    return ReplayBuffer(
        p.buffer_capacity,
        num_envs,
        spaces,
        device,
        gamma=p.discount,
        n_step=p.return_steps,
        priorities=priorities,
    )
