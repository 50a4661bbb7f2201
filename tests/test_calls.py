"""What lies between the matrix products stays small: Python calls are counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training import BC, IQL, ManagedAlgorithm, TransitionDataset, load_transition_dataset
from rl_training.execution import without_gradients
from rl_training.experiment.config import load_config
from rl_training.runtime.build import build_loop, run_scope

from .test_speed import synthetic

SMALL: dict[str, Any] = {"device": "cpu", "threads": 1, "engine": "eager", "hidden_sizes": [8, 8]}

# Seen plus a tenth. Commit f9df17d had 30, 525, 709, 180, 183 and 39.
PREDICT, IQL_UPDATE = 27, 396
OPERATIONS = {"sac/pendulum": 260, "dqn/cartpole": 96, "qr_dqn/cartpole": 127, "ppo/cartpole": 172}
"""Of one update: seen plus a twentieth."""
STEPS = {"sac/pendulum": 530, "dqn/cartpole": 144, "qr_dqn/cartpole": 142, "ppo/cartpole": 40}


def calls(run: Callable[[], object]) -> int:
    """Functions written in Python that `run` calls."""
    count = 0

    def profile(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture(scope="module")
def dataset() -> TransitionDataset:
    return load_transition_dataset(synthetic(1_000))


def test_a_prediction_and_an_update_make_few_calls(dataset: TransitionDataset) -> None:
    task: dict[str, Any] = {"dataset": dataset, "total_updates": 1, **SMALL}
    agent = BC("HalfCheetah-v5", **task)
    observation = np.zeros(17, np.float32)
    agent.predict(observation)
    assert calls(lambda: agent.predict(observation)) <= PREDICT

    learner = IQL("HalfCheetah-v5", batch_size=8, **task)
    with run_scope(learner.config, learner.algorithm.spaces):
        loop = build_loop(learner.config, learner.algorithm, dataset)
        loop.advance(16)
        assert calls(lambda: loop.advance(64)) / 64 <= IQL_UPDATE


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what PyTorch is asked to compute, the backward pass included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return op(*args, **(kwargs or {}))


def test_an_environment_step_with_its_updates_makes_few_calls() -> None:
    for name, most in STEPS.items():
        config = load_config(name).replace(device="cpu", threads=1, engine="eager", seed=0)
        p: Any = config.params
        small = {"hidden_sizes": (8, 8), "batch_size": min(p.batch_size, 64)}
        if name.startswith("ppo"):
            warm = steps = p.rollout_length * config.num_envs
            small["batch_size"] = p.batch_size
        else:
            small["learning_starts"] = 100
            steps = max(64, p.train_frequency)
            warm = -(-100 // steps) * steps + steps
        knobs = {**config.algo_kwargs, **small}
        agent = ManagedAlgorithm(config.replace(algo_kwargs=knobs))
        with run_scope(agent.config, agent.algorithm.spaces):
            loop = build_loop(agent.config, agent.algorithm, None)
            loop.advance(warm)
            found = calls(partial(loop.advance, steps)) / steps
            learner = cast("Any", loop).engine.learner
            with Operations() as operations:
                learner.update()
            loop.close()
        assert found <= most, f"{name}: {found:.1f} calls per step"
        assert operations.count <= OPERATIONS[name], f"{name}: {operations.count} operations"


def test_gradients_are_off_inside_and_as_before_outside() -> None:
    weight = torch.ones(2, requires_grad=True)
    doubled = without_gradients(lambda x: 2 * x)
    for before in (True, False):
        with torch.set_grad_enabled(before):
            assert not doubled(weight).requires_grad
            assert torch.is_grad_enabled() is before
            with pytest.raises(ZeroDivisionError):
                without_gradients(lambda: 1 / 0)()
            assert torch.is_grad_enabled() is before
