"""Stacked networks return what each returns alone, and gradients reach the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.execution import batching
from rl_training.models import (
    CategoricalPolicy,
    EnsembleCritic,
    TanhGaussianPolicy,
    ValueNetwork,
    frozen_copy,
    stacked_forward,
)

HIDDEN = (16, 16)


class Products(TorchDispatchMode):  # type: ignore[misc]
    """Notes how many networks every batched product takes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "bmm" in str(op):
            self.sizes.append(args[-1].shape[0])
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("several_agents", [False, True])
def test_results_and_gradients(stacking: Callable[[], None], several_agents: bool) -> None:
    stacking()
    torch.manual_seed(0)
    policy = TanhGaussianPolicy(5, 2, HIDDEN, state_dependent_std=False)
    value, critics = ValueNetwork(5, HIDDEN), EnsembleCritic(3, 5, 2, HIDDEN)
    targets = frozen_copy(critics)
    obs, next_obs = torch.randn(2, 7, 5)
    action = torch.rand(7, 2) * 1.8 - 0.9
    trained = [*policy.parameters(), *value.parameters(), *critics.parameters()]

    def calls() -> tuple[Any, ...]:
        return (
            policy.deferred(obs),
            value.deferred(obs),
            critics.deferred(obs, action),
            targets.deferred(next_obs, action).frozen(),
            value.deferred(next_obs).frozen(),
        )

    def gradients(results: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        distribution, now, q, q_target, next_value = results
        total = policy.log_prob_under(distribution, action).sum() + now.square().sum()
        total = total + (q - q_target.amin(0) - next_value).square().sum()
        return torch.autograd.grad(total, trained)

    alone = tuple(call.compute() for call in calls())
    with Products() as products:
        if several_agents:
            with batching(2):
                results = stacked_forward(*calls())
        else:
            results = stacked_forward(*calls())
    # policy, value and three critics; three target critics and the value of the next states
    assert products.sizes == ([5] * 3 + [4] * 3 if several_agents else [9] * 3)
    assert not results[3].requires_grad
    assert not results[4].requires_grad
    for one, other in zip(alone[1:], results[1:], strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(alone[0], results[0])
    for one, other in zip(gradients(alone), gradients(results), strict=True):
        torch.testing.assert_close(one, other)


def test_other_widths_are_answered_one_by_one(stacking: Callable[[], None]) -> None:
    stacking()
    policy, value = CategoricalPolicy(4, 3, (8, 8)), ValueNetwork(4, (8,))
    obs = torch.randn(6, 4)
    with Products() as products:
        log_probs, values = stacked_forward(policy.deferred(obs), value.deferred(obs))
    assert not products.sizes
    torch.testing.assert_close(log_probs, policy(obs))
    torch.testing.assert_close(values, value(obs))


def test_on_the_cpu_nothing_is_copied() -> None:
    policy, value = CategoricalPolicy(4, 3, (8,)), ValueNetwork(4, (8,))
    obs = torch.randn(6, 4)
    with Products() as products:
        stacked_forward(policy.deferred(obs), value.deferred(obs))
    assert not products.sizes
