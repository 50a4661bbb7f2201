"""Steps that are taken at some updates only: by a mask, or left out where the phase is known."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms.optim import FusedAdam, move_towards
from rl_training.execution import LONGEST_CYCLE, batching, tracing
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.engine import Engine

from ..contract.small_runs import small_config, small_learner
from ..each import each

DUE = (0, 1, 0, 0, 1, 1, 0)
"""The first step is not due: nothing may be divided by a count of zero."""


@pytest.mark.parametrize("way", ["branch", "mask"])
def test_masked_adam_is_adam_over_the_due_steps(way: str) -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    mine = FusedAdam(ours, 0.05, [0.1, 0.0])
    reference = torch.optim.Adam(
        [{"params": theirs[:1], "weight_decay": 0.1}, {"params": theirs[1:]}], lr=0.05
    )
    for due in DUE:
        gradients = [torch.randn_like(p) for p in ours]
        before = [p.detach().clone() for p in (*ours, *mine.tensors())]
        with tracing() if way == "mask" else nullcontext():
            mine.step(gradients, torch.tensor(bool(due)))
        if due:
            for parameter, gradient in zip(theirs, gradients, strict=True):
                parameter.grad = gradient
            reference.step()
        else:
            after = (*ours, *mine.tensors())
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert int(mine.steps) == sum(DUE)


@pytest.mark.parametrize("due", [True, False])
def test_masked_steps_of_several_agents(due: bool) -> None:
    """Adam and target updates under vmap, as in a run of several seeds."""
    start, gradient = torch.randn(3, 4), torch.randn(3, 4)
    target = torch.zeros(3, 4)
    adam = FusedAdam([nn.Parameter(start[0].clone())], 0.1)
    moments, counts = [torch.zeros(3, 4), torch.zeros(3, 4)], torch.zeros(3)
    parameter, rates, masks = start.clone(), torch.full((3,), 0.1), torch.full((3,), due)

    def one(own: Tensor, grad: Tensor, state: list[Tensor], mask: Tensor, slow: Tensor) -> Tensor:
        adam.parameters = [own]
        adam.replace_tensors(state)
        adam.step([grad], mask)
        move_towards([slow], [own], 0.5, mask)
        return own.sum()

    with batching(3):
        torch.vmap(one)(parameter, gradient, [*moments, counts, rates], masks, target)
    expected = start - 0.1 * gradient.sign() if due else start
    torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(target, 0.5 * parameter if due else torch.zeros(3, 4))
    assert counts.tolist() == [float(due)] * 3


def learned(config: Any, total: int, runs: tuple[int, ...]) -> tuple[list[Tensor], Any, int]:
    """State and metrics after some updates by an engine, and how often the policy's loss was
    computed; with `total` 0 without an engine."""
    algorithm, table = small_learner(config)
    calls = 0
    method = algorithm.policy_loss

    def counted(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        return method(batch)

    algorithm.policy_loss = counted
    torch.manual_seed(0)
    batches = [table.sample(16, lambda rows: rows(None, 1)[0]) for _ in range(sum(runs))]
    drawn = iter(batches)
    torch.manual_seed(1)
    metrics = {}
    if total:
        engine = Engine(SingleLearner(algorithm, lambda _: next(drawn)), "eager", total)
        for updates in runs:
            metrics = engine.run(updates)
    else:
        for batch in drawn:
            metrics = algorithm.step(batch)
    del algorithm.policy_loss
    return algorithm.state_tensors(), metrics, calls


@each(
    ("algo", "delay"),
    [("td3", 2), ("td3_bc", 2), ("rebrac", 3), ("td3", LONGEST_CYCLE + 1)],
)
def test_what_is_not_due_is_not_computed_and_nothing_else_changes(algo: str, delay: int) -> None:
    """Also where a run is cut in the middle of a cycle."""
    config = small_config(algo, algo_kwargs={"policy_delay": delay})
    runs = (1, 2, 4, 1, 5)
    masked, _, every = learned(config, 0, runs)
    left_out, metrics, due = learned(config, 100, runs)
    assert every == sum(runs)
    assert due == (every if delay > LONGEST_CYCLE else len(range(0, every, delay)))
    assert "policy_loss" in metrics, "of the last update that has one"
    for a, b in zip(masked, left_out, strict=True):
        assert torch.equal(a, b), algo
