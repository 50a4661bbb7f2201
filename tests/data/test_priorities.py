"""The sum tree against plain lists and cumulative sums."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rl_training.experiment.errors import CheckpointError
from rl_training.replay.priorities import FAN_OUT, Priorities

from ..each import each

CPU = torch.device("cpu")
CAPACITIES = (1, 5, FAN_OUT, FAN_OUT + 1, 1_000, FAN_OUT**2 + 3)


def with_priorities(values: list[float] | np.ndarray) -> Priorities:
    """Exactly these priorities."""
    priorities = Priorities(len(values), CPU, alpha=1.0, eps=0.0)
    priorities.update(torch.arange(len(values)), torch.tensor(values, dtype=torch.float64))
    return priorities


def assert_sums(priorities: Priorities) -> None:
    """Every inner node is the sum of its children, and the padding is empty."""
    levels = [level.numpy() for level in priorities.levels]
    assert sum(map(len, levels)) == len(priorities.tree)
    for parents, children in itertools.pairwise(levels):
        sums = children.reshape(-1, FAN_OUT).sum(1)
        np.testing.assert_allclose(parents[: len(sums)], sums, rtol=1e-13, atol=0)
        assert not parents[len(sums) :].any()
    assert len(levels[0]) == FAN_OUT
    assert not levels[-1][priorities.capacity :].any()


@each("capacity", CAPACITIES)
def test_tree_follows_a_list_through_random_changes(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    priorities = Priorities(capacity, CPU, alpha=0.7, eps=0.01)
    reference = [0.0] * capacity
    largest = 1.0
    for _ in range(60):
        start = int(rng.integers(capacity))
        count = int(rng.integers(1, min(capacity - start, 50) + 1))
        priorities.insert(start, count)
        reference[start : start + count] = [largest] * count
        assert_sums(priorities)
        index = rng.choice([i for i, p in enumerate(reference) if p], 16)
        td = rng.normal(size=16).astype(np.float32) * 3
        priorities.update(torch.from_numpy(index), torch.from_numpy(td))
        new: dict[int, float] = {}
        for i, error in zip(index.tolist(), td.tolist(), strict=True):
            new[i] = max(new.get(i, 0.0), (abs(error) + 0.01) ** 0.7)
        for i, value in new.items():
            reference[i] = value
            largest = max(largest, value)
        assert_sums(priorities)
        np.testing.assert_allclose(priorities.leaves.numpy(), reference, rtol=1e-12)
        assert float(priorities.max_priority) == pytest.approx(largest)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_descent_finds_what_a_cumulative_sum_finds(capacity: int) -> None:
    """Whole numbers, so that no sum rounds; many zeros; draws at and between the edges."""
    rng = np.random.default_rng(capacity)
    values = rng.integers(0, 4, capacity).astype(np.float64)
    values[rng.integers(capacity)] = 3.0
    priorities = with_priorities(values)
    total, size = values.sum(), int(values.sum()) * 4
    offset = torch.zeros(size, dtype=torch.float64)
    for shift in (0.0, 0.25, 0.999):
        index, _ = priorities.draw_at(offset + shift)
        targets = (np.arange(size) + shift) * (total / size)
        expected = np.searchsorted(np.cumsum(values), targets, side="right")
        np.testing.assert_array_equal(index.numpy(), expected)


def test_rows_without_priority_are_never_drawn() -> None:
    """Not even where sums round badly and the draw falls on the very end of its segment."""
    rng = np.random.default_rng(0)
    edges = [0.0, 1.0 - 2.0**-53]
    for trial in range(40):
        values = 10.0 ** rng.uniform(-12, 12, 2_000)
        values[rng.random(2_000) < 0.9] = 0.0
        values[-500:] = 0.0
        priorities = with_priorities(values)
        if trial % 4 == 0:  # parents that disagree with their children
            for level in priorities.levels[:-1]:
                level.mul_(1 + 1e-12)
        for edge in edges:
            for size in (1, 7, 256):
                index, weight = priorities.draw_at(torch.full((size,), edge, dtype=torch.float64))
                assert (priorities.leaves[index] > 0).all()
                assert torch.isfinite(weight).all()


def test_rounding_on_the_edge_between_two_nodes_finds_no_empty_row() -> None:
    """1 + p rounds up to p + 2, so a draw just after the first node lies before the second."""
    values = np.zeros(2 * FAN_OUT)
    values[0], values[FAN_OUT + 1] = 1.0, 2.0**53 + 2
    priorities = with_priorities(values)
    total = float(priorities.levels[0].sum())
    for where in (1.0, 1.5, 2.0):
        u = torch.tensor([where / total], dtype=torch.float64)
        assert priorities.draw_at(u)[0].tolist() == [FAN_OUT + 1]


def test_frequencies_follow_priorities() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    values = rng.uniform(0.1, 5.0, 300)
    values[50:100] = 0.0
    priorities = with_priorities(values)
    # Draws of one: strata would make the counts more even than chance.
    counts = np.zeros(300)
    for _ in range(6_000):
        index, _ = priorities.draw(1)
        counts[index.item()] += 1
    present = values > 0
    expected = 6_000 * values[present] / values.sum()
    assert counts[~present].sum() == 0
    chi_square = ((counts[present] - expected) ** 2 / expected).sum()
    freedom = present.sum() - 1
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)
    # And stratified batches keep the same means.
    batches = np.bincount(
        torch.cat([priorities.draw(128)[0] for _ in range(300)]).numpy(), minlength=300
    )
    expected = 300 * 128 * values / values.sum()
    np.testing.assert_allclose(batches, expected, atol=5 * np.sqrt(expected.max()))


def test_draws_are_stratified() -> None:
    priorities = with_priorities(np.full(256, 0.5))
    for _ in range(5):
        assert priorities.draw(256)[0].tolist() == list(range(256))
    torch.manual_seed(0)
    within = with_priorities(np.full(2560, 0.5)).draw(256)[0] - 10 * torch.arange(256)
    assert (within >= 0).all()
    assert (within < 10).all()
    counts = np.bincount(within.numpy(), minlength=10)  # each stretch has a draw of its own
    assert ((counts - 25.6) ** 2 / 25.6).sum() < 9 + 4 * np.sqrt(18)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_by_formula(beta: float) -> None:
    values = np.random.default_rng(1).uniform(0.01, 9.0, 500)
    priorities = with_priorities(values)
    priorities.set_beta(beta)
    index, weight = priorities.draw(64)
    probability = values[index.numpy()] / values.sum()
    raw = (500 * probability) ** -beta
    np.testing.assert_allclose(weight.numpy(), raw / raw.max(), rtol=1e-6)
    assert weight.dtype == torch.float32
    assert float(weight.max()) == 1.0


def test_beta_moves_in_place() -> None:
    priorities = Priorities(4, CPU, beta=0.4)
    beta = priorities.beta
    priorities.set_beta(0.9)
    assert priorities.beta is beta
    assert float(beta) == 0.9


def test_new_rows_get_the_largest_priority_so_far() -> None:
    priorities = Priorities(10, CPU, alpha=0.5, eps=0.0)
    priorities.insert(0, 2)
    assert priorities.leaves[:3].tolist() == [1.0, 1.0, 0.0]
    priorities.update(torch.tensor([0, 1]), torch.tensor([-16.0, 4.0]))
    assert priorities.leaves[:2].tolist() == [4.0, 2.0]
    priorities.update(torch.tensor([0]), torch.tensor([1.0]))
    priorities.insert(1, 2)
    assert priorities.leaves[:4].tolist() == [1.0, 4.0, 4.0, 0.0]


def test_of_duplicates_the_larger_counts_in_any_order() -> None:
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        priorities = with_priorities([9.0, 1.0])
        priorities.update(torch.tensor([0, 0, 0]), torch.tensor([1.0, 5.0, 3.0])[order])
        assert priorities.leaves.tolist() == [5.0, 1.0]
        assert_sums(priorities)


def test_errors_that_are_not_finite_do_not_spread() -> None:
    priorities = with_priorities(np.ones(100))
    bad = torch.tensor([float("nan"), float("inf"), float("-inf"), 2.0])
    priorities.update(torch.tensor([3, 4, 5, 6]), bad)
    assert torch.isfinite(priorities.tree).all()
    index, weight = priorities.draw(64)
    assert int(index.max()) < 100
    assert torch.isfinite(weight).all()


def test_gradients_stay_outside() -> None:
    priorities = with_priorities([1.0, 2.0])
    priorities.update(torch.tensor([0]), torch.tensor([3.0], requires_grad=True))
    assert not priorities.tree.requires_grad
    assert not priorities.max_priority.requires_grad


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(CheckpointError, match="priorities for 5 transitions, but the run has 6"):
        Priorities(6, CPU).load_training_state(Priorities(5, CPU).training_state())


def best_median_ms(call: Callable[[], object]) -> float:
    medians = []
    for _ in range(6):
        times = []
        for _ in range(40):
            begin = time.process_time()
            call()
            times.append(time.process_time() - begin)
        medians.append(statistics.median(times))
    return min(medians) * 1e3


def test_a_million_priorities_in_under_a_millisecond(
    record_property: Callable[[str, object], None],
) -> None:
    """256 draws, and 256 updates, on one thread (which tests/conftest.py sets)."""
    assert torch.get_num_threads() == 1
    size = 1_000_000
    priorities = Priorities(size, CPU)
    priorities.insert(0, size)
    priorities.update(torch.arange(size), torch.randn(size))
    index, td = torch.randint(size, (256,)), torch.randn(256)
    drawn = best_median_ms(lambda: priorities.draw(256))
    updated = best_median_ms(lambda: priorities.update(index, td))
    inserted = best_median_ms(lambda: priorities.insert(500_000, 1))
    for name, value in (("draw", drawn), ("update", updated), ("insert", inserted)):
        record_property(f"{name}_ms", value)
    print(f"1M priorities, ms: draw {drawn:.3f}, update {updated:.3f}, insert {inserted:.4f}")
    assert drawn < 1.0
    assert updated < 1.0
