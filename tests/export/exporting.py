"""Small trained-looking agents and quick exports of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.api.managed import ManagedAlgorithm
from rl_training.export.write import ExportResult
from rl_training.runtime.evaluation import EvalResult

from ..contract.small_runs import small_config
from ..envs.test_packed import Lamps
from ..envs.test_parts import Wards
from ..runtime.test_policy import Lopsided as Lopsided  # registers the environment

LOPSIDED = "tests/Lopsided-v0"
PARTS = {"box": "tests/Doses-v0", "discrete": "tests/Wards-v0"}
"""Tasks whose observations are many parts."""
LAMPS = {"box": "tests/Dials-v0", "discrete": "tests/Lamps-v0"}
"""Tasks whose observations are an image beside other parts."""


class LopsidedActions(gym.Wrapper[Any, Any, Any, Any]):
    """Actions between bounds that are not symmetric, which are paid for what they add to 0."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = Lopsided.action_space

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(0)
        return obs, float(np.sum(action) * (1.0 + float(reward))), *rest


gym.register("tests/Doses-v0", lambda: LopsidedActions(Wards()))  # type: ignore[arg-type]
gym.register("tests/Dials-v0", lambda: LopsidedActions(Lamps()))  # type: ignore[arg-type]


def agent_of(
    algo: str, kind: str | None = None, env_id: str | None = None, **knobs: Any
) -> ManagedAlgorithm:
    """An agent whose weights and statistics are far from where they began."""
    task: dict[str, Any] = {} if env_id is None else {"env_id": env_id}
    agent = ManagedAlgorithm(small_config(algo, kind, **task, algo_kwargs=knobs))
    disturb(agent)
    return agent


def disturb(agent: ManagedAlgorithm) -> None:
    algorithm = agent.algorithm
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in algorithm.parameters():
            inputs = weight[0].numel() if weight.ndim > 1 else 10
            weight += torch.randn(weight.shape, generator=generator) / inputs**0.5
    if not algorithm.spaces.is_image:
        algorithm.normalizer.active = True
        width = algorithm.spaces.obs_dim
        algorithm.normalizer.set_statistics(
            0.5 * torch.randn(width, generator=generator), torch.linspace(0.4, 1.7, width)
        )
    algorithm.update_count += 1


def export(agent: ManagedAlgorithm, folder: Path, **options: Any) -> ExportResult:
    return agent.export(folder, **{"episodes": 2, **options})


def same_returns(one: EvalResult | None, other: EvalResult | None) -> bool:
    assert one is not None
    assert other is not None
    return one.lengths == other.lengths and one.returns == pytest.approx(other.returns, abs=1e-3)


@contextmanager
def quick_exporter() -> Iterator[None]:
    """PyTorch builds its table of operators once instead of at every export."""
    from torch.onnx._internal.exporter import _registration

    make = _registration.ONNXRegistry.from_torchlib
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _registration.ONNXRegistry, "from_torchlib", staticmethod(functools.cache(make))
        )
        yield
