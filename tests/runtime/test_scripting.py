"""Updates that TorchScript's interpreter runs give the same bits as the methods they replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.execution import LONGEST_CYCLE
from rl_training.runtime import scripting
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.engine import RECORD_FROM_UPDATES, Engine

from ..contract.small_runs import small_config, small_learner
from ..each import each


def trained(
    algo: str,
    updates: int,
    total: int = RECORD_FROM_UPDATES,
    rows: Callable[[int], int] = lambda update: 24,
    before: Callable[[Algorithm], Any] = lambda algorithm: None,
    **knobs: Any,
) -> tuple[list[torch.Tensor], int]:
    """What some updates of a run of `total` ones leave behind, and how often Python did them."""
    algorithm, table = small_learner(small_config(algo, algo_kwargs={"grad_clip": None, **knobs}))
    done = 0

    def draw(_: Algorithm) -> Any:
        nonlocal done
        done += 1
        return table.sample(rows(done))

    calls = 0
    name = algorithm.learns_in or "update"
    method = getattr(algorithm, name)

    def counted(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        return method(batch)

    vars(algorithm)[name] = counted
    runner = Engine(SingleLearner(algorithm, draw), "auto", total)
    before(algorithm)
    torch.manual_seed(3)
    runner.run(updates // 2)
    algorithm.set_lr_factor(0.1)
    metrics = runner.run(updates - updates // 2)
    return [*algorithm.state_tensors(), *metrics.values()], calls


def assert_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@each(
    ("algo", "knobs"),
    [
        ("dqn", {"double": True, "dueling": True, "noisy": True, "target_update_interval": 2}),
        ("qr_dqn", {}),
        ("sac", {"architecture": "crossq"}),
        ("sac", {"policy_delay": 3}),
        ("td3", {}),
        ("ppo", {"value_clip": 0.2, "entropy_coef": 0.01}),
    ],
)
def test_long_runs_are_scripted_and_give_the_same_bits(algo: str, knobs: dict[str, Any]) -> None:
    """Also after another learning rate, and where the policy is not updated every time."""
    plain, often = trained(algo, 6, RECORD_FROM_UPDATES - 1, **knobs)
    quick, recorded = trained(algo, 6, **knobs)
    forms = knobs.get("policy_delay", 2 if algo == "td3" else 1)
    assert (often, recorded) == (6, forms), algo  # once to record each form of it
    assert_equal(plain, quick)


def test_python_does_what_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of other shapes, hooks, and operations that TorchScript refuses."""
    sizes = lambda update: 24 if update % 2 else 12  # noqa: E731
    plain, _ = trained("dqn", 6, RECORD_FROM_UPDATES - 1, rows=sizes)
    mixed, calls = trained("dqn", 6, rows=sizes)
    assert calls == 1 + 3
    assert_equal(plain, mixed)
    seen: list[int] = []

    def watch(algorithm: Any) -> None:
        algorithm.network.register_forward_hook(lambda *_: seen.append(1))

    _, calls = trained("dqn", 6, before=watch)
    assert len(seen) == calls == 6

    def refuse(*_: Any) -> Any:
        raise RuntimeError("no such operation")

    plain, _ = trained("sac", 4, RECORD_FROM_UPDATES - 1)
    monkeypatch.setattr(scripting, "script", refuse)
    alone, calls = trained("sac", 4)
    assert calls == 1 + 4
    assert_equal(plain, alone)


def test_python_does_what_may_branch() -> None:
    """Networks of one's own may do more than operations on tensors; a policy may wait so long that
    not every update of the cycle has a form of its own."""
    rarely = {"policy_delay": LONGEST_CYCLE + 1}
    for knobs in ({"networks": "tests.contract.own_networks:all_of_them"}, rarely):
        assert trained("sac", 3, **knobs)[1] == 3
